// A process whose calls were trapped only until it joined has all that it had set itself: actions, masks, its
// stack for handlers, %gs, registers; no timer, and no trap.
//
//   late_then_free          children and programs that join by a call, by the timer, in a handler
//   late_then_free program HOW | inherits
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
#define STACK_BYTES (64 << 10)

// What the processes share: 1 when a child has begun; how many were seen to be late; what is ignored and
// blocked from the start.
struct shared {
    atomic_uint begun, late;
    uint64_t ignored, blocked;
};
static struct shared *shared;
static char own_stack[STACK_BYTES] __attribute__((aligned(16)));
static atomic_int handled, faulted;
static int joins_in_handler, on_own_stack;

static void die(const char *what) {
    fprintf(stderr, "BAD: %s (errno %d)\n", what, errno);
    _exit(3);
}

// By calls that are made before a process joins.
static uint64_t status(const char *field) {
    char text[4096], name[32];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    snprintf(name, sizeof name, "\n%s:\t", field);
    char *value = strstr(text, name);
    return value ? strtoull(value + strlen(name), NULL, 16) : 0;
}

static uint64_t bit(int signal) { return 1ull << (signal - 1); }

static void on_usr1(int signal) {
    (void)signal;
    char here;
    on_own_stack = &here >= own_stack && &here < own_stack + STACK_BYTES;
    if (joins_in_handler) sched_yield();
    handled++;
}

static void on_segv(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    faulted++;
    mprotect((void *)((uintptr_t)info->si_addr & ~4095ul), 4096, PROT_READ | PROT_WRITE);
}

static double ms_since(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1e3 + (now.tv_nsec - begin->tv_nsec) / 1e6;
}

static void spin_ms(double ms) {
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (ms_since(&begin) < ms) continue;
}

// What a program sets: handlers, one of them on a stack of its own, and signals that are blocked.
static void set_up(void) {
    // A trap has a handler as long as calls are trapped.
    if (status("SigCgt") & bit(SIGSYS)) shared->late++;
    stack_t stack = {.ss_sp = own_stack, .ss_size = STACK_BYTES};
    if (sigaltstack(&stack, NULL)) die("sigaltstack");
    struct sigaction usr1 = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK};
    struct sigaction segv = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGUSR1, &usr1, NULL) || sigaction(SIGSEGV, &segv, NULL)) die("sigaction");
    signal(SIGUSR2, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS), sigaddset(&set, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) die("sigprocmask");
}

// The kernel has exactly that, and nothing of memspill's.
static void must_be_as_set(const char *how) {
    char what[160];
#define MUST(holds, name)                                                                                    \
    if (!(holds)) snprintf(what, sizeof what, "%s: %s", how, name), die(what)
    MUST(status("SigCgt") == (bit(SIGUSR1) | bit(SIGSEGV)), "other signals have handlers");
    MUST(status("SigIgn") == (shared->ignored | bit(SIGUSR2)), "other signals are ignored");
    MUST(status("SigBlk") == (shared->blocked | bit(SIGBUS) | bit(SIGTERM)), "other signals are blocked");
    stack_t stack;
    MUST(!sigaltstack(NULL, &stack), "sigaltstack");
    MUST(stack.ss_sp == own_stack && stack.ss_flags == 0 && stack.ss_size == STACK_BYTES, "another stack");
    unsigned long gs = 1;
    MUST(!syscall(SYS_arch_prctl, ARCH_GET_GS, &gs) && gs == 0, "%gs is set");
    struct sigaction segv;
    MUST(!sigaction(SIGSEGV, NULL, &segv) && segv.sa_sigaction == on_segv, "another handler");
    // Memspill's dispatch, where it is on, refuses this.
    MUST(!prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0), "calls are trapped");
    char timers[16];
    int fd = open("/proc/self/timers", O_RDONLY);
    MUST(fd < 0 || read(fd, timers, sizeof timers) == 0, "there is a timer");
    close(fd);
    // All of it works.
    int before = handled;
    on_own_stack = 0;
    raise(SIGUSR1);
    MUST(handled == before + 1 && on_own_stack, "the handler did not run on its stack");
    before = faulted;
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(volatile char *)page = 1;
    MUST(faulted == before + 1, "no fault");
    pid_t pid = fork();
    if (pid == 0) _exit(7);
    int ended;
    MUST(waitpid(pid, &ended, 0) == pid && WEXITSTATUS(ended) == 7, "a child that ends");
}

// Registers that neither a call nor a signal changes.
static void by_call_with_registers(void) {
    uint64_t general = 0x1122334455667788, vector = 0x99aabbccddeeff00, number = SYS_sched_yield;
    uint64_t general_after, vector_after, di = 1, si = 2, dx = 3, r10, r8;
    __asm__ volatile("movq %[general], %%r12\n\tmovq %[vector], %%xmm7\n\tmovq $4, %%r10\n\tmovq $5, %%r8\n\t"
                     "syscall\n\tmovq %%r12, %[general_after]\n\tmovq %%xmm7, %[vector_after]\n\t"
                     "movq %%r10, %[r10]\n\tmovq %%r8, %[r8]"
                     : [general_after] "=m"(general_after), [vector_after] "=m"(vector_after),
                       [r10] "=m"(r10), [r8] "=m"(r8), "+a"(number), "+D"(di), "+S"(si), "+d"(dx)
                     : [general] "m"(general), [vector] "m"(vector)
                     : "r8", "r10", "r12", "xmm7", "rcx", "r11", "memory");
    if (number != 0) die("the call that it joined for failed");
    if (general_after != general || vector_after != vector || di != 1 || si != 2 || dx != 3 || r10 != 4 ||
        r8 != 5)
        die("registers changed");
}

static void be(const char *how) {
    set_up();
    if (!strcmp(how, "call")) {
        by_call_with_registers();
    } else if (!strcmp(how, "timer")) {
        spin_ms(40);
    } else {
        joins_in_handler = !strcmp(how, "handler");
        shared->begun = 1;
        while (handled == 0) continue;
        if (!on_own_stack) die("the handler ran elsewhere");
        // By then it has joined, or does so now.
        if (!joins_in_handler) sched_yield();
        joins_in_handler = 0;
    }
    must_be_as_set(how);
    _exit(0);
}

// Signals that a late process ignores or blocks are ignored and blocked in the program that it starts.
static void start_one_that_inherits(void) {
    signal(SIGSEGV, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    sigprocmask(SIG_BLOCK, &set, NULL);
    execl("/proc/self/exe", "late_then_free", "inherits", NULL);
    die("exec");
}

static void inherits(void) {
    uint64_t ignored = status("SigIgn"), blocked = status("SigBlk");
    if (!(ignored & bit(SIGSEGV)) || !(ignored & bit(SIGUSR2))) die("not ignored");
    if (!(blocked & bit(SIGSYS)) || blocked & bit(SIGSEGV)) die("not blocked as it was");
    _exit(0);
}

// Forks in a handler, on the stack for handlers: the child's calls find that in use.
static void on_usr1_fork(int signal) {
    (void)signal;
    char here;
    on_own_stack = &here >= own_stack && &here < own_stack + STACK_BYTES;
    pid_t pid = fork();
    if (pid == 0) {
        for (int call = 0; call < 20; call++) getppid();
        sched_yield();
        stack_t stack;
        if (sigaltstack(NULL, &stack) || stack.ss_sp != own_stack || stack.ss_flags != SS_ONSTACK) _exit(4);
        _exit(0);
    }
    int ended;
    handled = waitpid(pid, &ended, 0) == pid && ended == 0;
}

static void fork_in_handler(void) {
    set_up();
    struct sigaction usr1 = {.sa_handler = on_usr1_fork, .sa_flags = SA_ONSTACK};
    if (sigaction(SIGUSR1, &usr1, NULL)) die("sigaction");
    raise(SIGUSR1);
    if (!on_own_stack || !handled) die("a child of a fork in a handler has failed");
    _exit(0);
}

static void end_well(int signal) {
    (void)signal;
    _exit(0);
}

// Waits in a read that a signal ends, for its handler does not have it go on, whatever the timer does.
static void be_interrupted(void) {
    int ends[2];
    struct sigaction usr1 = {.sa_handler = on_usr1};
    if (pipe(ends) || sigaction(SIGUSR1, &usr1, NULL)) die("pipe");
    char byte;
    shared->begun = 1;
    while (handled == 0)
        if (read(ends[0], &byte, 1) >= 0 || errno != EINTR) die("a read of an empty pipe");
    _exit(0);
}

// Forks in a handler on the thread's own stack that a signal from outside began: it may be late in there.
static void on_usr1_fork_late(int signal) {
    (void)signal;
    pid_t pid = fork();
    if (pid == 0) _exit(status("SigBlk") & bit(SIGUSR1) ? 0 : 4);
    int ended;
    handled = waitpid(pid, &ended, 0) == pid && ended == 0 ? 1 : 2;
}

static void fork_in_handler_from_outside(void) {
    struct sigaction usr1 = {.sa_handler = on_usr1_fork_late};
    if (sigaction(SIGUSR1, &usr1, NULL)) die("sigaction");
    shared->begun = 1;
    while (handled == 0) continue;
    _exit(handled == 1 ? 0 : 5);
}

// A call of 32 bits, which some kernels do not have.
static void by_other_ways(void) {
    signal(SIGSEGV, end_well);
    long number = 20; // getpid
    __asm__ volatile("int $0x80" : "+a"(number) : : "r8", "r9", "r10", "r11", "memory");
    if (number != getpid() && number != -ENOSYS) die("int 0x80");
    _exit(0);
}

static void check(const char *what, const char *how, pid_t pid, int sends) {
    int ended, tells = 0;
    while (waitpid(pid, &ended, WNOHANG) == 0) {
        if (sends && shared->begun == 1 && !tells) kill(pid, sends), tells = 1;
        usleep(200);
    }
    shared->begun = 0;
    if (ended != 0) {
        fprintf(stderr, "BAD: a %s that joins by %s ended with %#x\n", what, how, ended);
        exit(1);
    }
}

int main(int argc, char **argv) {
    int file = argc > 1 ? 9 : memfd_create("shared", 0);
    if (file < 0 || (argc == 1 && (ftruncate(file, 4096) || dup2(file, 9) != 9))) die("memfd");
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 9, 0);
    if (argc > 2) be(argv[2]);
    if (argc > 1) inherits();
    if (shared == MAP_FAILED) die("mmap");
    signal(SIGUSR1, SIG_DFL);
    shared->ignored = status("SigIgn"), shared->blocked = status("SigBlk");
    const char *ways[] = {"call", "timer", "handler", "after-handler"};
    for (int round = 0; round < 10; round++) {
        for (int way = 0; way < 4; way++) {
            int sends = way < 2 ? 0 : SIGUSR1;
            pid_t pid = fork();
            if (pid == 0) be(ways[way]);
            check("child", ways[way], pid, sends);
            if ((pid = fork()) == 0) execl("/proc/self/exe", "late_then_free", "program", ways[way], NULL);
            check("program", ways[way], pid, sends);
        }
        pid_t pid = fork();
        if (pid == 0) start_one_that_inherits();
        check("program", "inheritance", pid, 0);
        if ((pid = fork()) == 0) fork_in_handler();
        check("child", "a fork in a handler", pid, 0);
        if ((pid = fork()) == 0) by_other_ways();
        check("child", "other ways", pid, 0);
        if ((pid = fork()) == 0) syscall(SYS_exit, 0);
        check("child", "the end of its thread", pid, 0);
        if ((pid = fork()) == 0) fork_in_handler_from_outside();
        check("child", "a fork in a handler that a signal from outside began", pid, SIGUSR1);
        // With all signals blocked: the timer of the dispatch cannot come, so this one joins at once.
        sigset_t all, before;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before);
        if ((pid = fork()) == 0) {
            spin_ms(10);
            sched_yield();
            _exit(status("SigBlk") & bit(SIGSYS) ? 0 : 5);
        }
        sigprocmask(SIG_SETMASK, &before, NULL);
        check("child", "a call, all signals blocked", pid, 0);
        // A signal of the kind by which memspill traps, from somebody else, ends who has no handler. In every
        // other round the timer has expired, and what it tells waits, as the child stands still.
        if ((pid = fork()) == 0) {
            shared->begun = 1;
            while (1) continue;
        }
        int ended = 0, stands_still = round % 2;
        while (shared->begun == 0) usleep(100);
        if (stands_still) kill(pid, SIGSTOP), usleep(10000);
        kill(pid, SIGSYS);
        if (stands_still) kill(pid, SIGCONT);
        for (int tries = 0; tries < 50000 && waitpid(pid, &ended, WNOHANG) == 0; tries++) usleep(200);
        if (!ended) kill(pid, SIGKILL);
        shared->begun = 0;
        if (!WIFSIGNALED(ended) || WTERMSIG(ended) != SIGSYS) die("SIGSYS did not end a child");
    }
    // A signal at about the time of the timer, which is 3 ms.
    int lost = 0;
    for (int round = 0; round < 60; round++) {
        pid_t pid = fork();
        if (pid == 0) be_interrupted();
        while (shared->begun == 0) continue;
        spin_ms(2.4 + round * 0.02);
        kill(pid, SIGUSR1);
        siginfo_t ended = {0};
        for (int tries = 0; tries < 2500 && ended.si_pid != pid; tries++, usleep(200))
            waitid(P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT);
        // Who was off its CPU just before the read misses it, with and without memspill.
        if (ended.si_pid != pid) lost++, kill(pid, SIGUSR1);
        check("child", "a read that is interrupted", pid, 0);
    }
    if (lost > 3) fprintf(stderr, "BAD: %d of 60 signals did not end a read\n", lost), exit(1);
    // The timer, and a signal, at any moment of short calls.
    for (int round = 0; round < 40; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            set_up();
            struct timespec begin;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            shared->begun = 1;
            do {
                if (getppid() <= 0 || open("/nowhere", O_RDONLY) >= 0) die("a call did not fail");
                if (errno != ENOENT) die("a call failed otherwise");
            } while (ms_since(&begin) < 15);
            must_be_as_set("timer and calls");
            _exit(0);
        }
        check("child", "timer between calls", pid, round % 2 ? SIGUSR1 : 0);
    }
    if (getenv("MEMSPILL_AGENT") && shared->late == 0) die("nobody was late");
    return 0;
}
