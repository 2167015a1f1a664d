// A heap that grows beside many small mappings, which are kept from merging by a gap or by what they are.
//
// usage: many-mappings COUNT HEAP_MIB [touching]; prints the most anonymous memory (RssAnon, in MiB) that it
// has had.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "most_anonymous.h"

enum { PAGE = 4096, STEP_PAGES = 64, LOOK_EVERY = 512 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static volatile uint64_t *word(char *base, size_t page) {
    return (volatile uint64_t *)(base + page * PAGE + 64);
}

static void check(int holds, const char *what) {
    if (!holds)
        perror(what), exit(3);
}

// By system call: the agent does not see it.
static char *grow(size_t bytes) {
    char *at = (char *)syscall(SYS_brk, 0);
    check((char *)syscall(SYS_brk, at + bytes) == at + bytes, "brk");
    return at;
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    size_t steps = (argc > 2 ? strtoul(argv[2], NULL, 10) : 300) << 20 >> 12 >> 6;
    int touching = argc > 3;
    // 1 to 4 pages each, five pages from the next one, or side by side and some left out of core dumps.
    char *small = mmap(NULL, (count * 5 + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    check(small != MAP_FAILED && !munmap(small, (count * 5 + 1) * PAGE), "room");
    double start = seconds();
    for (size_t at = 0; at < count; at++) {
        size_t pages = touching ? 5 : 1 + at % 4;
        char *here = small + at * 5 * PAGE;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        char *got = mmap(here, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        check(got == here && (!touching || at % 2 || !madvise(here, pages * PAGE, MADV_DONTDUMP)), "mmap");
        for (size_t page = 0; page < pages; page++)
            *word(here, page) = at * 5 + page + 7;
        if (at % LOOK_EVERY == 0)
            look();
    }
    look();
    fprintf(stderr, "mapped %.2f s\n", seconds() - start);
    char *heap = (char *)syscall(SYS_brk, 0);
    heap += -(uintptr_t)heap % PAGE;
    check((char *)syscall(SYS_brk, heap) == heap, "brk");
    for (size_t step = 0; step < steps; step++) {
        char *at = grow(STEP_PAGES * PAGE);
        for (size_t page = 0; page < STEP_PAGES; page++)
            *word(at, page) = step * STEP_PAGES + page + 1;
        if (step % 16 == 0)
            look();
    }
    look();
    fprintf(stderr, "filled %.2f s\n", seconds() - start);
    for (size_t page = 0; page < steps * STEP_PAGES; page++)
        if (*word(heap, page) != page + 1)
            return printf("page %zu of the heap is lost\n", page), 1;
    for (size_t at = 0; at < count; at++)
        for (size_t page = 0; page < (touching ? 5 : 1 + at % 4); page++)
            if (*word(small + at * 5 * PAGE, page) != at * 5 + page + 7)
                return printf("page %zu of small mapping %zu is lost\n", page, at), 1;
    look();
    fprintf(stderr, "checked %.2f s\n", seconds() - start);
    printf("%ld\n", most_kib >> 10);
    return 0;
}
