// other_network MIB: children in network namespaces of their own use memory that their parent has filled,
// fill it anew, fork and run programs.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static uint64_t *memory;
static size_t pages;

static void fill(uint64_t seed) {
    for (size_t i = 0; i < pages; i++) memory[i * PAGE / 8 + 3] = i * 3 + seed;
}

static int differs(uint64_t seed) {
    for (size_t i = 0; i < pages; i++) {
        if (memory[i * PAGE / 8 + 3] != i * 3 + seed) return 1;
    }
    return 0;
}

static int ended(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static int use(void) {
    int bad = differs(1);
    fill(2);
    bad |= differs(2) << 1;
    pid_t child = fork();
    if (child == 0) _exit(differs(2));
    bad |= (ended(child) != 0) << 2;
    bad |= (system("exit 7") != 7 << 8) << 3;
    return bad | differs(2) << 4;
}

int main(int count, char **args) {
    (void)count;
    pages = (size_t)atol(args[1]) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(1);
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNET)) _exit(100 + errno);
        _exit(use());
    }
    printf("unshare: %x\n", ended(child));
    fflush(stdout);
    child = syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(use());
    printf("clone: %x %s\n", child < 0 ? 0 : ended(child), child < 0 ? strerror(errno) : "");
    printf("parent: %d\n", differs(1));
    return 0;
}
