/* Guard regions (Linux 6.13) over memory that is swapped out, and beside windows that fill memory ahead of a
 * stream.
 *
 * usage: guards [libc|syscall|instruction]: how the kernel is called for them.
 *
 * 1. Pages that were swapped out under a guard read as zero when the guard is removed, all else as it was
 * written. A guard stays, whatever stream fills the memory on both sides of it, up, down, in order and again:
 * a store there is SIGSEGV. 3. A store from another thread that waits for its page when the guard comes does
 * not take the guard away.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INSTALL 102
#define REMOVE 103
#define PAGE 4096UL

static enum { LIBC, SYSCALL, INSTRUCTION } way;
static sigjmp_buf back;
static _Atomic int bad;

static int advise(void *addr, size_t len, int advice) {
    if (way == LIBC) return madvise(addr, len, advice);
    if (way == SYSCALL) return (int)syscall(SYS_madvise, addr, len, advice);
#ifdef __x86_64__
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(SYS_madvise), "D"(addr), "S"(len), "d"(advice) : "rcx",
        "r11", "memory");
    return ret < 0 ? (errno = (int)-ret, -1) : 0;
#else
    return (int)syscall(SYS_madvise, addr, len, advice);
#endif
}

static void on_segv(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

/* Does a store there end in SIGSEGV? */
static int is_guarded(volatile char *at) {
    if (sigsetjmp(back, 1)) return 1;
    *at = 1;
    return 0;
}

static char *map(size_t len) {
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(2);
    return p;
}

static void fail(const char *what, long n) {
    if (bad++ < 5) fprintf(stderr, "BAD PAGE: %s: %ld\n", what, n);
}

/* More than the budget, written in order: whatever was there before is swapped out. */
static void press(void) {
    static char *p;
    const size_t len = 120UL << 20;
    if (!p) p = map(len);
    for (size_t i = 0; i < len; i += PAGE) *(volatile unsigned long *)(p + i) = i * 0x9e3779b97f4a7c15UL + 1;
}

static void under_guards(void) {
    const long pages = 2048;
    char *p = map(pages * PAGE);
    for (long i = 0; i < pages; i++) memset(p + i * PAGE, 1 + i % 250, PAGE);
    press();
    /* Every other block of 16 pages is guarded, for longer than the supervisor takes to look by itself. */
    for (long i = 0; i < pages; i += 32)
        if (advise(p + i * PAGE, 16 * PAGE, INSTALL)) perror("MADV_GUARD_INSTALL"), exit(77);
    if (way == INSTRUCTION) sleep(3);
    for (long i = 0; i < pages; i += 32) {
        if (!is_guarded(p + i * PAGE)) fail("a guard that does not guard", i);
        advise(p + i * PAGE, 16 * PAGE, REMOVE);
    }
    for (long i = 0; i < pages; i++) {
        char expected = i % 32 < 16 ? 0 : (char)(1 + i % 250);
        for (long at = 0; at < (long)PAGE; at += 512)
            if (p[i * PAGE + at] != expected) { fail(expected ? "lost" : "old bytes", i); break; }
    }
    munmap(p, pages * PAGE);
}

static void beside_streams(int down, int swapped) {
    const long pages = 4096;
    char *p = map(pages * PAGE);
    if (swapped) {
        for (long i = 0; i < pages; i++) memset(p + i * PAGE, 7, PAGE);
        press();
    }
    /* Stacks of threads, as it were: a guard in every 64 pages, at different places. */
    for (long i = 0; i < pages; i += 64) advise(p + (i + i / 64 % 64) * PAGE, PAGE, INSTALL);
    if (way == INSTRUCTION && swapped) sleep(3);
    for (long n = 0; n < pages; n++) {
        long i = down ? pages - 1 - n : n;
        if (i % 64 == i / 64 % 64) continue;
        volatile char *at = p + i * PAGE;
        if (swapped && *at != 7) fail("lost beside a guard", i);
        *at = 2;
    }
    for (long i = 0; i < pages; i += 64)
        if (!is_guarded(p + (i + i / 64 % 64) * PAGE)) fail("a guard is gone", i);
    munmap(p, pages * PAGE);
}

static char *contended;
static _Atomic long turn;


/* The jump back is the thread's own. */
static __thread sigjmp_buf own_back;
static void on_segv_thread(int signal) {
    (void)signal;
    siglongjmp(own_back, 1);
}
static void *thread_toucher(void *unused) {
    unsigned seed = (unsigned)(size_t)unused;
    while (turn >= 0) {
        volatile char *at = contended + rand_r(&seed) % 512 * PAGE;
        if (!sigsetjmp(own_back, 1)) *at = 1;
    }
    return NULL;
}

static void against_stores(void) {
    contended = map(512 * PAGE);
    struct sigaction action = {.sa_handler = on_segv_thread, .sa_flags = SA_NODEFER}, before;
    sigaction(SIGSEGV, &action, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, thread_toucher, (void *)1);
    for (int round = 0; round < 300; round++) {
        /* Missing pages again, so that the other thread faults while guards come. */
        madvise(contended, 512 * PAGE, MADV_DONTNEED);
        advise(contended + 128 * PAGE, 256 * PAGE, INSTALL);
        for (long i = 128; i < 384; i += 5)
            if (!sigsetjmp(own_back, 1)) {
                *(volatile char *)(contended + i * PAGE) = 1;
                fail("a store went through a guard", i);
            }
        advise(contended + 128 * PAGE, 256 * PAGE, REMOVE);
    }
    turn = -1;
    pthread_join(thread, NULL);
    sigaction(SIGSEGV, &before, NULL);
}

int main(int argc, char **argv) {
    way = argc > 1 && !strcmp(argv[1], "syscall") ? SYSCALL : argc > 1 && !strcmp(argv[1], "instruction")
        ? INSTRUCTION : LIBC;
    struct sigaction action = {.sa_handler = on_segv, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    press();
    under_guards();
    for (int i = 0; i < 4; i++) beside_streams(i & 1, i & 2);
    if (way != INSTRUCTION) against_stores();
    if (bad) return printf("%d bad\n", bad), 1;
    puts("all guarded");
    return 0;
}
