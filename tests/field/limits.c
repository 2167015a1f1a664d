// limits MIB: a program whose memory is mostly away locks some, and limits how many addresses it may have.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LOCKED_PAGES = 256, BLOCKS = 200, BLOCK = 1 << 16 };
#define LIMIT ((rlim_t)300 << 20)
static uint64_t *memory;
static size_t pages;

static void *map(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int differs(void) {
    for (size_t i = 0; i < pages; i++) {
        if (memory[i * PAGE / 8] != i) return 1;
    }
    return 0;
}

static void say(const char *what, int result) {
    printf("%s: %s\n", what, result ? strerror(errno) : "done");
}

static void lock(void) {
    say("mlock", mlock(memory, LOCKED_PAGES * PAGE));
    printf("differs %d\n", differs());
    say("munlock", munlock(memory, LOCKED_PAGES * PAGE));
    say("mlock2", mlock2(memory, LOCKED_PAGES * PAGE, MLOCK_ONFAULT));
    printf("differs %d\n", differs());
    say("munlock", munlock(memory, LOCKED_PAGES * PAGE));
    // Memory that is there already stays as it is.
    say("mlockall of what comes", mlockall(MCL_FUTURE));
    char *more = map(64 * PAGE);
    if (more != MAP_FAILED) memset(more, 7, 64 * PAGE);
    printf("differs %d %d\n", differs(), more == MAP_FAILED || more[63 * PAGE] != 7);
    say("munlockall", munlockall());
}

static void limit(void) {
    struct rlimit limit = {LIMIT, LIMIT}, told = {0, 0};
    say("setrlimit", setrlimit(RLIMIT_AS, &limit));
    say("getrlimit", getrlimit(RLIMIT_AS, &told));
    printf("told %d\n", told.rlim_cur == LIMIT && told.rlim_max == LIMIT);
    char *blocks[BLOCKS];
    int had = 0;
    while (had < BLOCKS && (blocks[had] = malloc(BLOCK)) != NULL) memset(blocks[had++], 1, BLOCK);
    printf("blocks %d\n", had);
    say("beyond the limit", map(2 * LIMIT) == MAP_FAILED ? -1 : 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(differs());
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    printf("fork: %x\n", status);
    printf("system: %x\n", system("exit 7"));
    // It cannot be raised again, unless by root.
    limit.rlim_cur = LIMIT / 2;
    say("less", setrlimit(RLIMIT_AS, &limit));
    getrlimit(RLIMIT_AS, &told);
    printf("told %d, differs %d\n", told.rlim_cur == LIMIT / 2 && told.rlim_max == LIMIT, differs());
}

int main(int count, char **args) {
    (void)count;
    pages = (size_t)atol(args[1]) << 8;
    memory = map(pages * PAGE);
    for (size_t i = 0; i < pages; i++) memory[i * PAGE / 8] = i;
    lock();
    limit();
    return 0;
}
