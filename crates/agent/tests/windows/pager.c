/* The pager of ../dispatch/pager.h once more, by windows: with it the tests of the dispatch show that its
 * system calls find their pages, and its signals their stacks, when what is away is a guard marker. */
#include "../dispatch/pager.h"

#define ASK_DISPATCH 0x6d73
#define TAKE_OUT 0x6d76
#define WINDOW_COUNTS 0x6d78

int store_start(size_t pages);

unsigned char *arena;
size_t arena_pages;
static size_t next_free;
static atomic_int always, is_evicting;

int is_armed(void)
{
    return syscall(ASK_DISPATCH) > 0;
}

static long take(size_t first, size_t count)
{
    return syscall(TAKE_OUT, arena + first * PAGE, count, ~0ul);
}

/* A chunk ends where a call uses a page: what is behind it is taken page by page. */
void away(void)
{
    for (size_t first = 0; first < arena_pages; first += 64) {
        size_t count = arena_pages - first < 64 ? arena_pages - first : 64;
        if (take(first, count) != (long)count)
            for (size_t i = 0; i < count; i++)
                take(first + i, 1);
    }
}

static void *evict(void *arg)
{
    unsigned seed = 1;
    for (;;) {
        size_t first = rand_r(&seed) % arena_pages;
        if (atomic_load(&always))
            take(first, arena_pages - first < 16 ? arena_pages - first : 16);
        else
            usleep(1000);
    }
    return arg;
}

void evict_always(int on)
{
    pthread_t thread;
    sigset_t all, before;
    atomic_store(&always, on);
    if (!on || atomic_exchange(&is_evicting, 1))
        return;
    /* From its first moment none of the program's signals is for this thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CHECK(pthread_create(&thread, 0, evict, 0) == 0);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

void arena_start(size_t pages)
{
    CHECK(store_start(1 << 14) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    arena_pages = pages;
    arena = mmap(0, (pages + 2) * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(arena != MAP_FAILED);
    arena += PAGE;
    mprotect(arena - PAGE, PAGE, PROT_NONE);
    mprotect(arena + pages * PAGE, PAGE, PROT_NONE);
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

unsigned long brought(void)
{
    return syscall(WINDOW_COUNTS, 0);
}
