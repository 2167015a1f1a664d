// Writes to private mappings of a file: pages of its own, which cannot be registered, and so not swapped out.
//
// usage: private-file FILE MIB SECONDS; fills as much, waits, looks whether it is all there, and prints
// "ready".
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(int argc, char **argv) {
    size_t bytes = strtoul(argv[2], NULL, 10) << 20;
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (argc < 4 || file < 0 || ftruncate(file, bytes) != 0)
        perror(argv[1]), exit(3);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (base == MAP_FAILED)
        perror("mmap"), exit(3);
    for (size_t at = 0; at < bytes; at += PAGE)
        *(volatile uint64_t *)(base + at) = at + 1;
    sleep(atoi(argv[3]));
    for (size_t at = 0; at < bytes; at += PAGE)
        if (*(volatile uint64_t *)(base + at) != at + 1)
            return printf("byte %zu is lost\n", at), 1;
    puts("ready");
    return 0;
}
