// handlers.c: signal handlers on stacks of their own that touch memory which is away, at any instruction, one
// in the middle of another, with errno kept, and left by siglongjmp.
#define _GNU_SOURCE
#include "press.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

enum { PAGES = 512 };
static volatile uint64_t *memory;
static volatile long ticks, nested, wrong;
static sigjmp_buf back;

static uint64_t at_page(long page) { return memory[page * (PAGE / 8) + 9]; }

static void on_nested(int number, siginfo_t *info, void *context) {
    wrong += at_page(nested % PAGES) != (uint64_t)(nested % PAGES);
    wrong += info->si_value.sival_int != 4711;
    nested++;
}

static void on_tick(int number, siginfo_t *info, void *context) {
    char here;
    stack_t now;
    sigaltstack(NULL, &now);
    wrong += !(now.ss_flags & SS_ONSTACK) || &here < (char *)now.ss_sp ||
             &here >= (char *)now.ss_sp + now.ss_size;
    wrong += at_page(ticks * 17 % PAGES) != (uint64_t)(ticks * 17 % PAGES);
    pthread_sigqueue(pthread_self(), SIGUSR1, (union sigval){.sival_int = 4711});
    ticks++;
    errno = EPROTO;
}

static void on_jump(int number) {
    wrong += at_page(3) != 3;
    siglongjmp(back, 1);
}

int main(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}};
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    memory = anonymous(PAGES * PAGE);
    for (long page = 0; page < PAGES; page++) memory[page * (PAGE / 8) + 9] = page;
    stack_t stack = {.ss_sp = anonymous(256 << 10), .ss_size = 256 << 10};
    sigaltstack(&stack, NULL);
    action.sa_sigaction = on_tick;
    sigaction(SIGALRM, &action, NULL);
    action.sa_sigaction = on_nested;
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGUSR2, on_jump);
    press_begin(16);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 6 || ticks < 20; round++) press();
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    for (volatile int round = 0; round < 20; round++) {
        if (round % 5 == 0) press();
        if (!sigsetjmp(back, 1)) raise(SIGUSR2), wrong++;
    }
    MUST(ticks >= 20 && nested == ticks && wrong == 0);
    puts("handlers see their memory");
    return 0;
}
