// gsbase MIB: points %gs at memory of its own by an instruction, as sandboxes compiled from WebAssembly do
// (Firefox has some), and by arch_prctl, as Wine does. Meanwhile it reads pages by %gs, makes calls, handles
// signals, and makes threads and children: each finds %gs as it was set.
// cc: -mfsgsbase
#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SET_GS 0x1001
#define GET_GS 0x1004
#define HWCAP2_FSGSBASE 2

static char *memory;
static size_t pages;
// The pipe of the handler.
static int pipes[2];
static volatile unsigned long wanted, handled, wrong;
static volatile unsigned long new_gs;
static char *volatile guarded;
static sigjmp_buf out_of_handler;

static unsigned long gs(void) { return _readgsbase_u64(); }
static void set_gs(unsigned long to) { _writegsbase_u64(to); }

static unsigned long read_by_gs(unsigned long offset) {
    unsigned long value;
    asm volatile("mov %%gs:(%1), %0" : "=r"(value) : "r"(offset) : "memory");
    return value;
}

static unsigned long look(size_t step) {
    unsigned long bad = 0;
    for (size_t k = 0; k < pages; k += step) bad += read_by_gs(k * 4096 + 64) != k * 2654435761u;
    return bad;
}

// Calls that are made often enough to be made another way the next time, and some that are not.
static unsigned long call(int rounds) {
    unsigned long bad = 0, before = gs();
    int pipes[2];
    char byte;
    if (pipe(pipes)) return 1;
    for (int k = 0; k < rounds; k++) {
        bad += write(pipes[1], "x", 1) != 1 || read(pipes[0], &byte, 1) != 1 || byte != 'x';
        bad += getppid() <= 0 || gs() != before;
        // Into memory that may be away.
        size_t page = (size_t)k * 37 % pages;
        bad += write(pipes[1], memory + page * 4096 + 64, 8) != 8;
        bad += read(pipes[0], memory + page * 4096 + 64, 8) != 8;
    }
    close(pipes[0]);
    close(pipes[1]);
    return bad + (gs() != before);
}

static void on_signal(int number) {
    wrong += gs() != wanted;
    if (number == SIGALRM) wrong += write(pipes[1], "y", 1) != 1 || read(pipes[0], (char[1]){0}, 1) != 1;
    if (number == SIGSEGV) wrong += mprotect(guarded, 4096, PROT_READ | PROT_WRITE) != 0;
    if (new_gs) set_gs(new_gs);
    handled++;
    if (number == SIGUSR2) siglongjmp(out_of_handler, 1);
}

static void *thread(void *before) {
    unsigned long bad = gs() != (unsigned long)before;
    bad += look(7) + call(50);
    set_gs((unsigned long)memory + 4096);
    bad += read_by_gs(64) != 2654435761u || getppid() <= 0 || gs() != (unsigned long)memory + 4096;
    return (void *)bad;
}

// All of it, with %gs at `memory`, set this way or that.
static void with_gs(const char *how) {
    unsigned long base = (unsigned long)memory;
    wanted = base;
    wrong = handled = new_gs = 0;
    printf("%s: pages %lu, calls %lu\n", how, look(1), call(400));

    struct itimerval often = {{0, 1500}, {0, 1500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < 20) wrong += look(3) + call(20);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%s: signals %lu\n", how, wrong);
    guarded = memory + (pages - 1) * 4096;
    for (int k = 0; k < 20; k++) {
        mprotect(guarded, 4096, PROT_NONE);
        wrong += read_by_gs((pages - 1) * 4096 + 64) != (pages - 1) * 2654435761u;
    }
    printf("%s: faults %lu\n", how, wrong);
    new_gs = base + 4096;
    raise(SIGUSR1);
    wrong += gs() != base + 4096;
    wanted = new_gs;
    new_gs = base;
    if (!sigsetjmp(out_of_handler, 1)) raise(SIGUSR2);
    wrong += gs() != base;
    wanted = base;
    new_gs = 0;
    printf("%s: handlers that set it %lu\n", how, wrong);

    pthread_t threads[4];
    void *bad;
    for (int k = 0; k < 4; k++) pthread_create(&threads[k], NULL, thread, (void *)base);
    wrong += look(5) + (gs() != base);
    for (int k = 0; k < 4; k++) {
        pthread_join(threads[k], &bad);
        wrong += (unsigned long)bad;
    }
    printf("%s: threads %lu\n", how, wrong + (gs() != base));

    for (int k = 0; k < 3; k++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            unsigned long bad = gs() != base;
            bad += look(11) + call(20);
            set_gs(0);
            bad += getppid() <= 0 || gs() != 0;
            _exit(bad != 0);
        }
        wrong += waitpid(child, &status, 0) != child || status != 0 || gs() != base;
        child = vfork();
        if (child == 0) {
            unsigned long bad = gs() != base;
            bad += getppid() <= 0;
            set_gs(4096);
            bad += getppid() <= 0 || gs() != 4096;
            _exit(bad != 0);
        }
        wrong += gs() != base;
        wrong += waitpid(child, &status, 0) != child || status != 0;
    }
    printf("%s: children %lu\n", how, wrong + look(1));
}

int main(int count, char **words) {
    pages = (size_t)atol(words[count - 1]) << 8;
    if (!(getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE)) {
        puts("nobody may set %gs by an instruction here");
        return 0;
    }
    // At once: in a process that has just begun.
    unsigned long before = gs(), got = 1;
    set_gs(0);
    if (pipe(pipes)) return 2;
    printf("at 0 %d\n", gs() == 0);
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    set_gs((unsigned long)memory);
    for (size_t k = 0; k < pages; k++) *(unsigned long *)(memory + k * 4096 + 64) = k * 2654435761u;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    with_gs("by instruction");
    set_gs(before);
    printf("as before %lu, %d\n", call(400), gs() == before);

    syscall(SYS_arch_prctl, GET_GS, &got);
    printf("unset it is %lu\n", got);
    int set = syscall(SYS_arch_prctl, SET_GS, memory);
    syscall(SYS_arch_prctl, GET_GS, &got);
    printf("set %d, %d, %d\n", set, got == (unsigned long)memory, gs() == (unsigned long)memory);
    with_gs("by call");
    set = syscall(SYS_arch_prctl, SET_GS, -1L);
    printf("an address that cannot be: %d, %s\n", set, strerrorname_np(errno));
    set = syscall(SYS_arch_prctl, SET_GS, 0);
    syscall(SYS_arch_prctl, GET_GS, &got);
    printf("unset %d, %lu, calls %lu\n", set, got, call(400));
    return 0;
}
