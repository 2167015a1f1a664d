// What the comparison of pagers measures inside a program (compare.py), one figure a line: NAME NANOSECONDS.
//
//   calls BALLAST_MIB               system calls, beside memory that is filled first and not used any more
//   calls faults MIB THREADS        pages in random order, most of them away: the median of the slow touches
//   calls fresh MIB                 memory is mapped, touched and unmapped, four times; nothing is away
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
/// A touch that takes longer than this was a fault on a page that is away (or the thread lost its processor).
#define SLOW_NS 2000

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static char *map(size_t bytes) {
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

// Half of each page is noise, so that a page compresses to about a half.
static char *filled(size_t bytes) {
    char *memory = map(bytes);
    uint64_t state = 1;
    for (size_t page = 0; page < bytes; page += PAGE)
        for (size_t at = 0; at < PAGE / 2; at += 8) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            memcpy(memory + page + at, &state, 8);
        }
    return memory;
}

static void system_calls(size_t ballast) {
    enum { CALLS = 200000 };
    filled(ballast);
    static char buffer[PAGE];
    int zero = open("/dev/zero", O_RDONLY);
    uint64_t start = now_ns();
    for (int i = 0; i < CALLS; i++)
        getppid();
    printf("getppid %.1f\n", (now_ns() - start) / (double)CALLS);
    for (size_t bytes = 1; bytes <= PAGE; bytes *= PAGE) {
        start = now_ns();
        for (int i = 0; i < CALLS; i++)
            if (read(zero, buffer, bytes) != (ssize_t)bytes)
                exit(1);
        printf("read_%zu %.1f\n", bytes, (now_ns() - start) / (double)CALLS);
    }
}

static char *memory;
static size_t pages_each;
static uint32_t *times[16];
static size_t counts[16];

static void *touch(void *thread) {
    size_t index = (size_t)thread;
    char *own = memory + index * pages_each * PAGE;
    uint64_t state = index + 1;
    for (size_t i = 0; i < pages_each; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        size_t page = (state >> 33) % pages_each;
        uint64_t start = now_ns();
        (void)*(volatile char *)(own + page * PAGE);
        uint64_t took = now_ns() - start;
        if (took > SLOW_NS)
            times[index][counts[index]++] = took > UINT32_MAX ? UINT32_MAX : took;
    }
    return 0;
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void faults(size_t bytes, size_t threads) {
    if (threads < 1 || threads > 16)
        exit(2);
    memory = filled(bytes);
    pages_each = bytes / PAGE / threads;
    pthread_t ids[16];
    for (size_t i = 0; i < threads; i++) {
        times[i] = (uint32_t *)map(pages_each * 4);
        pthread_create(&ids[i], 0, touch, (void *)i);
    }
    uint32_t *all = (uint32_t *)map(bytes / PAGE * 4);
    size_t count = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(ids[i], 0);
        memcpy(all + count, times[i], counts[i] * 4);
        count += counts[i];
    }
    qsort(all, count, 4, compare);
    if (count == 0) {
        fprintf(stderr, "no page was away\n");
        exit(1);
    }
    printf("fault_p50 %u\nfault_p99 %u\nfaults %zu\n", all[count / 2], all[count * 99 / 100], count);
}

static void fresh(size_t bytes) {
    uint64_t start = now_ns();
    for (int round = 0; round < 4; round++) {
        char *memory = map(bytes);
        for (size_t at = 0; at < bytes; at += PAGE)
            memory[at] = 1;
        munmap(memory, bytes);
    }
    printf("fresh %.1f\n", (double)(now_ns() - start) / 4);
}

int main(int argc, char **argv) {
    if (argc == 2)
        system_calls(strtoul(argv[1], 0, 10) << 20);
    else if (argc == 4 && !strcmp(argv[1], "faults"))
        faults(strtoul(argv[2], 0, 10) << 20, strtoul(argv[3], 0, 10));
    else if (argc == 3 && !strcmp(argv[1], "fresh"))
        fresh(strtoul(argv[2], 0, 10) << 20);
    else
        return 2;
    return 0;
}
