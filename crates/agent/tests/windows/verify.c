/* The verifier: threads increment words of their own in pages that they share, and know what is in each; an
 * evictor takes random runs of these pages out meanwhile. With "changes" a thread discards, replaces, moves
 * and protects regions, with "calls" words go through pipes, with "forks" children do the same with what they
 * have inherited.
 *
 *   verify SECONDS [changes] [calls] [forks] [alone] [huge]
 *
 * The last line says how many words were wrong. "alone": one thread, which takes out pages by itself.
 * "huge": in a huge page. */
#include "store.h"

#define REGIONS 32
#define REGION_PAGES 16
#define PAGES (REGIONS * REGION_PAGES)
#define WORKERS 3

static unsigned char *arena, *elsewhere;
static uint64_t expected[WORKERS][PAGES];
/* How many use a region; -1: it is changed. */
static _Atomic int users[REGIONS];
/* Who wants to change it, whom the users let pass. */
static _Atomic int wanted[REGIONS];
static _Atomic int stop;
static _Atomic unsigned long wrong, rounds, changes, children;
static int does_change, does_call, does_fork, is_alone, is_huge;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int use(int region)
{
    int seen = atomic_load(&users[region]);
    if (seen >= 0 && !atomic_load(&wanted[region]) &&
        atomic_compare_exchange_strong(&users[region], &seen, seen + 1))
        return 1;
    sched_yield();
    return 0;
}

static void own(int region)
{
    int none = 0;
    atomic_fetch_add(&wanted[region], 1);
    while (!atomic_compare_exchange_weak(&users[region], &none, -1)) {
        none = 0;
        sched_yield();
    }
    atomic_fetch_sub(&wanted[region], 1);
}

static volatile uint64_t *word(unsigned char *base, int worker, int page)
{
    return (volatile uint64_t *)(base + page * PAGE + worker * 1288 + 16);
}

static void found(const char *what, int worker, int page, uint64_t got, uint64_t right)
{
    if (atomic_fetch_add(&wrong, 1) < 4)
        printf("%s: worker %d, page %d: %lx, not %lx\n", what, worker, page, got, right);
}

static void check(const char *what, unsigned char *base, int worker, int page)
{
    uint64_t got = *word(base, worker, page), right = expected[worker][page];
    if (got != right) {
        found(what, worker, page, got, right);
        expected[worker][page] = got;
    }
}

static void through_pipe(int *tube, int worker, int page)
{
    uint64_t got, *at = (uint64_t *)word(arena, worker, page), *other = at + 1 + expected[worker][page] % 64;
    if (write(tube[1], at, 8) != 8 || read(tube[0], other, 8) != 8)
        found(strerror(errno), worker, page, 0, 0), exit(1);
    else if ((got = *(volatile uint64_t *)other) != expected[worker][page])
        found("pipe", worker, page, got, expected[worker][page]);
}

static void *work(void *arg)
{
    int worker = (long)arg, tube[2];
    uint64_t seed = 88172645463325252ull * (worker + 1) + getpid();
    CHECK(pipe(tube) == 0);
    while (!atomic_load(&stop)) {
        int page = draw(&seed) % PAGES, region = page / REGION_PAGES;
        if (!use(region))
            continue;
        check("word", arena, worker, page);
        *word(arena, worker, page) = ++expected[worker][page];
        if (does_call && draw(&seed) % 8 == 0)
            through_pipe(tube, worker, page);
        atomic_fetch_sub(&users[region], 1);
        atomic_fetch_add(&rounds, 1);
        if (is_alone && draw(&seed) % 8 == 0)
            take_out(arena + draw(&seed) % PAGES * PAGE, 1 + draw(&seed) % 16);
        if (is_alone && atomic_load(&rounds) % 1000 == 0 && now() > *(double *)elsewhere)
            break;
    }
    close(tube[0]), close(tube[1]);
    return 0;
}

static int slow_tube[2];

/* Waits in a call for what is written into pages that everybody shares. Its words are behind those of the
 * workers. */
static void *wait_in_calls(void *arg)
{
    uint64_t seed = 99 + getpid();
    while (!atomic_load(&stop)) {
        int page = draw(&seed) % PAGES, region = page / REGION_PAGES;
        uint64_t *at = (uint64_t *)(arena + page * PAGE + PAGE - 64);
        if (!use(region))
            continue;
        if (read(slow_tube[0], at, 8) != 8)
            found(strerror(errno), 99, page, 0, 0);
        else if (*(volatile uint64_t *)at != 4711)
            found("waited", 99, page, *at, 4711);
        atomic_fetch_sub(&users[region], 1);
    }
    return arg;
}

static void *write_slowly(void *arg)
{
    uint64_t value = 4711;
    while (!atomic_load(&stop)) {
        usleep(1000);
        CHECK(write(slow_tube[1], &value, 8) == 8);
    }
    return arg;
}

static void *evict(void *arg)
{
    uint64_t seed = 1234567 + getpid();
    while (!atomic_load(&stop)) {
        int first = draw(&seed) % PAGES, count = 1 + draw(&seed) % 64;
        take_out(arena + first * PAGE, first + count > PAGES ? PAGES - first : count);
    }
    return arg;
}

static void forget(int region)
{
    for (int worker = 0; worker < WORKERS; worker++)
        memset(&expected[worker][region * REGION_PAGES], 0, REGION_PAGES * 8);
}

static void check_region(const char *what, unsigned char *base, int region)
{
    for (int worker = 0; worker < WORKERS; worker++)
        for (int page = region * REGION_PAGES; page < (region + 1) * REGION_PAGES; page++)
            check(what, base, worker, page);
}

static void change(int region, int how)
{
    size_t len = REGION_PAGES * PAGE, at = region * len;
    unsigned char *away = elsewhere + PAGE + at;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, rw = PROT_READ | PROT_WRITE;
    switch (how) {
    case 0:
        CHECK(madvise(arena + at, len, MADV_DONTNEED) == 0);
        forget(region);
        break;
    case 1:
        CHECK(mmap(arena + at, len, rw, flags, -1, 0) == arena + at);
        forget(region);
        break;
    case 2:
        CHECK(mremap(arena + at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away);
        check_region("moved", away - at, region);
        CHECK(mremap(away, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, arena + at) == arena + at);
        break;
    case 3:
        CHECK(mprotect(arena + at, len, PROT_READ) == 0);
        check_region("read-only", arena, region);
        CHECK(mprotect(arena + at, len, rw) == 0);
        break;
    case 4:
        CHECK(mprotect(arena + at, len, PROT_NONE) == 0 && mprotect(arena + at, len, rw) == 0);
        break;
    case 5:
        CHECK(mremap(arena + at, len, len / 2, 0) == arena + at);
        CHECK(mmap(arena + at + len / 2, len / 2, rw, flags, -1, 0) != MAP_FAILED);
        for (int worker = 0; worker < WORKERS; worker++)
            memset(&expected[worker][region * REGION_PAGES + REGION_PAGES / 2], 0, REGION_PAGES / 2 * 8);
        break;
    case 6:
        CHECK(mlock(arena + at, len) == 0 || errno == EPERM || errno == ENOMEM);
        CHECK(munlock(arena + at, len) == 0);
        break;
    case 7:
        CHECK(munmap(arena + at, len) == 0);
        CHECK(mmap(arena + at, len, rw, flags, -1, 0) == arena + at);
        forget(region);
        break;
    }
    check_region("changed", arena, region);
}

static void *change_always(void *arg)
{
    uint64_t seed = 424242 + getpid();
    while (!atomic_load(&stop)) {
        int region = draw(&seed) % REGIONS;
        own(region);
        change(region, draw(&seed) % 8);
        atomic_store(&users[region], 0);
        atomic_fetch_add(&changes, 1);
    }
    return arg;
}

ssize_t __write(int, const void *, size_t), __read(int, void *, size_t);

/* Calls of the C library without a trap must keep what they use, as others do. */
static int rewritten_sites(void)
{
    int left, rewritten, left_of_read, rewritten_of_read;
    sites_of(__write, &left, &rewritten);
    sites_of(__read, &left_of_read, &rewritten_of_read);
    CHECK(left == 0 && left_of_read == 0);
    return rewritten + rewritten_of_read;
}

static void run(double seconds)
{
    pthread_t threads[WORKERS + 4];
    long count = 0;
    atomic_store(&stop, 0);
    *(double *)elsewhere = now() + seconds;
    if (is_alone) {
        work(0);
    } else {
        for (long worker = 0; worker < WORKERS; worker++)
            CHECK(pthread_create(&threads[count++], 0, work, (void *)worker) == 0);
        CHECK(pthread_create(&threads[count++], 0, evict, 0) == 0);
        if (does_change)
            CHECK(pthread_create(&threads[count++], 0, change_always, 0) == 0);
        if (does_call) {
            CHECK(pipe(slow_tube) == 0);
            CHECK(pthread_create(&threads[count++], 0, wait_in_calls, 0) == 0);
            CHECK(pthread_create(&threads[count++], 0, write_slowly, 0) == 0);
        }
    }
}

static void end_run(void)
{
    uint64_t value = 4711;
    atomic_store(&stop, 1);
    if (does_call && !is_alone)
        CHECK(write(slow_tube[1], &value, 8) == 8);
}

static void check_all(const char *what)
{
    for (int region = 0; region < REGIONS; region++)
        check_region(what, arena, region);
}

/* A child checks what it has inherited, goes on with it for a while, and checks again. */
static void child(void)
{
    atomic_store(&wrong, 0);
    for (int region = 0; region < REGIONS; region++)
        atomic_store(&users[region], 0), atomic_store(&wanted[region], 0);
    check_all("inherited");
    run(0.15);
    if (!is_alone)
        usleep(150000);
    end_run();
    for (int region = 0; region < REGIONS; region++)
        own(region);
    check_all("child");
    /* Its evictor may have taken something out since: that slot would have nobody to give it back. */
    CHECK(munmap(arena, PAGES * PAGE) == 0);
    _exit(atomic_load(&wrong) != 0);
}

static void fork_once(void)
{
    int status;
    for (int region = 0; region < REGIONS; region++)
        own(region);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        child();
    CHECK(pid > 0);
    for (int region = 0; region < REGIONS; region++)
        atomic_store(&users[region], 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status) {
        printf("child: status %x\n", status);
        atomic_fetch_add(&wrong, 1);
    }
    atomic_fetch_add(&children, 1);
}

int main(int argc, char **argv)
{
    double seconds = atof(argv[1]);
    for (int i = 2; i < argc; i++) {
        does_change |= !strcmp(argv[i], "changes");
        does_call |= !strcmp(argv[i], "calls");
        does_fork |= !strcmp(argv[i], "forks");
        is_alone |= !strcmp(argv[i], "alone");
        is_huge |= !strcmp(argv[i], "huge");
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    CHECK(store_start(1 << 15) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
    arena = mmap(0, PAGES * PAGE, rw, flags, -1, 0);
    elsewhere = mmap(0, (PAGES + 1) * PAGE, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED && elsewhere != MAP_FAILED);
    if (is_huge) {
        uintptr_t room = (uintptr_t)mmap(0, 2 * PAGES * PAGE, rw, flags, -1, 0);
        arena = (unsigned char *)((room + PAGES * PAGE - 1) & ~(PAGES * PAGE - 1));
        CHECK(madvise(arena, PAGES * PAGE, MADV_HUGEPAGE) == 0 || errno == EINVAL);
        *(volatile uint64_t *)arena = 0;
    }
    double end = now() + seconds;
    run(seconds);
    while (!is_alone && now() < end) {
        usleep(20000);
        if (does_fork)
            fork_once();
    }
    if (is_alone && does_fork)
        fork_once();
    end_run();
    for (int region = 0; region < REGIONS; region++)
        own(region);
    check_all("end");
    CHECK(munmap(arena, PAGES * PAGE) == 0);
    printf("%lu rounds, %lu changes, %lu children, %lu taken out, %lu brought, %lu by window, %lu waits, "
           "%d sites, %zu slots left, %lu wrong\n",
           rounds, changes, children, counted(2), counted(0), counted(1), counted(3),
           is_alone ? 0 : rewritten_sites(), store_used(), wrong);
    return wrong != 0;
}
