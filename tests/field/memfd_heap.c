// memfd_heap MIB VIEWS [allocated | whole | stays]: a heap as some collectors make it: one memfd, mapped
// shared at VIEWS places in pieces of 2 MiB, over a reservation without access. Bytes written by one view are
// read by the next. Prints a checksum, and on stderr what the memfd has in memory before it is touched.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIECE = 2 << 20 };

// On x86-64; elsewhere as everybody does it.
static int allocate(int fd, size_t bytes) {
#ifdef __x86_64__
    long ret = SYS_fallocate;
    register size_t end asm("r10") = bytes;
    asm volatile("syscall" : "+a"(ret) : "D"((long)fd), "S"(0L), "d"(0L), "r"(end) : "rcx", "r11", "memory");
    return ret == 0;
#else
    return fallocate(fd, 0, 0, bytes) == 0;
#endif
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)atol(argv[1]) << 20, words = bytes / 8;
    int views = atoi(argv[2]), fd = memfd_create("field-heap", MFD_CLOEXEC);
    uint64_t *at[8], seed = 1, sum = 0;
    if (views > 8 || ftruncate(fd, bytes) != 0) return 2;
    const char *how = argc > 3 ? argv[3] : "";
    int whole = strcmp(how, "whole") == 0, pieces = strcmp(how, "allocated") == 0;
    if (whole && !allocate(fd, bytes)) return 3;
    for (int view = 0; view < views; view++) {
        char *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        at[view] = (uint64_t *)reserved;
        for (size_t piece = 0; piece < bytes; piece += PIECE) {
            if (view == 0 && pieces && fallocate(fd, 0, piece, PIECE) != 0) return 3;
            int rights = PROT_READ | PROT_WRITE, flags = MAP_FIXED | MAP_SHARED;
            void *mapped = mmap(reserved + piece, PIECE, rights, flags, fd, piece);
            if (mapped == MAP_FAILED) return 4;
        }
    }
    struct stat found;
    if (fstat(fd, &found) != 0) return 5;
    fprintf(stderr, "the heap has %ld KiB\n", (long)found.st_blocks / 2);
    for (int round = 0; round < 4; round++)
        for (size_t word = 0; word < words; word++) {
            seed = seed * 6364136223846793005u + 1;
            at[round % views][word] += seed >> 40;
            if (word % 512 == 0) sum = sum * 31 + at[(round + 1) % views][(seed >> 20) % words];
        }
    for (size_t word = 0; word < words; word++) sum = sum * 3 + at[views - 1][word];
    // All of it is there for a while: whoever counts it has time to look.
    if (strcmp(how, "stays") == 0) sleep(2);
    printf("%lu\n", sum);
    return 0;
}
