// Advice about shared memory, by one of the processes that have it mapped: shared_advice MIB
//
// MIB of shared memory beside MIB of other memory, in a budget that does not hold both. Pages that are
// advised out leave for all, those beside them stay, and they come back as they were, ahead of their faults
// where that is asked for.
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
    char *other = malloc(bytes);
    if (memory == MAP_FAILED || !other) return 2;
    for (size_t page = 0; page < pages; page++) memory[page * PAGE / 8 + 100] = page + 1;
    memset(other, 1, bytes);
    // Some of it has left by itself: so it is managed.
    for (int tries = 0; resident(0, pages) == pages; tries++) {
        if (tries == 200) fail("it never becomes managed", 0);
        memset(other, 1, bytes);
        usleep(50000);
    }
    free(other); // room for all of it
    check("before");
    size_t half = pages / 2;
    advise(0, half, MADV_PAGEOUT);
    if (resident(0, half) > half / 10) fail("still there after MADV_PAGEOUT", resident(0, half));
    if (resident(half, pages) < (pages - half) * 9 / 10) fail("gone beside it", resident(half, pages));
    advise(0, half, MADV_WILLNEED);
    for (int tries = 0; resident(0, half) < half / 4; tries++) {
        if (tries == 200) fail("not brought by MADV_WILLNEED", resident(0, half));
        usleep(20000);
    }
    advise(half, pages, MADV_COLD);
    pid_t child = fork();
    if (child == 0) { check("in a child"); _exit(0); }
    int status;
    waitpid(child, &status, 0);
    if (status) fail("a child ends with", status);
    check("afterwards");
    return 0;
}
