// Memory that is reserved without access and opened by mprotect as it is needed, as by malloc's arenas and
// the heaps of runtimes; some of it was written and closed again before (little: what is closed cannot
// leave). Two threads, each in its own half, keep a number for each page: what was written must be there, and
// what was not must be zeros.
//
// usage: opened MIB; prints BAD and what is wrong.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, STEP = 64, ROUNDS = 4 };

static size_t half_pages;
static char *base;
static uint64_t *written;

static void check(int holds, const char *what) {
    if (!holds)
        printf("BAD %s\n", what), exit(1);
}

static void check_page(size_t page) {
    volatile uint64_t *words = (uint64_t *)(base + page * PAGE);
    check(words[0] == written[page] && words[511] == written[page], "a page has other bytes");
}

static void protect(size_t page, size_t pages, int prot) {
    check(mprotect(base + page * PAGE, pages * PAGE, prot) == 0, "mprotect");
}

static void write_page(size_t page, uint64_t value) {
    uint64_t *words = (uint64_t *)(base + page * PAGE);
    words[0] = words[511] = written[page] = value;
}

// Each piece is opened, written in part, closed, and all of it is opened and looked at.
static void *work(void *arg) {
    size_t first = arg ? half_pages : 0, end = first + half_pages;
    uint64_t drawn = first + 1;
    for (int round = 1; round <= ROUNDS; round++) {
        for (size_t at = first; at < end; at += STEP) {
            protect(at, STEP, PROT_READ | PROT_WRITE);
            for (size_t page = at; page < at + STEP; page++) {
                drawn = drawn * 6364136223846793005 + 1442695040888963407;
                if (drawn >> 33 & 1 || round == ROUNDS)
                    write_page(page, drawn | 1);
            }
            if (at / STEP % 16 == 0)
                protect(at, STEP, drawn >> 40 & 1 ? PROT_NONE : PROT_READ);
        }
        protect(first, half_pages, PROT_READ | PROT_WRITE);
        for (size_t page = first; page < end; page++)
            check_page(page);
        // A part is given back, and is as new.
        for (size_t at = first; at < end; at += 4 * STEP) {
            check(madvise(base + at * PAGE, STEP * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
            for (size_t page = at; page < at + STEP; page++)
                written[page] = 0;
        }
    }
    for (size_t page = first; page < end; page++)
        check_page(page);
    return NULL;
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 192;
    half_pages = (mib << 20) / PAGE / 2 / (4 * STEP) * (4 * STEP);
    base = mmap(NULL, 2 * half_pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    written = calloc(2 * half_pages, sizeof *written);
    check(base != MAP_FAILED && written, "mmap");
    pthread_t other;
    check(pthread_create(&other, NULL, work, (void *)1) == 0, "pthread_create");
    work(NULL);
    pthread_join(other, NULL);
    return 0;
}
