/* The pager of pager.h, without the dispatch: it shows what is lost in calls whose faults nobody serves. */
#include "pager.h"

#ifndef UFFDIO_MOVE
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif

unsigned char *arena;
size_t arena_pages;
static size_t next_free;
static unsigned char *staging, *store;
/* What is the pager's thread's alone: 0 never seen, 1 present, 2 away. */
static unsigned char *state;
static int uffd;
static atomic_int wanted, always;
static atomic_uint done;
static atomic_ulong brought_count;

int is_armed(void)
{
    return 0;
}

static int is_there(uint64_t at)
{
    unsigned char there = 0;
    CHECK(mincore((void *)at, PAGE, &there) == 0);
    return there & 1;
}

static void take_out(size_t page)
{
    uint64_t at = (uint64_t)arena + page * PAGE;
    struct uffdio_move move = {(uint64_t)staging, at, PAGE, 0, 0};
    if (state[page] != 1)
        return;
    /* Since Linux 6.18 it fails at times (EAGAIN) and has moved the page all the same: left in staging that
     * would be lost, and nothing could be moved any more. */
    if (ioctl(uffd, UFFDIO_MOVE, &move) && (!is_there((uint64_t)staging) || is_there(at)))
        return;
    memcpy(store + page * PAGE, staging, PAGE);
    madvise(staging, PAGE, MADV_DONTNEED);
    state[page] = 2;
}

static void batch(int all)
{
    static unsigned seed = 1;
    size_t first = all ? 0 : rand_r(&seed) % arena_pages, count = all ? arena_pages : 16;
    for (size_t i = 0; i < count; i++)
        take_out((first + i) % arena_pages);
}

static void bring(uint64_t at)
{
    size_t page = (at - (uint64_t)arena) / PAGE;
    at &= ~(PAGE - 1);
    int failed;
    if (page < arena_pages && state[page] == 2) {
        struct uffdio_copy copy = {at, (uint64_t)(store + page * PAGE), PAGE, 0, 0};
        atomic_fetch_add(&brought_count, 1);
        failed = ioctl(uffd, UFFDIO_COPY, &copy);
    } else {
        struct uffdio_zeropage zero = {{at, PAGE}, 0, 0};
        failed = ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
    }
    if (failed) {
        struct uffdio_range range = {at, PAGE};
        ioctl(uffd, UFFDIO_WAKE, &range);
    } else if (page < arena_pages) {
        state[page] = 1;
    }
}

static void *pager_thread(void *arg)
{
    for (;;) {
        struct pollfd entry = {uffd, POLLIN, 0};
        poll(&entry, 1, atomic_load(&wanted) || atomic_load(&always) ? 0 : 1);
        struct uffd_msg messages[16];
        ssize_t got = read(uffd, messages, sizeof messages);
        for (ssize_t i = 0; i < got / (ssize_t)sizeof messages[0]; i++)
            if (messages[i].event == UFFD_EVENT_PAGEFAULT)
                bring(messages[i].arg.pagefault.address);
        if (atomic_load(&wanted)) {
            batch(1);
            atomic_store(&wanted, 0);
            atomic_fetch_add(&done, 1);
        } else if (atomic_load(&always)) {
            batch(0);
        }
    }
    return arg;
}

static void *map(size_t len)
{
    void *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void watch(void *at, size_t len)
{
    struct uffdio_register what = {{(uint64_t)at, len}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(ioctl(uffd, UFFDIO_REGISTER, &what) == 0);
}

void arena_start(size_t pages)
{
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_MOVE, 0};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) {
        puts("SKIPPED: no userfaultfd with UFFDIO_MOVE");
        exit(0);
    }
    arena_pages = pages;
    state = map(pages);
    store = map(pages * PAGE);
    staging = map(3 * PAGE) + PAGE;
    arena = (unsigned char *)map((pages + 2) * PAGE) + PAGE;
    mprotect(arena - PAGE, PAGE, PROT_NONE);
    mprotect(arena + pages * PAGE, PAGE, PROT_NONE);
    madvise(arena, pages * PAGE, MADV_NOHUGEPAGE);
    watch(arena, pages * PAGE);
    watch(staging, PAGE);
    pthread_t thread;
    sigset_t all, before;
    /* From its first moment none of the program's signals is for this thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CHECK(pthread_create(&thread, 0, pager_thread, 0) == 0);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

void *whole(size_t len)
{
    next_free = (next_free + PAGE - 1) & ~(PAGE - 1);
    unsigned char *at = arena + next_free;
    next_free += (len + PAGE - 1) & ~(PAGE - 1);
    CHECK(next_free <= arena_pages * PAGE);
    return at;
}

void *across(size_t len)
{
    size_t pages = (len + PAGE - 1) / PAGE + 2;
    size_t before = len < 2 * PAGE ? len / 2 & ~3ul : 2048;
    if (len > 8 && before % 8)
        before -= 4;
    unsigned char *at = (unsigned char *)whole(pages * PAGE) + PAGE - before;
    memset(at, 0, len);
    return at;
}

void arena_reset(void)
{
    next_free = 0;
}

size_t arena_used(void)
{
    return next_free;
}

void away(void)
{
    unsigned before = atomic_load(&done);
    atomic_store(&wanted, 1);
    while (atomic_load(&done) == before)
        sched_yield();
}

void evict_always(int on)
{
    atomic_store(&always, on);
    if (!on)
        away();
}

unsigned long brought(void)
{
    return atomic_load(&brought_count);
}
