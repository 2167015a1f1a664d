/* Signals as a program expects them, while its calls are trapped and its memory comes and goes. */
#include "pager.h"
#include <setjmp.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

static volatile int handled;
static int tube[2];

static void count(int signal)
{
    (void)signal;
    handled++;
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, 0) == 0);
}

static void alarm_in(int us)
{
    struct itimerval timer = {{0, 0}, {0, us}};
    CHECK(setitimer(ITIMER_REAL, &timer, 0) == 0);
}

/* One of them comes when the call is made, however slow the machine is. */
static void alarms_each(int us)
{
    struct itimerval timer = {{0, us}, {0, us}};
    CHECK(setitimer(ITIMER_REAL, &timer, 0) == 0);
}

static void interrupted(void)
{
    arena_start(64);
    char *buffer = across(16);
    CHECK(pipe(tube) == 0);
    handle(SIGALRM, count, 0);
    away();
    alarms_each(20000);
    CHECK(read(tube[0], buffer, 16) == -1 && errno == EINTR && handled >= 1);
}

static void write_one(int signal)
{
    (void)signal;
    handled++;
    if (write(tube[1], "x", 1) != 1)
        _exit(9);
}

static void restarted(void)
{
    arena_start(64);
    char *buffer = across(16);
    CHECK(pipe(tube) == 0);
    handle(SIGALRM, write_one, SA_RESTART);
    away();
    alarms_each(20000);
    CHECK(read(tube[0], buffer, 16) >= 1 && handled >= 1 && buffer[0] == 'x');
}

static sigjmp_buf out;

static void leave(int signal)
{
    (void)signal;
    handled++;
    siglongjmp(out, 1);
}

static void jumped_out(void)
{
    arena_start(64);
    char *buffer = across(16);
    CHECK(pipe(tube) == 0);
    handle(SIGALRM, leave, 0);
    for (volatile int i = 0; i < 20; i++) {
        away();
        if (sigsetjmp(out, 1) == 0) {
            alarm_in(3000);
            read(tube[0], buffer, 16);
            CHECK(!"read came back");
        }
        /* The call's memory is in nobody's use any more, so it can go. */
        unsigned long before = brought();
        away();
        CHECK(buffer[0] == 0 && brought() > before);
    }
    CHECK(handled == 20);
}

static void *fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault_address = info->si_addr;
    siglongjmp(out, 1);
}

/* A program with a handler of its own for SIGSEGV, and pointers that are wrong. */
static void own_faults(void)
{
    arena_start(64);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    CHECK(pipe(tube) == 0 && write(tube[1], "abc", 3) == 3);
    CHECK(sigaction(SIGSEGV, &action, 0) == 0);
    CHECK(sigaction(SIGSEGV, 0, &old) == 0 && old.sa_sigaction == on_fault);
    unsigned char *page = whole(PAGE);
    *page = 1;
    CHECK(mprotect(page, PAGE, PROT_READ) == 0);
    if (sigsetjmp(out, 1) == 0) {
        *(volatile unsigned char *)page = 2;
        CHECK(!"the page can be written");
    }
    CHECK(fault_address == page);
    sigset_t set;
    sigfillset(&set);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    CHECK(read(tube[0], page, 3) == -1 && errno == EFAULT);
    CHECK(mprotect(page, PAGE, PROT_NONE) == 0);
    CHECK(write(tube[1], page, 3) == -1 && errno == EFAULT);
    CHECK(munmap(page, PAGE) == 0);
    CHECK(write(tube[1], page, 3) == -1 && errno == EFAULT);
    CHECK(open((char *)page, O_RDONLY) == -1 && errno == EFAULT);
    for (volatile unsigned long wild = 1; wild; wild <<= 21)
        CHECK(write(tube[1], (void *)wild, 3) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, 8, 0, 8) == -1 && errno == EFAULT);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, 0) == 0);
    fault_address = 0;
    CHECK(mmap(page, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
    if (sigsetjmp(out, 1) == 0) {
        *(volatile unsigned char *)page = 2;
        CHECK(!"the page can be written");
    }
    CHECK(fault_address == page);
}

static int status_of(void (*child)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        child();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static void fault_by_default(void)
{
    signal(SIGSEGV, SIG_DFL);
    *(volatile int *)16 = 1;
}

static void fault_while_blocked(void)
{
    sigset_t set;
    handle(SIGSEGV, count, 0);
    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, 0);
    *(volatile int *)16 = 1;
}

static void sent_by_default(void)
{
    kill(getpid(), SIGSYS);
}

static void fatal_faults(void)
{
    CHECK(WTERMSIG(status_of(fault_by_default)) == SIGSEGV);
    CHECK(WTERMSIG(status_of(fault_while_blocked)) == SIGSEGV);
    CHECK(WTERMSIG(status_of(sent_by_default)) == SIGSYS);
    handle(SIGSYS, count, 0);
    CHECK(kill(getpid(), SIGSYS) == 0 && handled == 1);
    signal(SIGSYS, SIG_IGN);
    CHECK(kill(getpid(), SIGSYS) == 0 && handled == 1);
}

static sigset_t seen;

static void note_mask(int signal)
{
    (void)signal;
    handled++;
    sigprocmask(SIG_BLOCK, 0, &seen);
}

/* The masks that a program sees are those that it has set, with the dispatch's own signals in them. */
static void masks(void)
{
    sigset_t all, now, before;
    sigfillset(&all);
    sigemptyset(&now);
    CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0 && !sigismember(&before, SIGSYS));
    CHECK(getppid() > 0 && sigprocmask(SIG_BLOCK, 0, &now) == 0);
    CHECK(sigismember(&now, SIGSYS) && sigismember(&now, SIGSEGV) && sigismember(&now, SIGUSR1));
    CHECK(!sigismember(&now, SIGKILL));
    struct sigaction action = {.sa_handler = note_mask, .sa_mask = all}, old;
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && sigaction(SIGUSR1, 0, &old) == 0);
    CHECK(old.sa_handler == note_mask && sigismember(&old.sa_mask, SIGSYS));
    raise(SIGUSR1);
    CHECK(handled == 0);
    sigdelset(&all, SIGUSR1);
    CHECK(sigsuspend(&all) == -1 && errno == EINTR && handled == 1 && sigismember(&seen, SIGSYS));
    struct pollfd none = {-1, 0, 0};
    struct timespec soon = {0, 1000};
    CHECK(ppoll(&none, 1, &soon, &all) == 0);
    CHECK(pselect(0, 0, 0, 0, &soon, &all) == 0);
    CHECK(sigprocmask(SIG_BLOCK, 0, &now) == 0 && sigismember(&now, SIGUSR1) && sigismember(&now, SIGSYS));
    CHECK(sigprocmask(SIG_SETMASK, &before, 0) == 0);
    raise(SIGUSR1);
    CHECK(handled == 2 && sigprocmask(SIG_BLOCK, 0, &now) == 0 && !sigismember(&now, SIGSYS));
    handle(SIGUSR2, count, SA_RESETHAND);
    raise(SIGUSR2);
    CHECK(handled == 3 && sigaction(SIGUSR2, 0, &old) == 0 && old.sa_handler == SIG_DFL);
}

static char own_stack[1 << 16];
static int was_on_it;

static void look_at_stack(int signal)
{
    char here;
    stack_t stack;
    (void)signal;
    handled++;
    sigaltstack(0, &stack);
    was_on_it = &here >= own_stack && &here < own_stack + sizeof own_stack && stack.ss_flags & SS_ONSTACK;
}

static void alternate_stacks(void)
{
    stack_t mine = {own_stack, 0, sizeof own_stack}, got;
    CHECK(sigaltstack(0, &got) == 0 && got.ss_flags == SS_DISABLE);
    CHECK(sigaltstack(&mine, 0) == 0 && sigaltstack(0, &got) == 0);
    CHECK(got.ss_sp == own_stack && got.ss_size == sizeof own_stack && got.ss_flags == 0);
    handle(SIGUSR1, look_at_stack, SA_ONSTACK);
    raise(SIGUSR1);
    CHECK(handled == 1 && was_on_it);
    handle(SIGUSR1, look_at_stack, 0);
    raise(SIGUSR1);
    CHECK(handled == 2 && !was_on_it);
    mine.ss_size = 100;
    CHECK(sigaltstack(&mine, 0) == -1 && errno == ENOMEM);
    mine.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&mine, 0) == 0 && sigaltstack(0, &got) == 0 && got.ss_flags == SS_DISABLE);
}

static double keep[4] = {1.5, 2.5, 3.5, 4.5};

static void spoil_registers(int signal)
{
    (void)signal;
    handled++;
    __asm__ volatile("pxor %%xmm0, %%xmm0\npxor %%xmm7, %%xmm7\npxor %%xmm15, %%xmm15" ::
                         : "xmm0", "xmm7", "xmm15");
}

/* A call changes no register but rax, rcx and r11; nor does a handler. */
static void registers(void)
{
    handle(SIGUSR1, spoil_registers, 0);
    for (int call = 0; call < 2; call++) {
        double got[3];
        long out[8], pid = getpid();
        __asm__ volatile("movsd %[a], %%xmm0\nmovsd %[b], %%xmm7\nmovsd %[c], %%xmm15\n"
                         "mov $11, %%r8\nmov $12, %%r9\nmov $13, %%r10\nmov $14, %%r12\n"
                         "mov $15, %%r13\nmov $16, %%rbx\nmov %[pid], %%rdi\nmov %[signal], %%rsi\nstd\n"
                         "syscall\n"
                         "pushf\npop %%r11\ncld\n"
                         "movsd %%xmm0, 0(%[got])\nmovsd %%xmm7, 8(%[got])\nmovsd %%xmm15, 16(%[got])\n"
                         "mov %%r8, 0(%[out])\nmov %%r9, 8(%[out])\nmov %%r10, 16(%[out])\n"
                         "mov %%r12, 24(%[out])\nmov %%r13, 32(%[out])\nmov %%rbx, 40(%[out])\n"
                         "mov %%rdi, 48(%[out])\nmov %%r11, 56(%[out])\n"
                         :
                         : "a"(call ? SYS_kill : SYS_getppid), [pid] "r"(pid), [signal] "r"((long)SIGUSR1),
                           [a] "m"(keep[0]), [b] "m"(keep[1]), [c] "m"(keep[2]), [got] "r"(got),
                           [out] "r"(out)
                         : "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "rbx", "rdi", "rsi", "memory", "cc",
                           "xmm0", "xmm7", "xmm15");
        CHECK(got[0] == 1.5 && got[1] == 2.5 && got[2] == 3.5);
        CHECK(out[0] == 11 && out[1] == 12 && out[2] == 13 && out[3] == 14 && out[4] == 15 && out[5] == 16);
        CHECK(out[6] == pid && out[7] & 1 << 10);
    }
    CHECK(handled == 1);
}

#define ROUTINES 8
#define STEPS 12000
static ucontext_t scheduler, routines[ROUTINES];
static int running, sum_of[ROUTINES];
/* One store says it: a routine that is switched away from must go on until it is made. */
static volatile int is_done[ROUTINES];
/* A switch that is under way must not be interrupted by another: what it has saved would be overwritten. */
static volatile int may_switch;

static void switch_away(int signal)
{
    (void)signal;
    if (!may_switch)
        return;
    may_switch = 0;
    handled++;
    swapcontext(&routines[running], &scheduler);
    may_switch = 1;
}

static void routine(void)
{
    unsigned char buffer[600];
    int me = running, file = open("/dev/zero", O_RDONLY);
    may_switch = 1;
    for (int i = 0; i < STEPS; i++) {
        memset(buffer, me + i, sizeof buffer);
        if (read(file, buffer, 300) != 300)
            sum_of[me] = -1000000;
        for (size_t at = 0; at < sizeof buffer; at++)
            if (buffer[at] != (at < 300 ? 0 : (unsigned char)(me + i)))
                sum_of[me] = -1000000;
        sum_of[me]++;
    }
    close(file);
    may_switch = 0;
    is_done[me] = 1;
}

/* Coroutines whose stacks come and go, switched by a timer in the middle of whatever they do. */
static void coroutines(void)
{
    arena_start(512);
    for (int i = 0; i < ROUTINES; i++) {
        getcontext(&routines[i]);
        routines[i].uc_stack = (stack_t){whole(1 << 16), 0, 1 << 16};
        routines[i].uc_link = &scheduler;
        makecontext(&routines[i], routine, 0);
    }
    /* Blocked in the handler, so that its frames do not pile up on a stack of 64 KiB: on a busy machine the
     * next alarm is there before a routine goes on. */
    handle(SIGALRM, switch_away, SA_RESTART);
    struct itimerval timer = {{0, 0}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    evict_always(1);
    for (int left = ROUTINES; left > 0; running = (running + 1) % ROUTINES) {
        if (is_done[running])
            continue;
        setitimer(ITIMER_REAL, &timer, 0);
        swapcontext(&scheduler, &routines[running]);
        setitimer(ITIMER_REAL, &off, 0);
        left -= is_done[running];
    }
    evict_always(0);
    for (int i = 0; i < ROUTINES; i++)
        CHECK(sum_of[i] == STEPS);
    CHECK(handled > 5 && brought() > 5);
}

/* probe(function, a, b, c): calls it with registers that a system call keeps, and says which were lost. */
unsigned char vectors_in[256], vectors_out[256];
unsigned long general_out[6];
long probe(void *function, long a, void *b, long c);
__asm__(
    ".globl probe\n"
    "probe: push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; sub $8, %rsp\n"
    "mov %rdi, %r11; mov %rsi, %rdi; mov %rdx, %rsi; mov %rcx, %rdx\n"
    "mov $0x1001, %rbx; mov $0x1002, %rbp; mov $0x1003, %r12\n"
    "mov $0x1004, %r13; mov $0x1005, %r14; mov $0x1006, %r15\n"
    "movups vectors_in+0(%rip), %xmm0\n"
    "movups vectors_in+16(%rip), %xmm1\n"
    "movups vectors_in+32(%rip), %xmm2\n"
    "movups vectors_in+48(%rip), %xmm3\n"
    "movups vectors_in+64(%rip), %xmm4\n"
    "movups vectors_in+80(%rip), %xmm5\n"
    "movups vectors_in+96(%rip), %xmm6\n"
    "movups vectors_in+112(%rip), %xmm7\n"
    "movups vectors_in+128(%rip), %xmm8\n"
    "movups vectors_in+144(%rip), %xmm9\n"
    "movups vectors_in+160(%rip), %xmm10\n"
    "movups vectors_in+176(%rip), %xmm11\n"
    "movups vectors_in+192(%rip), %xmm12\n"
    "movups vectors_in+208(%rip), %xmm13\n"
    "movups vectors_in+224(%rip), %xmm14\n"
    "movups vectors_in+240(%rip), %xmm15\n"
    "call *%r11\n"
    "mov %rbx, general_out(%rip); mov %rbp, general_out+8(%rip); mov %r12, general_out+16(%rip)\n"
    "mov %r13, general_out+24(%rip); mov %r14, general_out+32(%rip); mov %r15, general_out+40(%rip)\n"
    "movups %xmm0, vectors_out+0(%rip)\n"
    "movups %xmm1, vectors_out+16(%rip)\n"
    "movups %xmm2, vectors_out+32(%rip)\n"
    "movups %xmm3, vectors_out+48(%rip)\n"
    "movups %xmm4, vectors_out+64(%rip)\n"
    "movups %xmm5, vectors_out+80(%rip)\n"
    "movups %xmm6, vectors_out+96(%rip)\n"
    "movups %xmm7, vectors_out+112(%rip)\n"
    "movups %xmm8, vectors_out+128(%rip)\n"
    "movups %xmm9, vectors_out+144(%rip)\n"
    "movups %xmm10, vectors_out+160(%rip)\n"
    "movups %xmm11, vectors_out+176(%rip)\n"
    "movups %xmm12, vectors_out+192(%rip)\n"
    "movups %xmm13, vectors_out+208(%rip)\n"
    "movups %xmm14, vectors_out+224(%rip)\n"
    "movups %xmm15, vectors_out+240(%rip)\n"
    "add $8, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");

static void disturb(int signal)
{
    (void)signal;
    handled++;
    __asm__ volatile("pcmpeqd %%xmm0, %%xmm0; pcmpeqd %%xmm7, %%xmm7; pxor %%xmm15, %%xmm15" ::
                         : "xmm0", "xmm7", "xmm15");
    if (getppid() <= 0)
        _exit(9);
}

static int begins_with_a_jump(void *function)
{
    return *(volatile unsigned char *)function == 0xe9;
}

/* Calls from sites of the C library that were rewritten, and signals in the middle of them. */
static void rewritten_sites(void)
{
    unsigned char was = *(volatile unsigned char *)getppid;
    pid_t parent = getppid();
    for (int i = 0; i < 20; i++)
        CHECK(getppid() == parent);
    if (was == 0xb8)
        CHECK(begins_with_a_jump(getppid));
    arena_start(64);
    int zero = open("/dev/zero", O_RDONLY);
    char *buffer = across(16);
    for (int i = 0; i < 256; i++)
        vectors_in[i] = i ^ 0x5a;
    handle(SIGALRM, disturb, SA_RESTART);
    evict_always(1);
    alarms_each(300);
    ssize_t (*to_read)(int, void *, size_t) = read;
    for (int i = 0; i < 20000000 && handled < 4000; i++) {
        if (i > 200000 && i % 4096 == 0 && handled > 20 && brought() > 20)
            break;
        long got = i % 2 ? probe(getppid, 0, 0, 0) : probe(to_read, zero, buffer, 16);
        CHECK(got == (i % 2 ? parent : 16));
        for (int at = 0; at < 6; at++)
            CHECK(general_out[at] == 0x1001ul + at);
        /* The agent's own read stands before the C library's, and may use vectors as any function. */
        if (i % 2)
            CHECK(!memcmp(vectors_in, vectors_out, sizeof vectors_in));
    }
    evict_always(0);
    alarms_each(0);
    CHECK(handled > 20 && brought() > 20);
    CHECK(read(zero, (void *)PAGE, 16) == -1 && errno == EFAULT);
    CHECK(read(-1, buffer, 16) == -1 && errno == EBADF);
}

/* Sites that make calls of any number, as glibc has them from 2.41 on: (a, b, c, number). Behind the second
 * one it is looked whether what is done before its call was done. */
extern const unsigned char by_rax[], by_r11[], by_r9[], by_end[];
__asm__(
    "by_rax: sub $8, %rsp; push %rcx; .byte 0x48, 0x8b, 0x44, 0x24, 0x00; syscall; add $16, %rsp; ret\n"
    "by_r11: sub $24, %rsp; mov %rcx, %rax; mov $0x1111, %r11d; .byte 0x4c, 0x89, 0x5c, 0x24, 0x08; syscall\n"
    "mov 8(%rsp), %rcx; movl $0, 8(%rsp); add $24, %rsp; cmp $0x1111, %ecx; jne 1f; ret; 1: ud2\n"
    "by_r9: mov %rcx, %rax; .byte 0x4c, 0x8b, 0x4c, 0x24, 0x08; syscall; ret\n"
    "by_end:\n");

typedef long site(const void *a, const void *b, long c, long number);

/* The agent rewrites sites near the C library only. */
static unsigned char *copied_near_the_library(void)
{
    uintptr_t at = (uintptr_t)getppid & ~(PAGE - 1);
    for (uintptr_t off = PAGE; off < 3 << 20; off += PAGE)
        for (int side = -1; side <= 1; side += 2) {
            void *place = (void *)(at + side * off);
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            if (mmap(place, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != place)
                continue;
            memcpy(place, by_rax, by_end - by_rax);
            CHECK(mprotect(place, PAGE, PROT_READ | PROT_EXEC) == 0);
            return place;
        }
    return 0;
}

static int has_a_jump(const unsigned char *code)
{
    for (int at = 0; at < 24; at++)
        if (code[at] == 0xe9 && code[at + 5] == 0x0f && code[at + 6] == 5)
            return 1;
    return 0;
}

static void sites_of_many_calls(void)
{
    unsigned char *copy = copied_near_the_library();
    if (!copy) {
        puts("SKIPPED: no room near the C library");
        exit(0);
    }
    pid_t parent = getppid();
    site *sites[] = {(site *)copy, (site *)(copy + (by_r11 - by_rax)), (site *)(copy + (by_r9 - by_rax))};
    for (int which = 0; which < 3; which++) {
        for (int i = 0; i < 20; i++)
            CHECK(sites[which](0, 0, 0, SYS_getppid) == parent);
        CHECK(has_a_jump((unsigned char *)sites[which]));
    }
    arena_start(64);
    int zero = open("/dev/zero", O_RDONLY);
    char *buffer = across(16);
    unsigned char *page = whole(PAGE);
    memset(page, 7, PAGE);
    /* Changes that are no matter of the site are seen all the same. */
    for (int which = 0; which < 3; which++) {
        site *call = sites[which];
        away();
        CHECK(call(page, (void *)PAGE, PROT_NONE, SYS_mprotect) == 0);
        CHECK(call((void *)(long)zero, page, 1, SYS_read) == -EFAULT);
        CHECK(call(page, (void *)PAGE, PROT_READ | PROT_WRITE, SYS_mprotect) == 0 && page[PAGE - 1] == 7);
    }
    handle(SIGALRM, disturb, SA_RESTART);
    evict_always(1);
    alarms_each(100);
    for (int i = 0; i < 20000000 && handled < 10000; i++) {
        if (i > 200000 && i % 4096 == 0 && handled > 2000 && brought() > 20)
            break;
        site *call = sites[i % 3];
        CHECK(call((void *)(long)zero, buffer, 16, SYS_read) == 16);
        CHECK(call(0, 0, 0, SYS_getppid) == parent);
        CHECK(call(0, 0, 0, SYS_getpriority) == 20 || i % 64);
        CHECK(call((void *)-1l, 0, 0, SYS_fsync) == -EBADF);
    }
    evict_always(0);
    alarms_each(0);
    CHECK(handled > 20 && brought() > 20);
}

/* The address at which a stopped process stands; 0: it has ended. */
static uintptr_t stopped_at(pid_t pid, int *signal)
{
    struct user_regs_struct regs;
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    *signal = WIFSTOPPED(status) ? WSTOPSIG(status) : status;
    if (!WIFSTOPPED(status) || ptrace(PTRACE_GETREGS, pid, 0, &regs) != 0)
        return 0;
    return regs.rip;
}

/* Lets it run on, with the signal that it was stopped by; by one instruction, or to the next signal. */
static uintptr_t run_on(pid_t pid, int how, int *signal)
{
    long passed = *signal == SIGTRAP || *signal == SIGSTOP ? 0 : *signal;
    CHECK(ptrace(how, pid, 0, passed) == 0);
    return stopped_at(pid, signal);
}

enum { STEPS_EACH = 90 };

static void call_and_stop(site *const *sites)
{
    pid_t parent = getppid();
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < STEPS_EACH; i++) {
            raise(SIGSTOP);
            if (sites[which](0, 0, 0, SYS_getppid) != parent || handled != which * STEPS_EACH + i + 1)
                _exit(1 + which);
        }
    _exit(0);
}

/* A signal at each of the instructions by which a call from a rewritten site is begun. */
static void signals_in_sites(void)
{
    unsigned char *copy = copied_near_the_library();
    if (!copy) {
        puts("SKIPPED: no room near the C library");
        exit(0);
    }
    site *sites[] = {(site *)copy, (site *)(copy + (by_r11 - by_rax)), (site *)(copy + (by_r9 - by_rax))};
    for (int i = 0; i < 60; i++)
        CHECK(sites[i % 3](0, 0, 0, SYS_getppid) == getppid());
    handle(SIGUSR1, disturb, SA_RESTART);
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
            _exit(77);
        call_and_stop(sites);
    }
    int signal, steps_in_sites = 0;
    uintptr_t at = stopped_at(pid, &signal);
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < STEPS_EACH; i++) {
            while (at && signal != SIGSTOP)
                at = run_on(pid, PTRACE_CONT, &signal);
            CHECK(at);
            while (at && at - (uintptr_t)copy >= PAGE)
                at = run_on(pid, PTRACE_SINGLESTEP, &signal);
            for (int more = 0; more < i && at; more++)
                at = run_on(pid, PTRACE_SINGLESTEP, &signal);
            CHECK(at && signal == SIGTRAP);
            steps_in_sites += at - (uintptr_t)copy >= PAGE;
            signal = SIGUSR1;
            at = run_on(pid, PTRACE_CONT, &signal);
        }
    while (at)
        at = run_on(pid, PTRACE_CONT, &signal);
    CHECK(signal == 0);
    CHECK(steps_in_sites > 3 * STEPS_EACH / 2);
}

static volatile long null_at = -1;

static void note_null(int signal, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    null_at = user->uc_mcontext.gregs[REG_RIP];
    siglongjmp(out, 1);
}

/* A call through a null pointer stays one, also where sites were rewritten. */
static void null_calls(void)
{
    long (*volatile nothing)(void) = 0;
    struct sigaction action = {.sa_sigaction = note_null, .sa_flags = SA_SIGINFO};
    for (int i = 0; i < 40; i++)
        getppid();
    CHECK(sigaction(SIGSEGV, &action, 0) == 0);
    if (!sigsetjmp(out, 1))
        nothing();
    CHECK(null_at == 0);
}

const struct test signal_tests[] = {
    {"interrupted", interrupted},
    {"restarted", restarted},
    {"jumped_out", jumped_out},
    {"own_faults", own_faults},
    {"fatal_faults", fatal_faults},
    {"masks", masks},
    {"alternate_stacks", alternate_stacks},
    {"registers", registers},
    {"coroutines", coroutines},
    {"rewritten_sites", rewritten_sites},
    {"sites_of_many_calls", sites_of_many_calls},
    {"signals_in_sites", signals_in_sites},
    {"null_calls", null_calls},
    {0, 0},
};
