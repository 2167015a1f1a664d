// protection WHAT MIB: memory that may not be written, or not be touched, at the moment.
//   rights    memory that is r--, r-x and without access, larger than the budget: what is in it stays, and
//             who does what is not allowed there gets SIGSEGV with SEGV_ACCERR and the address, wherever the
//             page is
//   barrier   a collector's write barrier: threads write to a heap that is made read-only again and again; a
//             handler opens the page and notes it. A page that was written and not noted is a lost right
//   children  of forks have the same memory with the same rights, and change their own
//   guards    MADV_GUARD_REMOVE over memory that holds something, and over guards
//   beside    other threads unmap and map such memory, and wait in calls: none ends early, with EINTR, or
//             halfway
//   flips     a region of code, r-x, of which page by page is made writable, written, and made r-x again
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGE = 4096, THREADS = 3 };
static size_t size, pages;

static void wrong(const char *what, long a, long b) {
    printf("WRONG: %s (%ld, %ld)\n", what, a, b);
    fflush(stdout);
    _exit(1);
}

static char *map(void) {
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) wrong("mmap", 0, 0);
    return at;
}

static void protect(void *at, size_t len, int prot) {
    if (mprotect(at, len, prot)) wrong("mprotect", (long)len, prot);
}

static void handle(void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
}

// Each page begins with a function that returns the page's number, and a number that is spread over it.
static uint32_t number_of(size_t page, int seed) { return (uint32_t)(page * 2654435761u) + seed; }

static void fill(char *at, int seed) {
    for (size_t page = 0; page < pages; page++) {
        uint32_t number = number_of(page, seed), *words = (uint32_t *)(at + page * PAGE);
        for (int i = 4; i < PAGE / 4; i++) words[i] = number * i;
        unsigned char code[] = { 0xb8, 0, 0, 0, 0, 0xc3 };
        memcpy(code + 1, &number, 4);
        memcpy(words, code, sizeof code);
    }
}

static void check(const char *at, int seed, const char *what) {
    for (size_t page = 0; page < pages; page++) {
        uint32_t number = number_of(page, seed);
        const uint32_t *words = (const uint32_t *)(at + page * PAGE);
        for (int i = 4; i < PAGE / 4; i++)
            if (words[i] != number * i) wrong(what, page, i);
    }
}

static sigjmp_buf back;
static volatile int got_signal, got_code;
static void *volatile got_address;

static void note(int number, siginfo_t *info, void *context) {
    got_signal = number, got_code = info->si_code, got_address = info->si_addr;
    siglongjmp(back, 1);
}

enum { READ, WRITE, RUN };

static void refused(char *at, int how, int code, const char *what) {
    got_signal = 0;
    if (!sigsetjmp(back, 1)) {
        if (how == READ) (void)*(volatile char *)at;
        if (how == WRITE) *(volatile char *)at = 1;
        if (how == RUN) ((int (*)(void))at)();
        wrong(what, 0, 0);
    }
    if (got_signal != SIGSEGV || got_code != code) wrong(what, got_signal, got_code);
    if ((char *)got_address != at) wrong("the address of a fault", (long)at, (long)got_address);
}

static void run_all(char *at, int seed) {
#ifdef __x86_64__
    for (size_t page = 0; page < pages; page++)
        if (((uint32_t(*)(void))(at + page * PAGE))() != number_of(page, seed)) wrong("code", page, seed);
#endif
}

static void rights(void) {
    char *data = map(), *code = map(), *closed = map(), *open = map();
    fill(data, 1), fill(code, 2), fill(closed, 3), fill(open, 4);
    protect(data, size, PROT_READ);
    protect(code, size, PROT_READ | PROT_EXEC);
    protect(closed, size, PROT_NONE);
    handle(note);
    for (int round = 0; round < 2; round++) {
        check(data, 1, "read-only memory");
        check(code, 2, "code");
        check(open, 4 + round, "writable memory");
        run_all(code, 2);
        for (size_t page = 0; page < pages; page += 7) {
            refused(data + page * PAGE + 100, WRITE, SEGV_ACCERR, "a write to read-only memory");
            refused(data + page * PAGE, RUN, SEGV_ACCERR, "a call of read-only memory");
            refused(code + page * PAGE + 100, WRITE, SEGV_ACCERR, "a write to code");
            refused(closed + page * PAGE + 100, READ, SEGV_ACCERR, "a read of memory without access");
            refused(closed + page * PAGE + 200, WRITE, SEGV_ACCERR, "a write to memory without access");
        }
        fill(open, 5 + round);
    }
    protect(closed, size, PROT_READ);
    check(closed, 3, "memory that had no access");
    refused(closed, WRITE, SEGV_ACCERR, "a write to memory that can be read again");
    protect(data, size, PROT_READ | PROT_WRITE);
    for (size_t page = 0; page < pages; page++) data[page * PAGE + 5] = 7;
    fill(data, 6);
    check(data, 6, "memory that can be written again");
    printf("rights ok\n");
}

static void children(void) {
    char *data = map(), *code = map();
    fill(data, 1), fill(code, 2);
    protect(data, size, PROT_READ);
    protect(code, size, PROT_READ | PROT_EXEC);
    handle(note);
    for (int nth = 0; nth < 3; nth++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) wrong("fork", nth, 0);
        if (child == 0) {
            check(data, 1, "what a child has inherited");
            run_all(code, 2);
            refused(data + nth * PAGE, WRITE, SEGV_ACCERR, "a child's write to read-only memory");
            protect(data, size, PROT_READ | PROT_WRITE);
            fill(data, 3 + nth);
            protect(data, size, PROT_READ);
            check(data, 3 + nth, "what a child has written");
            _exit(nth);
        }
        refused(code + nth * PAGE, WRITE, SEGV_ACCERR, "a write to code");
        int status;
        if (waitpid(child, &status, 0) != child || status != nth << 8) wrong("a child", nth, status);
        check(data, 1, "what a parent has kept");
        run_all(code, 2);
    }
    printf("children ok\n");
}

static void guards(void) {
    char *data = map(), *quarter = data + size / 4;
    fill(data, 1);
    handle(note);
    int knows = !madvise(data, size, MADV_GUARD_REMOVE);
    printf("guards: %d\n", knows);
    check(data, 1, "memory without guards");
    if (!knows) return;
    if (madvise(quarter, size / 4, MADV_GUARD_INSTALL)) wrong("MADV_GUARD_INSTALL", 0, 0);
    for (size_t at = 0; at < size / 4; at += 10 * PAGE) refused(quarter + at, READ, SEGV_MAPERR, "a guard");
    protect(data, size, PROT_READ);
    if (madvise(data, size, MADV_GUARD_REMOVE)) wrong("MADV_GUARD_REMOVE", 0, 0);
    for (size_t at = 0; at < size / 4; at++)
        if (quarter[at]) wrong("what was behind a guard", at, quarter[at]);
    refused(quarter, WRITE, SEGV_ACCERR, "a write to read-only memory");
    protect(data, size, PROT_READ | PROT_WRITE);
    for (size_t page = 0; page < pages; page++) {
        uint32_t is = ((uint32_t *)(data + page * PAGE))[9];
        int was_guard = page >= pages / 4 && page < pages / 2;
        if (is != (was_guard ? 0 : number_of(page, 1) * 9)) wrong("memory beside guards", page, is);
    }
    printf("guards ok\n");
}

static char *heap;
static _Atomic unsigned char *noted;
static _Atomic int stop;
static pthread_barrier_t turn;

static void opens(int number, siginfo_t *info, void *context) {
    char *at = info->si_addr;
    if (number != SIGSEGV || at < heap || at >= heap + size) wrong("nobody's fault", number, (long)at);
    if (info->si_code != SEGV_ACCERR) wrong("a code", info->si_code, 0);
    size_t page = (at - heap) / PAGE;
    noted[page] = 1;
    protect(heap + page * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

static uint64_t mix(uint64_t x) { x *= 0x9e3779b97f4a7c15u; return x ^ x >> 29; }

static void *mutate(void *arg) {
    size_t nth = (size_t)arg;
    for (uint64_t at = nth << 40;; ) {
        pthread_barrier_wait(&turn);
        if (stop) return 0;
        for (int i = 0; i < 150; i++)
            ++*(volatile uint64_t *)(heap + mix(at++) % pages * PAGE + nth * 8);
        pthread_barrier_wait(&turn);
    }
}

static void barrier(void) {
    enum { ROUNDS = 6 };
    heap = map();
    noted = calloc(pages, 1);
    uint64_t *seen = calloc(pages, sizeof *seen), all = 0;
    for (size_t page = 0; page < pages; page++)
        for (int i = THREADS; i < PAGE / 8; i++) ((uint64_t *)(heap + page * PAGE))[i] = page * i;
    handle(opens);
    pthread_barrier_init(&turn, 0, THREADS + 1);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) pthread_create(threads + i, 0, mutate, (void *)i);
    for (int round = 0; round < ROUNDS; round++) {
        protect(heap, size, PROT_READ);
        memset((void *)noted, 0, pages);
        pthread_barrier_wait(&turn);
        // Beside them, as a collector that marks.
        for (size_t page = 0; page < pages; page++)
            for (int i = THREADS; i < PAGE / 8; i += 50)
                if (((uint64_t *)(heap + page * PAGE))[i] != page * i) wrong("the heap", page, i);
        pthread_barrier_wait(&turn);
        for (size_t page = 0; page < pages; page++) {
            uint64_t sum = 0;
            for (int i = 0; i < THREADS; i++) sum += ((uint64_t *)(heap + page * PAGE))[i];
            if ((sum != seen[page]) != noted[page]) wrong("a page and its note", page, noted[page]);
            all += sum - seen[page];
            seen[page] = sum;
        }
    }
    stop = 1;
    pthread_barrier_wait(&turn);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    if (all != ROUNDS * THREADS * 150) wrong("writes", all, 0);
    printf("barrier ok\n");
}

static void flips(void) {
    char *code = map(), *other = map();
    fill(code, 1);
    protect(code, size, PROT_READ | PROT_EXEC);
    for (size_t i = 0; i < 400; i++) {
        char *page = code + mix(i) % pages * PAGE;
        protect(page, PAGE, PROT_READ | PROT_WRITE);
        page[8] = i;
        protect(code, size, PROT_READ | PROT_EXEC);
        if (page[8] != (char)i) wrong("what was written", i, 0);
        if (i % 100 == 0) fill(other, i);
    }
    run_all(code, 1);
    check(code, 1, "code");
    printf("flips ok\n");
}

enum { PART = 24 };

// A part of PART pages, read-only, with numbers that tell which one it is, and which of its kind.
static uint64_t *new_part(uint64_t number) {
    uint64_t *part = mmap(0, PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (part == MAP_FAILED) wrong("mmap", 0, 0);
    for (size_t i = 0; i < PART * PAGE / 8; i += 64) {
        if (part[i]) wrong("new memory", i, part[i]);
        part[i] = number + i;
    }
    protect(part, PART * PAGE, PROT_READ);
    return part;
}

static void end_part(uint64_t *part, uint64_t number) {
    for (size_t i = 0; i < PART * PAGE / 8; i += 64)
        if (part[i] != number + i) wrong("a part", i, part[i]);
    munmap(part, PART * PAGE);
}

static void *replace(void *arg) {
    size_t nth = (size_t)arg, parts = pages / PART / THREADS;
    uint64_t **of = calloc(parts, sizeof *of), *now = calloc(parts, sizeof *now), next = (nth + 1) << 40;
    for (size_t i = 0; i < parts; i++) of[i] = new_part(now[i] = next += 1 << 20);
    for (int i = 0; i < 1500; i++) {
        size_t which = mix(next) % parts;
        end_part(of[which], now[which]);
        of[which] = new_part(now[which] = next += 1 << 20);
    }
    for (size_t i = 0; i < parts; i++) end_part(of[i], now[i]);
    return 0;
}

static int pipes[2];

static void *wait_for_byte(void *arg) {
    char byte;
    if (read(pipes[0], &byte, 1) != 1) wrong("read", 0, 0);
    return 0;
}

static void *wait_for_event(void *arg) {
    int of = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    epoll_ctl(of, EPOLL_CTL_ADD, pipes[0], &event);
    if (epoll_wait(of, &event, 1, -1) != 1) wrong("epoll_wait", 0, 0);
    return 0;
}

static void *wait_for_a_time(void *arg) {
    while (!stop) {
        struct timespec from, to, time = { 0, 3000000 };
        clock_gettime(CLOCK_MONOTONIC, &from);
        if ((size_t)arg ? nanosleep(&time, 0) : poll(0, 0, 3)) wrong("a sleep", (long)arg, 0);
        clock_gettime(CLOCK_MONOTONIC, &to);
        long us = (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000;
        if (us < 3000) wrong("a sleep is over too soon", us, (long)arg);
    }
    return 0;
}

enum { SENT = 256 << 10 };
static int stream[2];

// Now and then a write that its reader keeps waiting.
static void *send_all(void *arg) {
    char *bytes = calloc(SENT, 1);
    while (!stop) {
        ssize_t sent = write(stream[1], bytes, SENT);
        if (sent != SENT) wrong("a write is short", sent, 0);
        usleep(150000);
    }
    close(stream[1]);
    return 0;
}

static void *receive_slowly(void *arg) {
    static char bytes[16 << 10];
    while (read(stream[0], bytes, sizeof bytes) > 0) usleep(2000);
    return 0;
}

static void beside(void) {
    pthread_t changing[THREADS], waiting[6];
    if (pipe(pipes) || pipe(stream)) wrong("pipe", 0, 0);
    pthread_create(waiting, 0, wait_for_event, 0);
    pthread_create(waiting + 1, 0, wait_for_a_time, 0);
    pthread_create(waiting + 2, 0, wait_for_a_time, (void *)1);
    pthread_create(waiting + 4, 0, send_all, 0);
    pthread_create(waiting + 5, 0, receive_slowly, 0);
    for (size_t i = 0; i < THREADS; i++) pthread_create(changing + i, 0, replace, (void *)i);
    for (size_t i = 0; i < THREADS; i++) pthread_join(changing[i], 0);
    stop = 1;
    for (int i = 4; i < 6; i++) pthread_join(waiting[i], 0);
    if (write(pipes[1], "x", 1) != 1) wrong("write", 0, 0);
    for (int i = 0; i < 3; i++) pthread_join(waiting[i], 0);
    pthread_create(waiting + 3, 0, wait_for_byte, 0);
    pthread_join(waiting[3], 0);
    printf("beside ok\n");
}

int main(int count, char **args) {
    if (count != 3) return 2;
    size = atol(args[2]) << 20, pages = size / PAGE;
    if (!strcmp(args[1], "rights")) rights();
    if (!strcmp(args[1], "barrier")) barrier();
    if (!strcmp(args[1], "children")) children();
    if (!strcmp(args[1], "guards")) guards();
    if (!strcmp(args[1], "flips")) flips();
    if (!strcmp(args[1], "beside")) beside();
    return 0;
}
