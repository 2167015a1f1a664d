/* The kernel's time of a fault that a thread serves by itself, and of the page that leaves for it: the least
 * that such a fault can take.
 *
 *     gcc -O2 -o /tmp/floor benchmarks/pagers/floor.c && /tmp/floor
 *
 * Linux 6.8 and later. A userfaultfd for faults of user mode takes no privilege. One thread, in microseconds:
 *
 *     fault       a touch of a missing page, SIGBUS, UFFDIO_COPY in its handler, and the way back
 *     fill        UFFDIO_COPY alone
 *     apart       UFFDIO_MOVE of 5 pages of 16, of which 2 lie side by side, by four calls
 *     holes       the same by one call over the holes in between, and a look (PAGEMAP_SCAN) at what has come
 *     copy        a page moves out, another one comes by UFFDIO_COPY, and the first is freed
 *     move back   a page moves out, is written over, and moves to where another one is missing
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 16384ul
#define STAGED 64ul
#define DONT_WAKE 1
#define ALLOW_SRC_HOLES 2
#define FEATURE_MOVE (1 << 16)

/* Headers of older systems lack these two. */
struct move { uint64_t to, from, len, mode; int64_t moved; };
#define MOVE _IOWR(0xAA, 0x05, struct move)
struct region { uint64_t start, end, categories; };
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, regions_len, max_pages;
    uint64_t inverted, all_of, any_of, returned;
};
#define SCAN _IOWR('f', 16, struct scan)
#define OCCUPIED (1 << 3 | 1 << 4)

static int uffd, pagemap;
static char *memory, *staging, page[PAGE];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void need(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static char *map(unsigned long pages)
{
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(at == MAP_FAILED, "mmap");
    need(madvise(at, pages * PAGE, MADV_NOHUGEPAGE), "madvise");
    struct uffdio_register arg = {.range = {(uint64_t)at, pages * PAGE},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    need(ioctl(uffd, UFFDIO_REGISTER, &arg), "UFFDIO_REGISTER");
    return at;
}

static void copy(char *to)
{
    struct uffdio_copy arg = {.dst = (uint64_t)to, .src = (uint64_t)page, .len = PAGE, .mode = DONT_WAKE};
    need(ioctl(uffd, UFFDIO_COPY, &arg), "UFFDIO_COPY");
}

static void move(char *to, char *from, unsigned long pages, int mode)
{
    struct move arg = {(uint64_t)to, (uint64_t)from, pages * PAGE, DONT_WAKE | mode, 0};
    need(ioctl(uffd, MOVE, &arg), "UFFDIO_MOVE");
}

static void empty(char *at, unsigned long pages)
{
    need(madvise(at, pages * PAGE, MADV_DONTNEED), "MADV_DONTNEED");
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    copy((char *)((uint64_t)info->si_addr & -PAGE));
}

static double fault_us(void)
{
    empty(memory, PAGES);
    double start = now();
    for (unsigned long i = 0; i < PAGES; i++)
        *(volatile char *)(memory + i * 7919 % PAGES * PAGE);
    return (now() - start) / PAGES;
}

static double fill_us(void)
{
    empty(memory, PAGES);
    double start = now();
    for (unsigned long i = 0; i < PAGES; i++)
        copy(memory + i * PAGE);
    return (now() - start) / PAGES;
}

static const char PATTERN[16] = {1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0};
enum { REGIONS = 4 };

static void scan_staging(void)
{
    struct region regions[16];
    struct scan arg = {.size = sizeof arg,
                       .start = (uint64_t)staging,
                       .end = (uint64_t)staging + 16 * PAGE,
                       .regions = (uint64_t)regions,
                       .regions_len = 16,
                       .any_of = OCCUPIED,
                       .returned = OCCUPIED};
    need(ioctl(pagemap, SCAN, &arg) != REGIONS, "PAGEMAP_SCAN");
}

/* The time for 16 pages. */
static double group_us(int by_one_call)
{
    double sum = 0;
    empty(memory, PAGES);
    for (unsigned long i = 0; i < PAGES; i++)
        if (PATTERN[i % 16])
            copy(memory + i * PAGE);
    for (unsigned long group = 0; group < PAGES; group += 16) {
        char *from = memory + group * PAGE;
        double start = now();
        if (by_one_call) {
            move(staging, from, 16, ALLOW_SRC_HOLES);
            scan_staging();
        } else {
            for (unsigned long i = 0, len; i < 16; i += len) {
                for (len = 1; i + len < 16 && PATTERN[i + len] == PATTERN[i];)
                    len++;
                if (PATTERN[i])
                    move(staging + i * PAGE, from + i * PAGE, len, 0);
            }
        }
        sum += now() - start;
        empty(staging, 16);
    }
    return sum / (PAGES / 16);
}

/* The time of a page out and one in: pages of even numbers leave, in any order, and their neighbours come. */
static double exchange_us(int moves_back)
{
    empty(memory, PAGES);
    for (unsigned long i = 0; i < PAGES; i += 2)
        copy(memory + i * PAGE);
    double start = now();
    for (unsigned long done = 0; done < PAGES / 2; done += STAGED) {
        for (unsigned long n = 0; n < STAGED; n++) {
            char *staged = staging + n * PAGE, *out = memory + (done + n) * 2 * 1571 % PAGES * PAGE;
            move(staged, out, 1, 0);
            memset(moves_back ? staged : page, (int)n, PAGE);
            if (moves_back)
                move(out + PAGE, staged, 1, 0);
            else
                copy(out + PAGE);
        }
        if (!moves_back)
            empty(staging, STAGED);
    }
    return (now() - start) / (PAGES / 2);
}

int main(void)
{
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    need(uffd < 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | FEATURE_MOVE};
    need(ioctl(uffd, UFFDIO_API, &api), "UFFDIO_API: UFFDIO_MOVE takes Linux 6.8");
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    need(pagemap < 0, "/proc/self/pagemap");
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    need(sigaction(SIGBUS, &action, 0), "sigaction");
    memory = map(PAGES), staging = map(STAGED);
    for (int round = 0; round < 5; round++)
        printf("fault %.2f  fill %.2f  apart %.2f  holes %.2f  copy %.2f  move back %.2f\n",
               fault_us(), fill_us(), group_us(0), group_us(1), exchange_us(0), exchange_us(1));
}
