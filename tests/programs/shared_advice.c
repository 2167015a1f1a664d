// Advice about shared memory, by one of the processes that have it mapped: shared_advice MIB
//
// In a budget that holds less than MIB. Pages that are advised out leave for all, those beside them stay, and
// they come back as they were, ahead of their faults where that is asked for.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static size_t pages;
static uint64_t *memory;

static void fail(const char *what, size_t got) {
    fprintf(stderr, "%s: %zu\n", what, got);
    exit(1);
}

static size_t resident(size_t from, size_t to) {
    static unsigned char states[1 << 16];
    size_t count = 0;
    if (mincore((char *)memory + from * PAGE, (to - from) * PAGE, states)) { perror("mincore"); exit(2); }
    for (size_t page = 0; page < to - from; page++) count += states[page] & 1;
    return count;
}

static void check(const char *when) {
    for (size_t page = 0; page < pages; page++)
        if (memory[page * PAGE / 8 + 100] != page + 1) fail(when, page);
}

static void advise(size_t from, size_t to, int advice) {
    if (madvise((char *)memory + from * PAGE, (to - from) * PAGE, advice)) { perror("madvise"); exit(2); }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t bytes = strtoul(argv[1], 0, 10) << 20;
    pages = bytes / PAGE;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (size_t page = 0; page < pages; page++) memory[page * PAGE / 8 + 100] = page + 1;
    // Some of it has left by itself: so it is managed.
    for (int tries = 0; resident(0, pages) == pages; tries++) {
        if (tries == 200) fail("it never becomes managed", 0);
        usleep(50000);
    }
    check("before");
    size_t part = pages / 8, last = pages - part;
    size_t before = resident(0, last);
    advise(last, pages, MADV_PAGEOUT);
    if (resident(last, pages) > part / 10) fail("still there after MADV_PAGEOUT", resident(last, pages));
    size_t beside = resident(0, last);
    if (before < part || beside < before * 9 / 10) fail("gone beside it", before - beside);
    advise(last, pages, MADV_WILLNEED);
    for (int tries = 0; resident(last, pages) < part / 2; tries++) {
        if (tries == 200) fail("not brought by MADV_WILLNEED", resident(last, pages));
        usleep(20000);
    }
    advise(last, pages, MADV_COLD);
    pid_t child = fork();
    if (child == 0) { check("in a child"); _exit(0); }
    int status;
    waitpid(child, &status, 0);
    if (status) fail("a child ends with", status);
    check("afterwards");
    return 0;
}
