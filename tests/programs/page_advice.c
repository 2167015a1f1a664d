/* Advice about swapping: MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED, by madvise and process_madvise, and mlock.
 *
 * usage: page_advice [libc|syscall] [MIB]
 *
 * Pages that are advised out leave, those beside them stay; they come back as they were, and ahead of their
 * faults where that is asked for. Holes, locked memory, guards, files in the range; a fork in between;
 * threads that write meanwhile; another process. MIB of other memory are written first, so that memory is
 * tight.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define PAGE 4096UL
#define MIB (1UL << 20)
#define SIZE (16 * MIB)
#define PAGES (SIZE / PAGE)

static int by_syscall;

static void fail(const char *what, long got) {
    fprintf(stderr, "BAD PAGE: %s: %ld\n", what, got);
    exit(1);
}
#define EXPECT(condition, what, got) do { if (!(condition)) fail(what, (long)(got)); } while (0)

static int advise(void *addr, size_t len, int advice) {
    if (by_syscall) return (int)syscall(SYS_madvise, addr, len, advice);
    return madvise(addr, len, advice);
}

/* 0, or the errno. */
static int advised(void *addr, size_t len, int advice) {
    return advise(addr, len, advice) == 0 ? 0 : errno;
}

static char *map(size_t len) {
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(2);
    return p;
}

static unsigned long word(unsigned long seed, size_t page, size_t at) {
    return (seed + page * 512 + at) * 0x9e3779b97f4a7c15UL;
}

static void fill(char *p, size_t len, unsigned long seed) {
    for (size_t page = 0; page < len / PAGE; page++)
        for (size_t at = 0; at < 512; at += 3)
            ((unsigned long *)(p + page * PAGE))[at] = word(seed, page, at);
}

static void verify(const char *p, size_t len, unsigned long seed, const char *when) {
    for (size_t page = 0; page < len / PAGE; page++)
        for (size_t at = 0; at < 512; at += 3)
            EXPECT(((unsigned long *)(p + page * PAGE))[at] == word(seed, page, at), when, page);
}

static size_t resident(char *p, size_t len) {
    static unsigned char states[64 * PAGES];
    size_t count = 0;
    if (mincore(p, len, states)) perror("mincore"), exit(2);
    for (size_t page = 0; page < len / PAGE; page++) count += states[page] & 1;
    return count;
}

/* Until so many are there, or too long a time has passed. */
static void wait_for(char *p, size_t len, size_t pages) {
    for (int wait = 0; wait < 500 && resident(p, len) < pages; wait++) usleep(10000);
}

/* Where pages are left: how many, where, and whether they are there still a moment later. */
static void expect_none(char *p, size_t len, const char *what) {
    size_t left = resident(p, len), first = 0, last = len / PAGE - 1;
    if (!left) return;
    while (!resident(p + first * PAGE, PAGE) && first < last) first++;
    while (!resident(p + last * PAGE, PAGE) && first < last) last--;
    usleep(100000);
    fprintf(stderr, "BAD PAGE: %s: %zu, from page %zu to %zu; %zu of them later, ", what, left, first, last,
            resident(p, len));
    int error = advised(p, len, MADV_PAGEOUT);
    fprintf(stderr, "%zu after one more pageout, which says %d\n", resident(p, len), error);
    exit(1);
}

/* Out in ranges: what is beside them stays; and then as it was. */
static void leave_and_come(void) {
    char *p = map(SIZE);
    fill(p, SIZE, 1);
    EXPECT(advised(p + SIZE / 4, SIZE / 2, MADV_PAGEOUT) == 0, "pageout says", errno);
    expect_none(p + SIZE / 4, SIZE / 2, "pages are left");
    verify(p, SIZE, 1, "after half went out");
    /* In pieces, and once too often. */
    for (size_t at = 0; at < SIZE; at += SIZE / 16)
        EXPECT(advised(p + at, SIZE / 16, MADV_PAGEOUT) == 0, "pageout of a piece says", errno);
    expect_none(p, SIZE, "pages are left by pieces");
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout of nothing says", errno);
    EXPECT(advised(p, SIZE, MADV_WILLNEED) == 0, "willneed says", errno);
    wait_for(p, SIZE, PAGES);
    EXPECT(resident(p, SIZE) == PAGES, "pages came ahead", resident(p, SIZE));
    verify(p, SIZE, 1, "after they came ahead");
    EXPECT(advised(p, SIZE, MADV_COLD) == 0, "cold says", errno);
    verify(p, SIZE, 1, "after they were cold");
    fill(p, SIZE, 2);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "a second pageout says", errno);
    verify(p, SIZE, 2, "after a second pageout");
    munmap(p, SIZE);
}

static void errors(void) {
    char *p = map(SIZE);
    fill(p, SIZE, 3);
    EXPECT(advised(p + 1, PAGE, MADV_PAGEOUT) == EINVAL, "a range that is not of pages", errno);
    EXPECT(advised(p, (size_t)-PAGE, MADV_PAGEOUT) == EINVAL, "a range beyond all addresses", errno);
    EXPECT(advised(p, 0, MADV_PAGEOUT) == 0, "a range of nothing", errno);
    EXPECT(resident(p, SIZE) == PAGES, "something left", resident(p, SIZE));
    /* A hole, a file and guards in the range. */
    munmap(p + SIZE / 2, 4 * PAGE);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == ENOMEM, "with a hole it says", errno);
    expect_none(p, SIZE / 2, "pages before a hole are left");
    size_t behind = SIZE / 2 - 4 * PAGE;
    expect_none(p + SIZE - behind, behind, "pages behind a hole are left");
    FILE *self = fopen("/proc/self/exe", "r");
    if (mmap(p + SIZE / 2, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fileno(self), 0) == MAP_FAILED)
        perror("mmap of a file"), exit(2);
    fclose(self);
    verify(p, SIZE / 2, 3, "before a file");
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "with a file it says", errno);
    expect_none(p, SIZE / 2, "pages before a file are left");
    EXPECT(!memcmp(p + SIZE / 2, "\177ELF", 4), "the file", 0);
    if (!madvise(p + PAGE, PAGE, GUARD_INSTALL)) {
        EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "with a guard it says", errno);
        EXPECT(advised(p, SIZE, MADV_WILLNEED) == 0, "willneed with a guard says", errno);
        wait_for(p, SIZE / 2, PAGES / 2 - 1);
        if (madvise(p + PAGE, PAGE, GUARD_REMOVE)) perror("guard"), exit(2);
        for (size_t at = 0; at < PAGE; at++) EXPECT(p[PAGE + at] == 0, "what was under a guard", at);
    }
    verify(p, PAGE, 3, "before a guard");
    munmap(p, SIZE);
}

/* Other memory comes to where pages are still on their way to what was there before: it can leave too. */
static void mapped_anew(void) {
    for (unsigned long round = 0; round < 20; round++) {
        char *p = map(SIZE);
        fill(p, SIZE, 20 + round);
        EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout of what goes says", errno);
        EXPECT(advised(p, SIZE, MADV_WILLNEED) == 0, "willneed of what goes says", errno);
        munmap(p, SIZE);
        char *anew = map(SIZE);
        fill(anew, SIZE, 50 + round);
        /* An earlier request may bring some of them. */
        for (int tries = 0; tries < 20; tries++) {
            EXPECT(advised(anew, SIZE, MADV_PAGEOUT) == 0, "pageout of what has come says", errno);
            if (!resident(anew, SIZE)) break;
            usleep(5000);
        }
        expect_none(anew, SIZE, "pages are left of what has come");
        verify(anew, SIZE, 50 + round, "after it came and went");
        munmap(anew, SIZE);
    }
}

/* Locked pages are there, and stay until they are not locked. */
static void locked(void) {
    char *p = map(SIZE);
    fill(p, SIZE, 4);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout before a lock says", errno);
    expect_none(p, SIZE, "pages are left before a lock");
    if (mlock(p + SIZE / 4, MIB)) {
        fprintf(stderr, "not tested: mlock: %s\n", strerror(errno));
        munmap(p, SIZE);
        return;
    }
    EXPECT(resident(p + SIZE / 4, MIB) == MIB / PAGE, "locked pages are there", resident(p + SIZE / 4, MIB));
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == EINVAL, "pageout of locked pages says", errno);
    EXPECT(resident(p + SIZE / 4, MIB) == MIB / PAGE, "locked pages stay", resident(p + SIZE / 4, MIB));
    verify(p, SIZE, 4, "with a lock");
    munlock(p + SIZE / 4, MIB);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout after a lock says", errno);
    expect_none(p, SIZE, "pages are left after a lock");
    verify(p, SIZE, 4, "after a lock");
    munmap(p, SIZE);
}

static void forked(void) {
    char *p = map(SIZE);
    fill(p, SIZE, 5);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout before a fork says", errno);
    verify(p, SIZE / 2, 5, "before a fork");
    int go[2];
    if (pipe(go)) exit(2);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte;
        verify(p, SIZE, 5, "in a child");
        if (read(go[0], &byte, 1) != 1) exit(2);
        EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "a child's pageout says", errno);
        verify(p, SIZE, 5, "in a child after its pageout");
        fill(p, SIZE, 6);
        EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "a child's second pageout says", errno);
        verify(p, SIZE, 6, "in a child that has written");
        exit(0);
    }
    fill(p, SIZE / 4, 7);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "a parent's pageout says", errno);
    if (write(go[1], "", 1) != 1) exit(2);
    verify(p, SIZE / 4, 7, "in the parent, written");
    int status;
    waitpid(child, &status, 0);
    EXPECT(status == 0, "the child", status);
    fill(p, SIZE, 8);
    EXPECT(advised(p, SIZE, MADV_PAGEOUT) == 0, "pageout after a fork says", errno);
    verify(p, SIZE, 8, "after a fork");
    munmap(p, SIZE);
}

static char *shared;
static _Atomic int stop;

/* Each thread counts in words of its own, which lie in all pages. */
static void *count_up(void *arg) {
    size_t own = (size_t)arg;
    unsigned long rounds = 0;
    while (!stop) {
        for (size_t page = 0; page < PAGES; page += 7)
            ++((volatile unsigned long *)(shared + page * PAGE))[own];
        rounds++;
    }
    for (size_t page = 0; page < PAGES; page += 7)
        EXPECT(((unsigned long *)(shared + page * PAGE))[own] == rounds, "a count", page);
    return NULL;
}

static void *advise_out(void *arg) {
    while (!stop) advise(shared, SIZE, arg ? MADV_PAGEOUT : MADV_WILLNEED);
    return NULL;
}

static void while_written(void) {
    pthread_t threads[5];
    shared = map(SIZE);
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, count_up, (void *)(8 + i));
    pthread_create(&threads[3], NULL, advise_out, NULL);
    pthread_create(&threads[4], NULL, advise_out, shared);
    for (int i = 0; i < 20; i++) {
        usleep(50000);
        /* Memory that goes while it is on its way. */
        char *p = map(MIB);
        fill(p, MIB, 9);
        advise(p, MIB, MADV_PAGEOUT);
        munmap(p, i % 2 ? MIB : MIB / 2);
    }
    stop = 1;
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    munmap(shared, SIZE);
}

/* One process advises another one: a pipe says when. */
static void of_another(void) {
    char *p = map(SIZE), byte;
    int up[2], down[2];
    if (pipe(up) || pipe(down)) exit(2);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fill(p, SIZE, 10);
        if (write(up[1], "", 1) != 1 || read(down[0], &byte, 1) != 1) exit(2);
        size_t left = resident(p, SIZE);
        if (byte == 'o' && left) fail("pages are left of another process", (long)left);
        if (byte == 's' && left < PAGES) fail("pages went without a right", (long)left);
        verify(p, SIZE, 10, "in another process");
        exit(0);
    }
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    if (pidfd < 0 || read(up[0], &byte, 1) != 1) exit(2);
    struct iovec ranges[2] = {{p, SIZE / 2}, {p + SIZE / 2, SIZE / 2}};
    if (geteuid() == 0) {
        /* Who may not. */
        pid_t other = fork();
        if (other == 0) {
            if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) exit(2);
            long ret = syscall(SYS_process_madvise, pidfd, ranges, 2, MADV_PAGEOUT, 0);
            exit(ret == -1 && (errno == EPERM || errno == EACCES) ? 0 : 1);
        }
        int status;
        waitpid(other, &status, 0);
        EXPECT(status == 0, "who may not", status);
    }
    long ret = syscall(SYS_process_madvise, pidfd, ranges, 2, MADV_PAGEOUT, 0);
    byte = ret == SIZE ? 'o' : 's';
    EXPECT(ret == SIZE || (ret == -1 && errno == EPERM && geteuid()), "process_madvise says", ret);
    if (write(down[1], &byte, 1) != 1) exit(2);
    int status;
    waitpid(child, &status, 0);
    EXPECT(status == 0, "the other process", status);
    close(pidfd);
    /* The process's own memory. */
    fill(p, SIZE, 11);
    pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    ret = syscall(SYS_process_madvise, pidfd, ranges, 2, MADV_PAGEOUT, 0);
    if (ret == SIZE) expect_none(p, SIZE, "pages are left of itself");
    verify(p, SIZE, 11, "after advice to itself");
    close(pidfd);
    munmap(p, SIZE);
}

/* The pages that are cold leave before those that came earlier. */
static void cold_leaves_first(size_t tight) {
    char *warm = map(SIZE), *cold = map(SIZE);
    fill(warm, SIZE, 13);
    fill(cold, SIZE, 12);
    EXPECT(advised(cold, SIZE, MADV_COLD) == 0, "cold says", errno);
    char *more = map(tight);
    for (size_t at = 0; at < tight && resident(cold, SIZE) > PAGES / 2; at += MIB / 4)
        fill(more + at, MIB / 4, 14);
    EXPECT(resident(warm, SIZE) > resident(cold, SIZE), "cold pages stay", resident(cold, SIZE));
    verify(cold, SIZE, 12, "what was cold");
    verify(warm, SIZE, 13, "what was warm");
    munmap(more, tight);
    munmap(warm, SIZE);
    munmap(cold, SIZE);
}

int main(int argc, char **argv) {
    by_syscall = argc > 1 && !strcmp(argv[1], "syscall");
    size_t tight = argc > 2 ? strtoul(argv[2], NULL, 0) * MIB : 0;
    char *other = tight ? map(tight) : NULL;
    if (tight) fill(other, tight, 99);
    leave_and_come();
    errors();
    mapped_anew();
    locked();
    forked();
    while_written();
    of_another();
    if (tight) {
        verify(other, tight, 99, "what was there before");
        munmap(other, tight);
        cold_leaves_first(tight);
    }
    puts("ok");
    return 0;
}
