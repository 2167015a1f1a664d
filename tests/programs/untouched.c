// System calls, stacks of a signal and of a thread, and a fork's child in memory that was mapped and never
// touched when memspill came (tests/attach.sh). Prints `round` every 100 ms, and goes to work once there is a
// file `touch`. SIGTERM ends it: `right`.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1l << 20)
enum { EACH = 16 };

static volatile sig_atomic_t ended, handled;
static int wrong;

static char *untouched(void) {
    char *at = mmap(0, EACH * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(2);
    return at;
}

static void check(int holds, const char *what) {
    if (!holds) {
        printf("WRONG %s\n", what);
        fflush(stdout);
        wrong = 1;
    }
}

static int pipes[2], events[2];

static void *reads(void *into) {
    char *at = into;
    long got = read(pipes[0], at, EACH * MIB);
    check(got == 5 && !memcmp(at, "bytes", 6), "read");
    return 0;
}

static void *polls(void *into) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77}, *at = into;
    epoll_ctl(epoll, EPOLL_CTL_ADD, events[0], &event);
    check(epoll_wait(epoll, at, 4, -1) == 1 && at->data.u64 == 77, "epoll_wait");
    return 0;
}

static void *sleeps(void *into) {
    struct timespec *left = into, time = {.tv_sec = 2};
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (syscall(SYS_nanosleep, &time, left)) time = *left;
    clock_gettime(CLOCK_MONOTONIC, &now);
    check(now.tv_sec - begun.tv_sec >= 1, "nanosleep");
    return 0;
}

static void on_signal(int signal) {
    char frame[8192];
    memset(frame, signal, sizeof frame);
    __asm__ volatile("" : : "r"(frame) : "memory");
    handled++;
}

static void *has_own_stack(void *stack) {
    stack_t alternate = {.ss_sp = stack, .ss_size = EACH * MIB};
    check(!sigaltstack(&alternate, 0), "sigaltstack");
    while (!ended) usleep(1000);
    return 0;
}

static void *starts(void *into) {
    char page[65536];
    memset(page, 3, sizeof page);
    (void)into;
    return page[77] == 3 ? (void *)1 : 0;
}

// In a child of a fork, and here.
static int is_zeros(char *at) {
    int status;
    pid_t child = fork();
    for (long page = 0; page < MIB; page += 4096) {
        if (at[page] && child == 0) _exit(1);
        if (at[page]) return 0;
        at[page] = 1;
    }
    if (child == 0) _exit(0);
    return waitpid(child, &status, 0) == child && status == 0;
}

static void on_term(int signal) { ended = signal; }

int main(void) {
    pthread_t threads[4], late;
    pthread_attr_t attr;
    void *result = 0;
    char *stack = untouched(), *block = untouched();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    signal(SIGTERM, on_term);
    if (pipe(pipes) || pipe(events)) return 2;
    pthread_create(threads, 0, reads, untouched());
    pthread_create(threads + 1, 0, polls, untouched());
    pthread_create(threads + 2, 0, sleeps, untouched());
    pthread_create(threads + 3, 0, has_own_stack, untouched());
    while (access("touch", F_OK)) {
        puts("round");
        fflush(stdout);
        usleep(100000);
    }
    check(write(pipes[1], "bytes", 5) == 5 && write(events[1], "", 1) == 1, "write");
    for (int i = 1; i <= 10; i++) {
        pthread_kill(threads[3], SIGUSR1);
        for (int waits = 0; handled < i && waits < 1000; waits++) usleep(1000);
    }
    check(handled == 10, "a handler on its own stack");
    check(is_zeros(block), "a fork");
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, EACH * MIB);
    pthread_create(&late, &attr, starts, 0);
    pthread_join(late, &result);
    check(result == (void *)1, "a thread on its own stack");
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    while (!ended) {
        puts("round");
        fflush(stdout);
        usleep(100000);
    }
    pthread_join(threads[3], 0);
    puts(wrong ? "WRONG" : "right");
    return wrong;
}
