// Memory that is mapped, given back in part and mapped anew, again and again, through system calls that the
// agent does not see (brk): what is mapped anew must not be taken for what was registered there a moment
// before.
//
// usage: regrow SECONDS SEED; prints how often the heap grew, or the first page that lost its store.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, OTHER_PAGES = 16384, HEAP_PAGES = 8192 };

static char *heap;
static uint64_t stored[HEAP_PAGES];
static uint64_t stores;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void resize(size_t pages) {
    char *end = heap + pages * PAGE;
    if ((char *)syscall(SYS_brk, end) != end) {
        fprintf(stderr, "regrow: no memory\n");
        exit(3);
    }
}

static volatile uint64_t *word(char *base, size_t page) {
    return (volatile uint64_t *)(base + page * PAGE + 56);
}

static void store(size_t from, size_t to) {
    for (size_t page = from; page < to; page++)
        *word(heap, page) = stored[page] = ++stores;
}

int main(int argc, char **argv) {
    double end = seconds() + (argc > 1 ? atof(argv[1]) : 5);
    srand(argc > 2 ? atoi(argv[2]) : 1);
    heap = (char *)(((uintptr_t)syscall(SYS_brk, 0) + PAGE - 1) & -(uintptr_t)PAGE);
    char *other = mmap(NULL, (size_t)OTHER_PAGES * PAGE, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < OTHER_PAGES; page++)
        *word(other, page) = page + 1;
    size_t have = 0;
    long grown = 0;
    for (; seconds() < end; grown++) {
        size_t before = have;
        have += 64 + rand() % 256;
        if (have > HEAP_PAGES) {
            have = rand() % 64;
            resize(have);
            continue;
        }
        resize(have);
        store(before, have);
        for (int again = rand() % 30; again > 0; again--) {
            size_t kept = have - 1 - rand() % (have - before);
            resize(kept);
            if (rand() % 2)
                usleep(rand() % 3000);
            resize(have);
            store(kept, have);
        }
        for (int look = 0; look < 1500; look++) {
            size_t page = rand() % OTHER_PAGES;
            if (*word(other, page) != page + 1)
                return printf("page %zu of the mapping is lost\n", page), 1;
        }
        for (size_t page = 0; page < have; page++)
            if (*word(heap, page) != stored[page])
                return printf("page %zu of the heap is lost\n", page), 1;
    }
    printf("grown %ld times\n", grown);
    return 0;
}
