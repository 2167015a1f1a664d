// private_file MIB FULL_MIB HEAP_MIB: writes private pages of a file, MIB of them, then goes through a heap
// again and again. With FULL_MIB written little of the budget is left, and the run must end within 10 s;
// SIGALRM says that it did not.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

int main(int count, char **args) {
    if (count != 4) return 2;
    size_t size = atol(args[1]) * MIB, full = atol(args[2]) * MIB, heap_size = atol(args[3]) * MIB;
    char name[] = "/tmp/private_file_XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name) || ftruncate(file, size)) return perror("the file"), 1;
    char *pages = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    volatile char *heap = malloc(heap_size);
    if (pages == MAP_FAILED || !heap) return perror("memory"), 1;
    memset((char *)heap, 1, heap_size);
    for (size_t at = 0; at < size; at += PAGE) {
        pages[at] = 1;
        if (at == full) alarm(10);
        if (at % MIB == 0) usleep(1000);
    }
    fprintf(stderr, "written\n");
    for (;;)
        for (size_t at = 0; at < heap_size; at += PAGE) heap[at]++;
}
