/* A library that takes out about half of the program that it is loaded into, again and again: for programs as
 * they are. Its thread is one of the program's. At the program's end it writes how many pages came back to
 * the file that EVICTOR_TALLY names. */
#include "store.h"

#define MAPS_MAX (1 << 18)

/* Shared memory, which cannot be taken out. */
static char *maps;
static uint64_t *present;
static char tally[512];

static void take_some(uintptr_t start, uintptr_t end, int pagemap, uint64_t *seed)
{
    for (uintptr_t at = start; at < end; at += 64 * PAGE) {
        size_t count = (end - at) / PAGE < 64 ? (end - at) / PAGE : 64;
        uint64_t wanted = 0;
        if (draw(seed) % 2)
            continue;
        if (pread(pagemap, present, count * 8, at / PAGE * 8) != (ssize_t)(count * 8))
            return;
        for (size_t i = 0; i < count; i++)
            wanted |= (uint64_t)(present[i] >> 63) << i;
        /* Now all of a chunk, now some of it. */
        if (draw(seed) % 2)
            wanted &= draw(seed);
        if (wanted)
            syscall(TAKE_OUT, at, count, wanted);
    }
}

static void round_of(int list, int pagemap, uint64_t *seed)
{
    size_t len = 0;
    ssize_t got;
    while (len < MAPS_MAX - 1 && (got = read(list, maps + len, MAPS_MAX - 1 - len)) > 0)
        len += got;
    maps[len] = 0;
    for (char *line = maps, *next; *line && (next = strchr(line, '\n')); line = next + 1) {
        char *rest, *at;
        uintptr_t start = strtoul(line, &rest, 16), end = strtoul(rest + 1, &rest, 16);
        *next = 0;
        if (strncmp(rest, " rw-p", 5) || end >= 1ul << 47)
            continue;
        /* Behind the offset: the device, the inode. */
        at = strchr(rest + 6, ' ');
        if (at && !strncmp(at, " 00:00 0", 8) && end - start < 1ul << 32)
            take_some(start, end, pagemap, seed);
    }
}

/* Opens a file where it does not come between the program's own descriptors. */
static int open_high(const char *path)
{
    int low = open(path, O_RDONLY | O_CLOEXEC), high = fcntl(low, F_DUPFD_CLOEXEC, 900);
    close(low);
    return high;
}

static void *evict(void *arg)
{
    uint64_t seed = 99 + getpid();
    int rw = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    maps = mmap(0, MAPS_MAX, rw, flags, -1, 0);
    present = mmap(0, PAGE, rw, flags, -1, 0);
    while (maps != MAP_FAILED && present != MAP_FAILED) {
        int list = open_high("/proc/self/maps"), pagemap = open_high("/proc/self/pagemap");
        round_of(list, pagemap, &seed);
        close(list), close(pagemap);
        usleep(10000);
    }
    return arg;
}

static void start_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, 0, evict, 0);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

__attribute__((constructor)) static void start(void)
{
    if (getenv("EVICTOR_TALLY"))
        strncpy(tally, getenv("EVICTOR_TALLY"), sizeof tally - 1);
    if (store_start(1 << 17))
        return;
    pthread_atfork(0, 0, start_thread);
    start_thread();
}

__attribute__((destructor)) static void end(void)
{
    char line[32];
    int file = open(tally, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int len = snprintf(line, sizeof line, "%lu\n", counted(0));
    if (file >= 0 && write(file, line, len) == len)
        close(file);
}
