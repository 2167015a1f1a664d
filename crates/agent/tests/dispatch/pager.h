/* A pager inside the program that it pages, for the tests of the dispatch: an arena whose pages are taken out
 * and brought back. Without the dispatch by a userfaultfd that sees faults of user mode only (pager.c), so
 * that a system call on a page that is away is EFAULT; with it by the agent (../windows/pager.c). */
#ifndef PAGER_H
#define PAGER_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul

/* Ends the test: what is checked does not hold. */
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            int check_error = errno;                                                                         \
            printf("line %d: %s (%s)\n", __LINE__, #what, strerror(check_error));                            \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* Makes an arena of so many pages. */
void arena_start(size_t pages);
/* The arena, and memory in it that crosses the border of two pages in its middle. Never freed. */
extern unsigned char *arena;
extern size_t arena_pages;
void *across(size_t len);
/* A page-aligned piece of it. */
void *whole(size_t len);
/* Forgets all that was had from it. */
void arena_reset(void);
/* How much of it is in use. */
size_t arena_used(void);
/* All that no call uses is taken out when this returns. */
void away(void);
/* Takes out without end, until called with 0. */
void evict_always(int on);
/* How many pages were brought back. */
unsigned long brought(void);
/* Whether system calls are trapped. */
int is_armed(void);

/* The tests, by file. */
struct test {
    const char *name;
    void (*run)(void);
};
extern const struct test lost_tests[], call_tests[], signal_tests[], thread_tests[];

#endif
