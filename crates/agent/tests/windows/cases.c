/* What a program sees of its own faults while its pages come and go by SIGSEGV too: each test by its name, or
 * the list of them. "ok" is the last line of one that holds. */
#include "store.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static unsigned char *arena;
static size_t arena_pages;

static void *map(size_t pages)
{
    void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void start(size_t pages)
{
    arena = map(pages), arena_pages = pages;
    for (size_t i = 0; i < pages * PAGE; i += 8)
        *(uint64_t *)(arena + i) = i * 31 + 7;
}

static int is_as_written(size_t first, size_t count)
{
    for (size_t i = first * PAGE; i < (first + count) * PAGE; i += 8)
        if (*(volatile uint64_t *)(arena + i) != i * 31 + 7)
            return 0;
    return 1;
}

/* By chunks that do not reach over a border of 2 MiB: where the memory behind it is not registered yet, such
 * a chunk would end there. The place of sbrk's memory is drawn anew for each process. */
static size_t away(void *at, size_t pages)
{
    size_t went = 0, count;
    for (size_t i = 0; i < pages; i += count) {
        unsigned char *first = (unsigned char *)at + i * PAGE;
        count = 64 - (uintptr_t)first / PAGE % 64;
        count = count < pages - i ? count : pages - i;
        went += take_out(first, count);
    }
    return went;
}

static void go(void)
{
    CHECK(away(arena, arena_pages) == arena_pages);
}

static volatile int handled, code_seen;
static void *volatile at_seen;
static uint64_t mask_seen;
static sigjmp_buf out;

static void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    CHECK(sigaction(signal, &action, 0) == 0);
}

static void note_and_leave(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    handled++;
    code_seen = info->si_code, at_seen = info->si_addr;
    memcpy(&mask_seen, &((ucontext_t *)context)->uc_sigmask, 8);
    siglongjmp(out, 1);
}

/* Reading, writing and jumping where nothing may be: the program's handler, with the kernel's words. */
static void own_faults(void)
{
    start(16);
    unsigned char *none = map(3);
    CHECK(mprotect(none, PAGE, PROT_NONE) == 0 && munmap(none + PAGE, PAGE) == 0);
    CHECK(mprotect(none + 2 * PAGE, PAGE, PROT_READ) == 0);
    handle(SIGSEGV, note_and_leave, 0);
    for (int round = 0; round < 3; round++) {
        go();
        if (!sigsetjmp(out, 1))
            *(volatile char *)(none + 5);
        CHECK(handled == 6 * round + 1 && code_seen == SEGV_ACCERR && at_seen == none + 5);
        if (!sigsetjmp(out, 1))
            *(volatile char *)(none + PAGE + 6);
        CHECK(handled == 6 * round + 2 && code_seen == SEGV_MAPERR && at_seen == none + PAGE + 6);
        if (!sigsetjmp(out, 1))
            *(volatile char *)(none + 2 * PAGE + 7) = 1;
        CHECK(handled == 6 * round + 3 && code_seen == SEGV_ACCERR && at_seen == none + 2 * PAGE + 7);
        if (!sigsetjmp(out, 1))
            *(volatile char *)0 = 1;
        CHECK(handled == 6 * round + 4 && code_seen == SEGV_MAPERR && at_seen == 0);
        if (!sigsetjmp(out, 1))
            ((void (*)(void))(uintptr_t)(arena + 3 * PAGE))();
        CHECK(handled == 6 * round + 5 && code_seen == SEGV_ACCERR && at_seen == arena + 3 * PAGE);
        if (!sigsetjmp(out, 1))
            *(volatile char *)0xdead000000000000ul;
        CHECK(handled == 6 * round + 6 && code_seen == SI_KERNEL);
        CHECK(is_as_written(0, 16) && mask_seen == 0);
    }
}

static unsigned char *watched;

static void open_page(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    unsigned char *page = (unsigned char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    handled++;
    CHECK(page >= watched && page < watched + 64 * PAGE && info->si_code == SEGV_ACCERR);
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* A program that watches its memory by SIGSEGV, as collectors of garbage do. */
static void own_pager(void)
{
    start(64);
    watched = arena;
    handle(SIGSEGV, open_page, 0);
    for (int round = 0; round < 8; round++) {
        handled = 0;
        CHECK(away(arena, 64) > 0);
        CHECK(mprotect(arena, 64 * PAGE, round % 2 ? PROT_READ : PROT_NONE) == 0);
        if (round % 2)
            CHECK(is_as_written(0, 64) && handled == 0);
        for (int page = 0; page < 64; page += 2)
            *(volatile uint64_t *)(arena + page * PAGE) = page * PAGE * 31 + 7;
        CHECK(handled == 32);
        CHECK(mprotect(arena, 64 * PAGE, PROT_READ | PROT_WRITE) == 0);
        CHECK(is_as_written(0, 64) && handled == 32);
    }
}

static char own_stack[1 << 16];
static volatile int was_on_it, depth;

static void look_at_stack(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    char here;
    was_on_it = &here >= own_stack && &here < own_stack + sizeof own_stack;
    handled++;
    if (++depth < 3)
        *(volatile char *)8 = 1;
    (void)context;
    siglongjmp(out, 1);
}

/* Returns, if ever, when there is no stack left. */
static void overflow(int n)
{
    volatile char room[4096];
    memset((void *)room, n, sizeof room);
    if (room[n % 4096] == (char)n)
        overflow(n + 1);
    __asm__ volatile("" ::"r"(room) : "memory");
}

static void *overflow_in_thread(void *arg)
{
    stack_t mine = {own_stack, 0, sizeof own_stack};
    CHECK(sigaltstack(&mine, 0) == 0);
    handled = depth = 0;
    depth = 3;
    if (!sigsetjmp(out, 1))
        overflow(1);
    CHECK(handled == 1 && was_on_it);
    return arg;
}

/* The handler runs on the stack that the program has given, which may be away itself; also when the stack is
 * used up, and inside of itself. */
static void alternate_stacks(void)
{
    stack_t mine = {own_stack, 0, sizeof own_stack};
    start(16);
    memset(own_stack, 1, sizeof own_stack);
    CHECK(sigaltstack(&mine, 0) == 0);
    for (int on = 0; on < 2; on++) {
        handle(SIGSEGV, look_at_stack, SA_NODEFER | (on ? SA_ONSTACK : 0));
        for (int round = 0; round < 20; round++) {
            unsigned char *first = (unsigned char *)(((uintptr_t)own_stack + PAGE - 1) & ~(PAGE - 1));
            CHECK(away(first, 15) > 0 || on || round);
            go();
            handled = depth = 0;
            if (!sigsetjmp(out, 1))
                *(volatile char *)8 = 1;
            CHECK(handled == 3 && was_on_it == on && is_as_written(0, 16));
        }
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, overflow_in_thread, 0) == 0 && pthread_join(thread, 0) == 0);
}

/* SIGSEGV blocked in every way that there is: pages come, and own faults are the end. */
static void blocked(void)
{
    sigset_t all, set;
    start(64);
    sigfillset(&all);
    handle(SIGSEGV, note_and_leave, 0);
    CHECK(sigprocmask(SIG_SETMASK, &all, 0) == 0);
    go();
    CHECK(is_as_written(0, 64));
    CHECK(sigprocmask(SIG_BLOCK, 0, &set) == 0 && sigismember(&set, SIGSEGV));
    int status;
    pid_t child = fork();
    if (child == 0) {
        go();
        if (!is_as_written(0, 64))
            _exit(1);
        *(volatile char *)8 = 1;
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_IGN);
        go();
        if (!is_as_written(0, 64))
            _exit(1);
        *(volatile char *)8 = 1;
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(is_as_written(0, 64));
}

static void read_arena(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    handled += is_as_written(0, 64);
    go();
}

/* Handlers of other signals, whose masks have all signals, on pages that are away. */
static void in_handlers(void)
{
    start(64);
    struct sigaction action = {.sa_sigaction = read_arena, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    struct itimerval timer = {{0, 2000}, {0, 2000}};
    CHECK(setitimer(ITIMER_REAL, &timer, 0) == 0);
    for (int round = 0; round < 200; round++) {
        away(arena, 64);
        CHECK(is_as_written(0, 64));
    }
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    int before = handled;
    for (int i = 0; i < 5; i++)
        CHECK(sigsuspend(&all) == -1 && errno == EINTR);
    CHECK(handled >= before + 5);
}

/* The program's advice on pages that are away. */
static void advice(void)
{
    start(64);
    size_t none = store_used();
    go();
    CHECK(store_used() == none + 64);
    CHECK(madvise(arena + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0 && store_used() == none + 56);
    for (int i = 8; i < 16; i++)
        CHECK(*(volatile uint64_t *)(arena + i * PAGE) == 0);
    CHECK(madvise(arena + 16 * PAGE, PAGE, MADV_FREE) == 0 && *(volatile char *)(arena + 16 * PAGE) == 0);
    CHECK(madvise(arena + 20 * PAGE, 4 * PAGE, MADV_GUARD_INSTALL) == 0 && store_used() <= none + 51);
    handle(SIGSEGV, note_and_leave, 0);
    if (!sigsetjmp(out, 1))
        *(volatile char *)(arena + 20 * PAGE);
    CHECK(handled == 1 && at_seen == arena + 20 * PAGE);
    CHECK(madvise(arena, 32 * PAGE, MADV_GUARD_REMOVE) == 0);
    CHECK(is_as_written(0, 8) && is_as_written(24, 8) && *(volatile char *)(arena + 20 * PAGE) == 0);
    away(arena, 64);
    CHECK(madvise(arena, 64 * PAGE, MADV_POPULATE_READ) == 0);
    away(arena, 64);
    CHECK(madvise(arena, 64 * PAGE, MADV_POPULATE_WRITE) == 0 && is_as_written(32, 32));
    away(arena, 64);
    if (mlock(arena + 32 * PAGE, 16 * PAGE) == 0) {
        CHECK(away(arena + 32 * PAGE, 16) == 0 && is_as_written(32, 16));
        CHECK(munlock(arena + 32 * PAGE, 16 * PAGE) == 0 && away(arena + 32 * PAGE, 16) == 16);
    }
    CHECK(is_as_written(32, 32));
}

/* mremap in all its forms, brk, munmap: nothing comes back where something new is, and no slot is left. */
static void moves(void)
{
    start(64);
    size_t none = store_used(), len = 16 * PAGE;
    unsigned char *target = map(64), *old = arena;
    go();
    CHECK(mremap(old, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    CHECK(store_used() == none + 64);
    arena = target;
    CHECK(is_as_written(0, 16) && store_used() == none + 48);
    CHECK(away(target, 16) == 16);
    unsigned char *moved = mremap(target, len, len, MREMAP_MAYMOVE | 4, 0);
    CHECK(moved != MAP_FAILED && moved != target);
    for (int i = 0; i < 16; i++)
        CHECK(*(volatile uint64_t *)(target + i * PAGE + 8) == 0);
    arena = moved;
    CHECK(is_as_written(0, 16));
    CHECK(away(moved, 16) == 16);
    unsigned char *grown = mremap(moved, len, 1 << 20, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && grown[len] == 0);
    CHECK(mremap(grown, 1 << 20, 4 * PAGE, 0) == grown && store_used() <= none + 48 + 4);
    arena = grown;
    CHECK(is_as_written(0, 4));
    arena = old;
    CHECK(is_as_written(16, 48));
    CHECK(away(old + len, 48) == 48);
    CHECK(mmap(old + len, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == old + len);
    CHECK(old[len] == 0 && munmap(old + 2 * len, 2 * len) == 0);
    unsigned char *end = sbrk(16 * PAGE);
    unsigned char *first = (unsigned char *)(((uintptr_t)end + PAGE - 1) & ~(PAGE - 1));
    CHECK(end != (void *)-1);
    memset(first, 5, 15 * PAGE);
    CHECK(away(first, 15) == 15);
    CHECK(sbrk(-8 * (long)PAGE) != (void *)-1 && sbrk(8 * PAGE) != (void *)-1);
    CHECK(first[0] == 5 && first[PAGE * 6] == 5 && first[PAGE * 12] == 0);
    CHECK(store_used() <= none + 8);
}

/* Memory that the kernel may drop, which no userfaultfd takes and no child gets, beside memory that is away:
 * glibc keeps random numbers there. */
static void droppable(void)
{
    start(16);
    go();
    unsigned char *at = arena + 15 * PAGE;
    int flags = MAP_ANONYMOUS | MAP_FIXED | 8;
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != at) {
        CHECK(errno == EINVAL);
        return;
    }
    *(volatile unsigned char *)at = 1;
    CHECK(is_as_written(0, 15));
    CHECK(away(arena, 15) == 15 && away(at, 1) == 0 && *(volatile unsigned char *)at == 1);
    pid_t pid = fork();
    if (pid == 0)
        _exit(is_as_written(0, 15) && *(volatile unsigned char *)at == 0 ? 0 : 9);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0 && is_as_written(0, 15));
    /* In memory of which nothing was away before. */
    unsigned char *other = map(1024), *within = other + 512 * PAGE;
    CHECK(mmap(within, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == within);
    other[511 * PAGE] = 2;
    CHECK(away(other + 511 * PAGE, 1) == 1 && away(within, 1) == 0 && other[511 * PAGE] == 2);
}

int __close(int);

/* Each half is a mapping of its own by now, perhaps. */
static void halves_go(void)
{
    size_t half = arena_pages / 2;
    CHECK(away(arena, half) == half && away(arena + half * PAGE, half) == half);
}

/* Calls that are made often come without a trap, but for those that the agent must see: of memory, and of its
 * descriptors. */
static void often(void)
{
    int left, rewritten, rw = PROT_READ | PROT_WRITE;
    sites_of(__close, &left, &rewritten);
    int can_be = left > 0 && rewritten == 0;
    start(16);
    size_t none = store_used();
    /* As its malloc calls it: the agent's mmap stands before it. */
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *(*libc_mmap)(void *, size_t, int, int, int, off_t) = libc ? dlsym(libc, "mmap") : mmap;
    int file = open("/proc/self/exe", O_RDONLY);
    handle(SIGSEGV, note_and_leave, 0);
    for (int round = 1; round <= 40; round++) {
        halves_go();
        CHECK(mprotect(arena, 4 * PAGE, PROT_READ) == 0);
        if (!sigsetjmp(out, 1))
            *(volatile char *)(arena + PAGE) = 1;
        CHECK(handled == round && at_seen == arena + PAGE);
        CHECK(mprotect(arena, 4 * PAGE, rw) == 0 && is_as_written(0, 8));
        /* A mapping of a file is nothing to the agent. */
        void *of_file = libc_mmap(0, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
        CHECK(of_file != MAP_FAILED && munmap(of_file, PAGE) == 0);
        if (round % 2)
            CHECK(munmap(arena + 8 * PAGE, 8 * PAGE) == 0);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        CHECK(libc_mmap(arena + 8 * PAGE, 8 * PAGE, rw, flags, -1, 0) == arena + 8 * PAGE);
        CHECK(store_used() == none);
        for (size_t i = 8 * PAGE; i < 16 * PAGE; i += 8) {
            CHECK(*(uint64_t *)(arena + i) == 0);
            *(uint64_t *)(arena + i) = i * 31 + 7;
        }
        CHECK(close(-1) == -1 && errno == EBADF);
    }
    sites_of(__close, &left, &rewritten);
    CHECK(!can_be || rewritten > 0);
    for (int fd = 3; fd < 1100; fd++)
        CHECK(close(fd) == 0 || errno == EBADF);
    halves_go();
    CHECK(is_as_written(0, 16));
    halves_go();
    pid_t pid = fork();
    if (pid == 0)
        _exit(is_as_written(0, 16) ? 0 : 9);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0 && is_as_written(0, 16));
}

/* Memory that a fork's child gets empty is there; what it does not get may be away, and the child knows
 * nothing of it. */
static void forks(void)
{
    start(64);
    go();
    CHECK(madvise(arena + 8 * PAGE, 8 * PAGE, MADV_DONTFORK) == 0);
    CHECK(madvise(arena + 16 * PAGE, 8 * PAGE, MADV_WIPEONFORK) == 0);
    away(arena + 8 * PAGE, 8);
    CHECK(away(arena + 16 * PAGE, 8) == 0);
    for (int round = 0; round < 10; round++) {
        int status;
        size_t used = store_used();
        pid_t child = fork();
        if (child == 0) {
            unsigned char *there = map(8);
            there = mremap(there, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, arena + 8 * PAGE);
            CHECK(there == arena + 8 * PAGE && there[5] == 0);
            CHECK(arena[16 * PAGE] == 0 && arena[23 * PAGE] == 0);
            CHECK(is_as_written(0, 8) && is_as_written(24, 40));
            memset(arena, round, 64 * PAGE);
            CHECK(away(arena, 8) == 8);
            for (size_t i = 0; i < 64 * PAGE; i++)
                CHECK(arena[i] == round);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                for (size_t i = 0; i < 64 * PAGE; i++)
                    CHECK(arena[i] == (i / PAGE >= 16 && i / PAGE < 24 ? 0 : round));
                _exit(3);
            }
            CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 3 << 8);
            munmap(arena, 64 * PAGE);
            _exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 7 << 8);
        CHECK(store_used() == used);
        if (round % 2)
            CHECK(is_as_written(0, 64) &&
                  away(arena, 8) + away(arena + 8 * PAGE, 8) + away(arena + 24 * PAGE, 40) == 56);
    }
    CHECK(madvise(arena + 8 * PAGE, 8 * PAGE, MADV_DOFORK) == 0);
    CHECK(is_as_written(0, 64));
}

/* Memory with a protection key comes back, and stays; its faults are the program's. */
static void keys(void)
{
    start(16);
    int key = pkey_alloc(0, 0);
    if (key < 0)
        return;
    go();
    CHECK(pkey_mprotect(arena, 16 * PAGE, PROT_READ | PROT_WRITE, key) == 0);
    CHECK(away(arena, 16) == 0 && is_as_written(0, 16));
    handle(SIGSEGV, note_and_leave, 0);
    CHECK(pkey_set(key, PKEY_DISABLE_ACCESS) == 0);
    if (!sigsetjmp(out, 1))
        *(volatile char *)arena;
    CHECK(handled == 1 && code_seen == SEGV_PKUERR && pkey_set(key, 0) == 0 && is_as_written(0, 16));
}

extern char **environ;

static void *sleep_on(void *arg)
{
    pause();
    return arg;
}

/* vfork's child, and posix_spawn's, on their parent's pages, with all descriptors closed. */
static void spawned(void)
{
    start(64);
    for (int round = 0; round < 10; round++) {
        int status;
        go();
        pid_t child = vfork();
        if (child == 0) {
            syscall(SYS_close_range, 3, ~0u, 0);
            _exit(is_as_written(0, 32) ? 5 : 6);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 5 << 8 && is_as_written(0, 64));
        char **args = (char **)(arena + 10 * PAGE - 8), *path = (char *)(arena + 12 * PAGE - 3);
        memcpy(path, "/bin/true", 10);
        args[0] = path, args[1] = 0;
        go();
        CHECK(posix_spawn(&child, path, 0, 0, args, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        for (size_t i = 0; i < 64 * PAGE; i += 8)
            *(uint64_t *)(arena + i) = i * 31 + 7;
    }
    /* Closing all is closing none of the agent's. */
    int file = open("/dev/null", O_RDONLY);
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0 && fcntl(file, F_GETFD) == -1);
    pthread_t thread;
    go();
    CHECK(pthread_create(&thread, 0, sleep_on, 0) == 0);
    CHECK(is_as_written(0, 64));
    for (int fd = 3; fd < 1100; fd++)
        close(fd);
    go();
    CHECK(is_as_written(0, 64) && counted(1) >= 64);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static unsigned char *half[2];
static _Atomic int ready;
#define COST_PAGES 1024

static void *touch_half(void *arg)
{
    unsigned char *at = half[(long)arg];
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < 2)
        ;
    for (size_t i = 0; i < COST_PAGES; i++)
        *(volatile char *)(at + i * PAGE);
    return arg;
}

/* What it costs: microseconds a page. */
static void cost(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        for (int at_once = 1; at_once <= 16; at_once *= 4) {
            double fill = 1e9, whole = 1e9, every_other = 1e9;
            syscall(FILL_AT_ONCE, at_once);
            for (int round = 0; round < 5; round++) {
                arena = map(2 * COST_PAGES), arena_pages = 2 * COST_PAGES;
                memset(arena, 1, arena_pages * PAGE);
                pthread_t other, idle;
                if (threads == 2)
                    CHECK(pthread_create(&idle, 0, sleep_on, 0) == 0);
                double begun = now(), took;
                for (size_t i = 0; i < arena_pages; i += 64)
                    syscall(TAKE_OUT, arena + i * PAGE, 64, 0x5555555555555555);
                took = (now() - begun) / (arena_pages / 2);
                every_other = took < every_other ? took : every_other;
                memset(arena, 1, arena_pages * PAGE);
                begun = now(), go();
                took = (now() - begun) / arena_pages;
                whole = took < whole ? took : whole;
                half[0] = arena, half[1] = arena + COST_PAGES * PAGE;
                atomic_store(&ready, threads == 3 ? 0 : 2);
                begun = now();
                if (threads == 3)
                    CHECK(pthread_create(&other, 0, touch_half, (void *)1) == 0);
                touch_half(0);
                if (threads == 3)
                    pthread_join(other, 0);
                took = (now() - begun) / (threads == 3 ? 2 * COST_PAGES : COST_PAGES);
                fill = took < fill ? took : fill;
                munmap(arena, arena_pages * PAGE);
            }
            printf("%s, %d at once: fill %.1f us a page; eviction %.1f, of every other page %.1f\n",
                   threads == 1 ? "one thread" : threads == 2 ? "and one asleep" : "two threads", at_once,
                   fill, whole, every_other);
        }
    }
}

/* Filters that forbid the program what a thread needs to bring its pages: for each call by itself. */
static void seccomp_filters(void)
{
    static const unsigned needed[] = {SYS_ioctl, SYS_pread64, SYS_pwrite64, SYS_madvise};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, code};
    start(64);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        code[1].k = needed[i];
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
        go();
        CHECK(is_as_written(0, 64));
    }
    code[1].k = SYS_mkdir;
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    CHECK(mkdir("/nowhere", 0) == -1 && errno == EXDEV);
    go();
    CHECK(is_as_written(0, 64));
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"own_faults", own_faults},
    {"own_pager", own_pager},
    {"alternate_stacks", alternate_stacks},
    {"blocked", blocked},
    {"in_handlers", in_handlers},
    {"advice", advice},
    {"moves", moves},
    {"droppable", droppable},
    {"often", often},
    {"keys", keys},
    {"forks", forks},
    {"spawned", spawned},
    {"seccomp_filters", seccomp_filters},
    {"cost", cost},
};

int main(int argc, char **argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (argc < 2) {
            puts(tests[i].name);
        } else if (!strcmp(argv[1], tests[i].name)) {
            CHECK(store_start(1 << 14) == 0);
            tests[i].run();
            puts("ok");
            return 0;
        }
    return argc < 2 ? 0 : 2;
}
