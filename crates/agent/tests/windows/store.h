/* A store without compression in memory that is shared with the children of forks, for the tests of paging by
 * windows: what crates/agent/src/agent/pages/source.rs calls a Source. */
#ifndef STORE_H
#define STORE_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define USE_SOURCE 0x6d75
#define TAKE_OUT 0x6d76
#define FILL_AT_ONCE 0x6d77
#define WINDOW_COUNTS 0x6d78

/* Ends the test: what is checked does not hold. */
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            int check_error = errno;                                                                         \
            printf("line %d: %s (%s)\n", __LINE__, #what, strerror(check_error));                            \
            fflush(stdout);                                                                                  \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

/* Makes the store of so many pages, and has this process paged into it. Else than 0: it is not paged by
 * windows. */
int store_start(size_t pages);
/* Takes out `count` pages from `at` on: how many went. */
size_t take_out(void *at, size_t count);
/* Slots that hold something. */
size_t store_used(void);
/* 0 pages brought, 1 of them by window, 2 taken out, 3 waits. */
unsigned long counted(int which);

/* How many system calls a function of the C library makes that the agent can rewrite, but has not; and how
 * many it has. */
static inline void sites_of(const void *function, int *left, int *rewritten)
{
    const unsigned char *code = function;
    *left = *rewritten = 0;
    for (int at = 0; at < 116; at++) {
        const unsigned char *next = code + at + 5;
        int is_call = next[0] == 0x0f && next[1] == 5 && next[2] == 0x48 && next[3] == 0x3d;
        int is_zero = next[-2] == 0x31 && next[-1] == 0xc0, jumps = next[-2] == 0xeb;
        *left += is_call && (code[at] == 0xb8 || is_zero);
        *rewritten += is_call && (code[at] == 0xe9 || jumps);
    }
}

static inline uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return *seed;
}
#endif
