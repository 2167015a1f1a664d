// Memory that two processes share, of each sort that there is, beside private memory: all of it is right, and
// the second process sees what the first has written, and the other way round.
//
//   shared memfd|shm|file|sysv|anonymous MIB PRIVATE_MIB [SECONDS]
//
// `file` is a file of /dev/shm that is never mapped, only read and written. With SECONDS all of it is kept
// for so long from when it is there, for a line of memspill's that comes later: not with ALONE set.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static const char *kind;
static int fd = -1, segment;
static char name[64];

static void need(int ok, const char *what) {
    if (ok) return;
    perror(what);
    shm_unlink(name);
    _exit(3);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int is(const char *other) { return strcmp(kind, other) == 0; }

// What page number `page` holds after `rounds` rounds: noise, so that it does not compress.
static void fill(uint64_t *words, uint64_t page, uint64_t rounds) {
    uint64_t state = page * 7919 + rounds * 104729 + 1;
    for (int n = 0; n < WORDS; n++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        words[n] = state;
    }
}

// Each page of the shared memory holds what it held after `before` rounds, and is filled anew.
static void pass(char *at, size_t pages, uint64_t before) {
    uint64_t expected[WORDS], found[WORDS];
    for (size_t page = 0; page < pages; page++) {
        fill(expected, page, before);
        if (at) memcpy(found, at + page * PAGE, PAGE);
        else need(pread(fd, found, PAGE, page * PAGE) == PAGE, "pread");
        if (before > 0 && memcmp(found, expected, PAGE) != 0) {
            printf("page %zu is wrong\n", page);
            shm_unlink(name);
            exit(4);
        }
        fill(expected, page, before + 1);
        if (at) memcpy(at + page * PAGE, expected, PAGE);
        else need(pwrite(fd, expected, PAGE, page * PAGE) == PAGE, "pwrite");
    }
}

static char *map(size_t bytes) {
    if (is("file")) return NULL;
    char *at = is("sysv") ? shmat(segment, NULL, 0)
                          : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                 is("anonymous") ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    need(at != (char *)-1, "map");
    return at;
}

static void make(size_t bytes) {
    snprintf(name, sizeof name, "/field-shared-%d", getpid());
    if (is("anonymous")) return;
    if (is("sysv")) {
        segment = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
        need(segment >= 0, "shmget");
        return;
    }
    fd = is("memfd") ? memfd_create("field-heap", MFD_CLOEXEC)
                     : shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    need(fd >= 0 && ftruncate(fd, bytes) == 0, "a file");
    // Nothing is left, however this ends.
    if (!is("memfd")) shm_unlink(name);
}

int main(int argc, char **argv) {
    kind = argv[1];
    size_t pages = atol(argv[2]) << 8, private_pages = atol(argv[3]) << 8;
    double seconds = argc > 4 && !getenv("ALONE") ? atof(argv[4]) : 0;
    uint64_t *private = malloc(private_pages * PAGE + 1), expected[WORDS];
    make(pages * PAGE);
    char *at = map(pages * PAGE);
    // It goes with the last of its processes.
    if (is("sysv")) need(shmctl(segment, IPC_RMID, NULL) == 0, "shmctl");
    pass(at, pages, 0);
    // Private memory comes last: it waits for room, and shared memory does not.
    for (size_t page = 0; page < private_pages; page++) fill(private + page * WORDS, page, 7);
    double end = now() + seconds;
    for (int round = 1; round <= 3; round += 2) {
        pid_t child = fork();
        need(child >= 0, "fork");
        if (child == 0) {
            // By a mapping of its own, where it can have one.
            pass(is("memfd") || is("shm") ? map(pages * PAGE) : at, pages, round);
            _exit(0);
        }
        int status;
        need(waitpid(child, &status, 0) == child && status == 0, "the child");
        pass(at, pages, round + 1);
        for (size_t page = 0; page < private_pages; page++) {
            fill(expected, page, 7);
            if (memcmp(private + page * WORDS, expected, PAGE) == 0) continue;
            printf("private page %zu is wrong\n", page);
            return 5;
        }
    }
    while (now() < end) usleep(10000);
    printf("%s: right\n", kind);
    return 0;
}
