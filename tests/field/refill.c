// A program that gives its memory back and fills it again, round after round, as allocators do.
//   refill KIND MIB ROUNDS   by madvise: dontneed, free; in pieces of 64 KiB: pieces; by munmap and mmap:
//                            map; by mmap over it: over; by brk: brk
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map(void *at, size_t len) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    char *mapped = mmap(at, len, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return mapped;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    const char *kind = argv[1];
    size_t len = (size_t)atoi(argv[2]) << 20;
    int rounds = atoi(argv[3]), is_brk = !strcmp(kind, "brk");
    unsigned long wrong = 0, not_zero = 0;
    char *memory = is_brk ? sbrk(len) : map(NULL, len);
    for (int round = 0; round < rounds; round++) {
        for (size_t at = 0; at < len; at += 4096)
            for (size_t i = at; i < at + 4096; i += 64) {
                unsigned long *word = (unsigned long *)(memory + i);
                not_zero += *word != 0 && strcmp(kind, "free");
                *word = i * 2654435761u + round;
            }
        for (size_t i = 0; i < len; i += 4096)
            wrong += *(unsigned long *)(memory + i) != i * 2654435761u + round;
        if (!strcmp(kind, "dontneed"))
            madvise(memory, len, MADV_DONTNEED);
        else if (!strcmp(kind, "free"))
            madvise(memory, len, MADV_FREE);
        else if (!strcmp(kind, "pieces"))
            for (size_t i = 0; i < len; i += 64 << 10)
                madvise(memory + i, 64 << 10, MADV_DONTNEED);
        else if (!strcmp(kind, "over"))
            map(memory, len);
        else if (!strcmp(kind, "map")) {
            munmap(memory, len);
            memory = map(NULL, len);
        } else if (is_brk) {
            sbrk(-(long)len);
            memory = sbrk(len);
        }
    }
    printf("%lu wrong, %lu not zero\n", wrong, not_zero);
    return wrong || not_zero;
}
