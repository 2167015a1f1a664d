// seccomp MIB [one]: children that confine themselves while most of their memory is away: strict mode, and
// filters that kill, refuse or trap all that the child does not call itself. Then they use all of their
// memory, map more, fork, and make the calls that they have forbidden. With `one` no child confines two
// threads at once.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, NEW_PAGES = 1000 };
static uint64_t *memory;
static size_t pages;
static volatile int trapped;

static int few[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn};
static int usual[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_mmap, SYS_munmap,
    SYS_mprotect, SYS_madvise, SYS_brk, SYS_mremap, SYS_futex, SYS_rt_sigprocmask, SYS_rt_sigaction,
    SYS_close, SYS_getpid, SYS_gettid, SYS_tgkill, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq,
    SYS_wait4, SYS_sched_yield};

static int filter(int *allowed, size_t count, unsigned otherwise, unsigned flags) {
    struct sock_filter code[100];
    unsigned short len = 0;
    code[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < count; i++) {
        code[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {len, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
#define FEW(otherwise) filter(few, sizeof few / sizeof *few, otherwise, 0)
#define USUAL(otherwise, flags) filter(usual, sizeof usual / sizeof *usual, otherwise, flags)

static void on_sys(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    trapped = info->si_syscall;
}

static uint64_t word_of(size_t page) { return page * 0x9e3779b97f4a7c15u + 1; }
static void fill(uint64_t *at, size_t count) {
    for (size_t i = 0; i < count; i++) at[i * PAGE / 8 + 100] = word_of(i);
}
static int differs(uint64_t *at, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (at[i * PAGE / 8 + 100] != word_of(i)) return 1;
    }
    return 0;
}

// 0: all is right. Calls nothing that `few` does not allow.
static int use_memory(void) { return differs(memory, pages) | differs(memory, pages); }

static int use_calls(void) {
    uint64_t *more = mmap(NULL, NEW_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return 2;
    fill(more, NEW_PAGES);
    if (differs(memory, pages) || differs(more, NEW_PAGES)) return 3;
    munmap(more, NEW_PAGES * PAGE);
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) syscall(SYS_exit_group, differs(memory, pages));
    int status = -1;
    if (child < 0 || syscall(SYS_wait4, child, &status, 0, 0) != child || status != 0) return 4;
    return 0;
}

static volatile int turn;
static long refused;
static void *other_thread(void *nothing) {
    while (turn != 1) syscall(SYS_sched_yield);
    refused = syscall(SYS_getppid) == -1 && errno == EPERM;
    return nothing;
}

static int confined(int kind) {
    int bad;
    switch (kind) {
    case 0:
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) return 77;
        break;
    case 1:
        if (FEW(SECCOMP_RET_KILL_PROCESS)) return 77;
        break;
    case 2:
        if (FEW(SECCOMP_RET_ERRNO | EPERM)) return 77;
        break;
    case 3:
        if (USUAL(SECCOMP_RET_KILL_PROCESS, 0)) return 77;
        break;
    case 4: {
        struct sigaction action = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO};
        sigaction(SIGSYS, &action, NULL);
        if (USUAL(SECCOMP_RET_TRAP, 0)) return 77;
        break;
    }
    case 5:
        if (USUAL(SECCOMP_RET_ERRNO | ENOSYS, SECCOMP_FILTER_FLAG_TSYNC)) return 77;
        break;
    case 6: {
        // One of two threads confines both.
        pthread_t thread;
        pthread_create(&thread, NULL, other_thread, NULL);
        int result = USUAL(SECCOMP_RET_ERRNO | EPERM, SECCOMP_FILTER_FLAG_TSYNC);
        turn = 1;
        pthread_join(thread, NULL);
        if (result) return 77;
        if (!refused) return 5;
        break;
    }
    case 7:
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) return 77;
        syscall(SYS_getppid);
        break;
    case 8:
    case 9:
        if (FEW(kind == 8 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_KILL_THREAD)) return 77;
        mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        break;
    }
    bad = use_memory();
    if (kind >= 3 && kind < 7) bad = bad ? bad : use_calls();
    if (kind == 2 || kind == 6) {
        if (syscall(SYS_getppid) != -1 || errno != EPERM) bad = 6;
    }
    if (kind == 2 && (mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)) bad = 7;
    if (kind == 2 && (munmap(memory, PAGE) == 0 || differs(memory, 1))) bad = 8;
    if (kind == 4) {
        syscall(SYS_getppid);
        if (trapped != SYS_getppid) bad = 9;
    }
    return bad;
}

int main(int count, char **args) {
    static const char *names[] = {"strict mode", "few, or killed", "few, or EPERM", "usual, or killed",
        "usual, or a signal", "usual, of all threads", "of two threads", "strict mode, broken", "killed",
        "its only thread killed"};
    pages = (size_t)atol(args[1]) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(memory, pages);
    for (int kind = 0; kind < 10; kind++) {
        if (kind == 6 && count > 2) continue;
        pid_t child = fork();
        if (child == 0) {
            int bad = use_memory() ? 20 : confined(kind);
            syscall(kind < 3 ? SYS_exit : SYS_exit_group, bad);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("%s: %x\n", names[kind], status & ~0x80);
    }
    return 0;
}
