// Memory that is gone through downwards, or by pairs of pages.
//
// usage: rows MIB down|pairs; prints BAD and what is wrong.
//
// A row of faults says which pages come next where a program goes through its memory in either direction; two
// pages side by side, each pair elsewhere, say it wrongly each time.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, ROUNDS = 3, PAIRS = 40000 };
static uint64_t (*base)[WORDS];
static uint32_t *touches;

static void touch(size_t page) {
    volatile uint64_t *words = base[page];
    if (words[0] != touches[page]++ || words[1] != page * 31 + 7 || words[WORDS - 1] != page * 31 + 7)
        printf("BAD page %zu has other bytes\n", page), exit(1);
    words[0]++;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    size_t pages = (strtoul(argv[1], NULL, 10) << 20) / PAGE;
    base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    touches = calloc(pages, sizeof *touches);
    if (base == MAP_FAILED || !touches)
        return 3;
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 1; word < WORDS; word++)
            base[page][word] = word % 2 ? page * 31 + 7 : word;
    uint64_t drawn = 1;
    for (int n = 0; n < PAIRS && !strcmp(argv[2], "pairs"); n++) {
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        size_t first = (drawn >> 33) % (pages - 1);
        touch(first), touch(first + 1);
    }
    for (int round = 0; round < ROUNDS && !strcmp(argv[2], "down"); round++)
        for (size_t page = pages; page-- > 0;)
            touch(page);
    return 0;
}
