// private_file MIB HEAP_MIB: writes private pages of a file, MIB of them, then goes through a heap again and
// again, for 20 s at most. If the pages leave next to nothing of the budget, the heap comes and goes, and the
// run must end before this does.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(int count, char **args) {
    if (count != 3) return 2;
    size_t size = atol(args[1]) << 20, heap_size = atol(args[2]) << 20;
    char name[] = "/tmp/private_file_XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name) || ftruncate(file, size)) return perror("the file"), 1;
    char *pages = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    volatile char *heap = malloc(heap_size);
    if (pages == MAP_FAILED || !heap) return perror("memory"), 1;
    memset((char *)heap, 1, heap_size);
    for (size_t at = 0; at < size; at += PAGE) pages[at] = at / PAGE;
    fprintf(stderr, "written\n");
    time_t end = time(0) + 20;
    while (time(0) < end)
        for (size_t at = 0; at < heap_size; at += PAGE) heap[at]++;
    for (size_t at = 0; at < size; at += PAGE)
        if (pages[at] != (char)(at / PAGE)) return printf("WRONG: page %zu\n", at / PAGE), 1;
    printf("all of it was there\n");
    return 0;
}
