// A pool of processes that share anonymous memory: shared_pool MIB SECONDS
//
// Workers count up words of all pages (atomically), and stamp words of their own; children of theirs come and
// go, some by SIGKILL; one does it through a mapping that mremap has made a second time and moved, one uses
// MADV_DONTNEED, which keeps the memory. In the end each word must be the sum of what was counted, and no
// stamp may have gone back.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, PAGE = 4096, WORDS = PAGE / 8 };

struct counts {
    _Atomic uint64_t counted[WORKERS + 1];
    _Atomic int failed;
    _Atomic int stop;
};

static struct counts *counts;
static size_t pages;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fail(const char *what, size_t page, uint64_t is, uint64_t should) {
    fprintf(stderr, "%s: page %zu has %lu, not %lu\n", what, page, is, should);
    counts->failed = 1;
    counts->stop = 1;
}

// Words 0: counted by all. Word 1 + worker: its stamp. Bytes of the second half: a pattern that does not
// compress.
static void work(volatile uint64_t *memory, int worker, uint64_t rounds, uint64_t *stamps) {
    uint64_t random = 88172645463325252u + worker * 7919 + getpid();
    for (uint64_t round = 0; round < rounds && !counts->stop; round++) {
        size_t page = next(&random) % pages;
        volatile uint64_t *words = memory + page * WORDS;
        __atomic_fetch_add(words, 1, __ATOMIC_RELAXED);
        counts->counted[worker]++;
        if (stamps) {
            if (words[1 + worker] != stamps[page])
                fail("stamp", page, words[1 + worker], stamps[page]);
            words[1 + worker] = ++stamps[page];
        }
        uint64_t pattern = page * 0x9e3779b97f4a7c15u;
        for (size_t word = WORDS / 2; word < WORDS; word += 97)
            if (words[word] != (pattern ^ (pattern >> 31) * word))
                fail("pattern", page, words[word], pattern ^ (pattern >> 31) * word);
    }
}

static void worker(volatile uint64_t *memory, int number) {
    uint64_t *stamps = calloc(pages, sizeof *stamps);
    uint64_t state = number + 1;
    if (number == 1) { // a second mapping of the same memory, moved away, and the first one given up
        void *second = mremap((void *)memory, 0, pages * PAGE, MREMAP_MAYMOVE);
        if (second == MAP_FAILED) { perror("mremap"); counts->failed = 1; exit(1); }
        void *room = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        second = mremap(second, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
        if (second == MAP_FAILED) { perror("mremap"); counts->failed = 1; exit(1); }
        munmap((void *)memory, pages * PAGE);
        memory = second;
    }
    while (!counts->stop) {
        work(memory, number, 2000, stamps);
        if (number == 2)
            madvise((char *)memory + next(&state) % pages * PAGE / 2, PAGE, MADV_DONTNEED),
            madvise((void *)(memory + next(&state) % (pages / 2) * WORDS), pages / 4 * PAGE, MADV_DONTNEED);
        if (number == 3 || next(&state) % 8 == 0) {
            pid_t child = fork();
            if (child == 0) {
                work(memory, WORKERS, 300, NULL);
                if (next(&state) % 2) for (;;) pause();
                _exit(0);
            }
            if (child > 0 && next(&state) % 2) usleep(2000);
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
        }
    }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE;
    counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || counts == MAP_FAILED) return 2;
    for (size_t page = 0; page < pages; page++) {
        uint64_t pattern = page * 0x9e3779b97f4a7c15u;
        for (size_t word = WORDS / 2; word < WORDS; word++)
            memory[page * WORDS + word] = pattern ^ (pattern >> 31) * word;
    }
    for (int number = 0; number < WORKERS; number++)
        if (fork() == 0) worker(memory, number);
    // A child that is killed may have counted in memory and not beside it, or be between the two.
    sleep(atoi(argv[2]));
    counts->stop = 1;
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    uint64_t sum = 0, counted = 0;
    for (size_t page = 0; page < pages; page++) sum += memory[page * WORDS];
    for (int number = 0; number <= WORKERS; number++) counted += counts->counted[number];
    if (sum < counted) { fprintf(stderr, "%lu of %lu counts are lost\n", counted - sum, counted); return 1; }
    if (sum > counted + 100000) { fprintf(stderr, "%lu counts too many\n", sum - counted); return 1; }
    printf("%lu counts\n", sum);
    return bad || counts->failed;
}
