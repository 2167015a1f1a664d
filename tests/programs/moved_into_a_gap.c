// Threads that unmap memory, and threads whose memory mremap moves into the gap at once: of the two changes
// the one that comes second may be told first.
//
// usage: moved_into_a_gap SECONDS; prints how often memory moved, or the first page that lost its store.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, PAGES = 512, REGIONS = 24, THREADS = 3 };

static double end;
static atomic_long moves;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static char *map(size_t pages) {
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(3);
    return at;
}

static volatile uint64_t *word(char *base, size_t page) {
    return (volatile uint64_t *)(base + page * PAGE + 56);
}

// Gaps of a size into which what the movers have fits.
static void *unmapper(void *unused) {
    while (seconds() < end) {
        char *at[8];
        for (int i = 0; i < 8; i++) {
            at[i] = map(PAGES + 64);
            for (size_t page = 0; page < 8; page++) *word(at[i], page * 61) = 1;
        }
        for (int i = 0; i < 8; i++) munmap(at[i], (PAGES + 64) * PAGE);
    }
    return unused;
}

static void *mover(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    char *regions[REGIONS];
    size_t lengths[REGIONS];
    for (int i = 0; i < REGIONS; i++) {
        regions[i] = map(PAGES);
        lengths[i] = PAGES;
        for (size_t page = 0; page < PAGES; page++) *word(regions[i], page) = (uint64_t)(i + 1) << 32 | page;
    }
    while (seconds() < end) {
        int i = rand_r(&seed) % REGIONS;
        size_t length = lengths[i] == PAGES ? PAGES + 48 : PAGES;
        char *to = mremap(regions[i], lengths[i] * PAGE, length * PAGE, MREMAP_MAYMOVE);
        if (to == MAP_FAILED) exit(3);
        moves += to != regions[i];
        regions[i] = to;
        lengths[i] = length;
        for (int look = 0; look < 24; look++) {
            size_t page = rand_r(&seed) % PAGES;
            if (*word(to, page) != ((uint64_t)(i + 1) << 32 | page)) {
                printf("%p page %zu of a region of thread %u is lost: %llx\n", to, page,
                    (unsigned)(uintptr_t)number,
                       (unsigned long long)*word(to, page));
                exit(1);
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    end = seconds() + (argc > 1 ? atof(argv[1]) : 5);
    pthread_t threads[2 * THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_create(&threads[2 * i], NULL, mover, (void *)i);
        pthread_create(&threads[2 * i + 1], NULL, unmapper, NULL);
    }
    for (int i = 0; i < 2 * THREADS; i++) pthread_join(threads[i], NULL);
    printf("moved %ld times\n", moves);
    return 0;
}
