// Memory that is populated by advice, while there is room for a part of it only.
//
// usage: populate MIB; prints BAD and what is wrong.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
enum { PAGE = 4096, ROUNDS = 3 };

static void check(int holds, const char *what) {
    if (!holds)
        printf("BAD %s\n", what), exit(1);
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 150) << 20;
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(base != MAP_FAILED, "mmap");
    check(madvise(base, bytes, MADV_POPULATE_WRITE) == 0, "MADV_POPULATE_WRITE of what is new");
    for (size_t at = 0; at < bytes; at += PAGE)
        *(uint64_t *)(base + at) = at * 31 + 7;
    for (int round = 0; round < ROUNDS; round++) {
        check(madvise(base, bytes, round % 2 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0, "populating");
        for (size_t at = 0; at < bytes; at += PAGE)
            check(*(uint64_t *)(base + at) == at * 31 + 7, "a page has other bytes");
    }
    return 0;
}
