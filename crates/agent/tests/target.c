/* The program that the agent's tests run: argv[1] says what it does. It answers on stdout, a line at a
 * time, and waits for a line on stdin where the test has to act. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 160

static void wait_line(void)
{
    char c;
    do {
        if (read(0, &c, 1) != 1)
            _exit(3);
    } while (c != '\n');
}

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 31 + i / PAGE * 7 + 1);
}

static unsigned char *buffer(void)
{
    unsigned char *p = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(4);
    madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < PAGES * PAGE; i++)
        p[i] = pattern(i);
    return p;
}

static const char *verify(const unsigned char *p)
{
    for (size_t i = 0; i < PAGES * PAGE; i++)
        if (p[i] != pattern(i))
            return "bad";
    return "good";
}

/* What a program can see of the agent: the next descriptor, the number of its threads, its signal mask. */
static void self(void)
{
    int fd = open("/dev/null", O_RDONLY);
    FILE *f = fopen("/proc/self/status", "r");
    char line[256], threads[64] = "", blocked[64] = "";
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "Threads: %63s", threads);
        sscanf(line, "SigBlk: %63s", blocked);
    }
    fclose(f);
    close(fd);
    printf("fd %d threads %s blocked %s errno %d\n", fd, threads, blocked, errno);
}

static void grow(void)
{
    wait_line();
    for (int i = 0; i < 40; i++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
        unsigned char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
        unsigned char resident = 9;
        mincore(p, PAGE, &resident);
        printf("map %p %d\n", (void *)p, resident & 1);
        if (i == 39) {
            unsigned char *q = mremap(p, 1 << 20, 4 << 20, MREMAP_MAYMOVE);
            printf("remap %p\n", (void *)q);
        }
    }
    /* None of these is the pager's business. */
    mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = vfork();
    if (child == 0) {
        mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        _exit(0);
    }
    waitpid(child, 0, 0);
    errno = 0;
    void *none = mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int error = errno;
    void *no_remap = mremap(0, PAGE, 2 * PAGE, 0);
    printf("errors %d %d %d %d\n", none == MAP_FAILED, error == EINVAL, no_remap == MAP_FAILED,
           errno == EFAULT);
}

static int map_once(void)
{
    unsigned char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    p[0] = p[(1 << 20) - 1] = 1;
    return munmap(p, 1 << 20) == 0;
}

static volatile int storm_failed;

static void on_alarm(int signal)
{
    int saved = errno;
    (void)signal;
    if (!map_once())
        storm_failed = 1;
    errno = saved;
}

static void *storm_thread(void *arg)
{
    for (int i = 0; i < 500; i++)
        if (!map_once())
            storm_failed = 1;
    return arg;
}

/* Threads that map, a signal handler that maps in the middle of it, and forks of it all. */
static void storm(void)
{
    pthread_t threads[4];
    struct itimerval timer = {{0, 700}, {0, 700}};
    signal(SIGALRM, on_alarm);
    wait_line();
    setitimer(ITIMER_REAL, &timer, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, storm_thread, 0);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(map_once() ? 0 : 1);
        int status = 1;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        if (status)
            storm_failed = 1;
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    printf("storm %s\n", storm_failed ? "failed" : "over");
}

/* Advice that is taken, advice that is not, and advice for a range with a hole at its end. */
static void advise(void)
{
    unsigned char *p = buffer();
    size_t len = PAGES * PAGE;
    /* Nothing lies behind it. */
    unsigned char *q = mmap(0, 2 * len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, q);
    munmap(q + len, len);
    printf("at %p\n", (void *)p);
    wait_line();
    int out = madvise(p, len, MADV_PAGEOUT);
    int cold = madvise(p, len, MADV_COLD);
    int needed = madvise(p, len, MADV_WILLNEED);
    int errors[3] = {0};
    if (madvise(p + 1, PAGE, MADV_PAGEOUT))
        errors[0] = errno;
    if (madvise(p, (size_t)-PAGE, MADV_PAGEOUT))
        errors[1] = errno;
    if (madvise(p, 2 * len, MADV_PAGEOUT))
        errors[2] = errno;
    printf("advised %d %d %d errors %d %d %d %s\n", out, cold, needed, errors[0], errors[1], errors[2],
           verify(p));
}

int main(int argc, char **argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "self")) {
        self();
    } else if (!strcmp(mode, "buffer") || !strcmp(mode, "locked")) {
        unsigned char *p = buffer();
        if (!strcmp(mode, "locked") && mlock(p, 4 * PAGE))
            return 5;
        printf("at %p\n", (void *)p);
        for (;;) {
            wait_line();
            printf("%s\n", verify(p));
        }
    } else if (!strcmp(mode, "fork")) {
        unsigned char *p = buffer();
        printf("at %p\n", (void *)p);
        wait_line();
        pid_t child = fork();
        if (child == 0) {
            printf("child %d\n", (int)getpid());
            wait_line();
            printf("child %s\n", verify(p));
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        printf("parent %s %d\n", verify(p), status);
    } else if (!strcmp(mode, "grow")) {
        grow();
    } else if (!strcmp(mode, "advise")) {
        advise();
    } else if (!strcmp(mode, "storm")) {
        storm();
    }
    return 0;
}
