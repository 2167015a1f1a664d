// Recursion on the main stack, in a process and in its forked child: what is below the current frame can be
// swapped out.
//
// usage: deep-stack MIB ENVIRONMENT_BYTES; prints the most anonymous memory (RssAnon, in MiB) that the parent
// has had, or what went wrong.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FRAME_WORDS = 500, FRAMES_PER_MIB = 256 };
static long most_kib;

static void look(void) {
    static char text[4096];
    int status = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(status, text, sizeof text - 1);
    close(status);
    text[length > 0 ? length : 0] = 0;
    char *line = strstr(text, "RssAnon:");
    if (line && atol(line + 8) > most_kib)
        most_kib = atol(line + 8);
}

static void check(int holds, const char *what) {
    if (!holds) {
        printf("%s\n", what);
        fflush(stdout);
        _exit(1);
    }
}

// The C library finds the stack's size by the mappings around it: it must still be one mapping.
static void check_size(size_t depth_bytes) {
    pthread_attr_t attributes;
    size_t bytes = 0;
    check(pthread_getattr_np(pthread_self(), &attributes) == 0, "no attributes");
    void *lowest;
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
    check(bytes > depth_bytes, "the stack is shorter than what is on it");
}

__attribute__((noinline)) static uint64_t deep(size_t left, size_t depth) {
    volatile uint64_t frame[FRAME_WORDS];
    for (int at = 0; at < FRAME_WORDS; at += 50)
        frame[at] = left * FRAME_WORDS + at;
    if (left % 1024 == 0)
        look();
    if (left == 0)
        check_size(depth * sizeof frame);
    uint64_t sum = left ? deep(left - 1, depth + 1) : 0;
    for (int at = 0; at < FRAME_WORDS; at += 50)
        check(frame[at] == left * FRAME_WORDS + at, "a frame has changed");
    return sum + frame[0];
}

// /proc/PID/environ shows no page that is swapped out.
static void check_environment(size_t bytes) {
    static char text[1 << 18];
    int environment = open("/proc/self/environ", O_RDONLY);
    size_t length = 0;
    for (ssize_t more; (more = read(environment, text + length, sizeof text - length)) > 0;)
        length += more;
    close(environment);
    check(length >= bytes, "the environment is not to be read");
}

int main(int argc, char **argv) {
    size_t frames = (argc > 1 ? strtoul(argv[1], NULL, 10) : 300) * FRAMES_PER_MIB;
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY) {
        // It counts from exec on.
        limit.rlim_cur = limit.rlim_max;
        check(limit.rlim_max == RLIM_INFINITY && setrlimit(RLIMIT_STACK, &limit) == 0,
            "no larger stack is allowed");
        execv("/proc/self/exe", argv);
    }
    uint64_t sum = deep(frames, 0);
    pid_t child = fork();
    if (child == 0) {
        check(deep(frames, 0) == sum, "the child counts otherwise");
        _exit(0);
    }
    check(deep(frames / 2, 0) > 0, "the parent counts otherwise");
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child has failed");
    check_environment(argc > 2 ? strtoul(argv[2], NULL, 10) : 0);
    printf("%ld\n", most_kib >> 10);
    return 0;
}
