// Forks while other threads move and unmap memory: of two changes the one that comes second may be told
// first. Threads of the lowest class share a CPU with the others, so that they lose it where they let go of
// the lock of the address space: after the change, and before it is told. (They are of that class while they
// change something, and no longer.)
//
// A child finds out what it has by a system call that fails where nothing is mapped, and knows what must be
// there:
//   moved    a region is in one of two places, with its bytes
//   renewed  a region is as it was filled last, or is not there, or is being filled anew
// It prints what it finds wrong. A child may die of SIGBUS (memory of which it cannot be said what it is):
// that is counted.
//
// usage: forks_while_memory_moves SECONDS fork|raw|moves|unmaps|fro: who is of the lowest class; raw: who
// forks, by a system call of which the C library knows nothing; fro: nobody, and memory moves all the time.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MOVED = 3, RENEWED = 3, MOVED_PAGES = 3600, RENEWED_PAGES = 2400 };
#define PLACE(n) ((char *)(0x200000000000ull + (n) * 0x10000000ull))
#define MOVED_AT(region, place) PLACE(2 * (region) + (place))
#define RENEWED_AT(region) PLACE(100 + (region))

static double end;
static atomic_ulong filled[RENEWED];
static int lowest_moves, lowest_unmaps, raw, fro;
static atomic_long moves, renewals;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void share_a_cpu(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void be_lowest(int lowest) {
    struct sched_param none = {0};
    sched_setscheduler(0, (lowest ? SCHED_IDLE : SCHED_OTHER) | SCHED_RESET_ON_FORK, &none);
}

static void map(char *at, size_t pages) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != at) exit(3);
}

static volatile uint64_t *word(char *base, size_t page) {
    return (volatile uint64_t *)(base + page * PAGE + 72);
}

static uint64_t moved_word(int region, size_t page) { return (uint64_t)(region + 1) << 48 | (page + 1); }
static uint64_t renewed_word(int region, unsigned long turn, size_t page) {
    return (uint64_t)(region + 100) << 48 | turn << 16 | (page + 1);
}

static int is_mapped(char *at) {
    unsigned char present;
    return mincore(at, PAGE, &present) == 0;
}

static void *mover(void *number) {
    int region = (int)(intptr_t)number, place = 0;
    unsigned seed = region;
    share_a_cpu();
    while (seconds() < end) {
        char *from = MOVED_AT(region, place), *to = MOVED_AT(region, !place);
        be_lowest(lowest_moves);
        if (mremap(from, MOVED_PAGES * PAGE, MOVED_PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
            exit(3);
        be_lowest(0);
        place = !place;
        moves++;
        for (int look = 0; look < 2; look++) {
            size_t page = rand_r(&seed) % MOVED_PAGES;
            if (*word(to, page) == moved_word(region, page)) continue;
            printf("region %d lost page %zu: %lx\n", region, page, *word(to, page));
            exit(1);
        }
        if (!fro) usleep(rand_r(&seed) % 12000);
    }
    return NULL;
}

static void *renewer(void *number) {
    int region = (int)(intptr_t)number;
    unsigned seed = region;
    char *at = RENEWED_AT(region);
    share_a_cpu();
    for (unsigned long turn = 2; seconds() < end; turn++) {
        be_lowest(lowest_unmaps);
        munmap(at, RENEWED_PAGES * PAGE);
        be_lowest(0);
        filled[region] = 0;
        usleep(rand_r(&seed) % 300);
        map(at, RENEWED_PAGES);
        for (size_t page = 0; page < RENEWED_PAGES; page++)
            *word(at, page) = renewed_word(region, turn, page);
        filled[region] = turn;
        renewals++;
        usleep(rand_r(&seed) % 20000);
    }
    return NULL;
}

static int wrong(const char *what, int region, size_t page, uint64_t found) {
    dprintf(1, "in a child: %s region %d, page %zu: %lx\n", what, region, page, found);
    return 1;
}

static int check(unsigned seed) {
    for (int region = 0; region < MOVED; region++) {
        int first = is_mapped(MOVED_AT(region, 0)), second = is_mapped(MOVED_AT(region, 1));
        if (first == second) return wrong(first ? "in both places" : "nowhere:", region, 0, 0);
        for (int look = 0; look < 6; look++) {
            size_t page = rand_r(&seed) % MOVED_PAGES;
            uint64_t found = *word(MOVED_AT(region, second), page);
            if (found != moved_word(region, page)) return wrong("moved", region, page, found);
        }
        // New memory at the place of an earlier region is empty.
        map(MOVED_AT(region, first), MOVED_PAGES);
        for (int look = 0; look < 2; look++) {
            size_t page = rand_r(&seed) % MOVED_PAGES;
            uint64_t found = *word(MOVED_AT(region, first), page);
            if (found) return wrong("beside a moved", region, page, found);
        }
    }
    for (int region = 0; region < RENEWED; region++) {
        unsigned long turn = filled[region];
        int mapped = is_mapped(RENEWED_AT(region));
        if (!mapped) map(RENEWED_AT(region), RENEWED_PAGES);
        for (int look = 0; look < 6; look++) {
            size_t page = rand_r(&seed) % RENEWED_PAGES;
            uint64_t found = *word(RENEWED_AT(region), page);
            if (!mapped && found) return wrong("once unmapped", region, page, found);
            if (mapped && turn && found != renewed_word(region, turn, page))
                return wrong("renewed", region, page, found);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    end = seconds() + (argc > 1 ? atof(argv[1]) : 5);
    lowest_moves = argc > 2 && !strcmp(argv[2], "moves");
    lowest_unmaps = argc > 2 && !strcmp(argv[2], "unmaps");
    raw = argc > 2 && !strcmp(argv[2], "raw");
    fro = argc > 2 && !strcmp(argv[2], "fro");
    pthread_t threads[MOVED + RENEWED];
    for (int region = 0; region < MOVED; region++) {
        map(MOVED_AT(region, 0), MOVED_PAGES);
        for (size_t page = 0; page < MOVED_PAGES; page++)
            *word(MOVED_AT(region, 0), page) = moved_word(region, page);
        pthread_create(&threads[region], NULL, mover, (void *)(intptr_t)region);
    }
    for (int region = 0; region < RENEWED; region++)
        pthread_create(&threads[MOVED + region], NULL, renewer, (void *)(intptr_t)region);
    share_a_cpu();
    long forks = 0, sigbus = 0;
    while (seconds() < end) {
        be_lowest(!lowest_moves && !lowest_unmaps && !fro);
        pid_t child = raw ? syscall(SYS_fork) : fork();
        be_lowest(0);
        if (child == 0) _exit(check(forks));
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) exit(3);
        forks++;
        usleep(10000);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) {
            sigbus++;
        } else if (status) {
            printf("fork %ld: a child ended with %x\n", forks, status);
            exit(1);
        }
    }
    for (int i = 0; i < MOVED + RENEWED; i++) pthread_join(threads[i], NULL);
    printf("%ld forks, %ld moves, %ld renewals, %ld children that got SIGBUS\n", forks, (long)moves,
        (long)renewals, sigbus);
    return 0;
}
