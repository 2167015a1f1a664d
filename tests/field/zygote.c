// zygote MIB: looks whether there are sandboxes, as Chromium does: a child in a user namespace of its own
// writes its maps, gives its capabilities up, and makes another namespace. Then it forks as Chromium does:
// glibc's clone without CLONE_VM, on a small stack in the parent's frame, which the child leaves by longjmp.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int leave(void *where) { longjmp(*(jmp_buf *)where, 1); }

static __attribute__((noinline)) int clone_and_leave(int flags, jmp_buf *where) {
    char stack[16384] __attribute__((aligned(16)));
    return clone(leave, stack + sizeof stack, flags | SIGCHLD, where, NULL, NULL, NULL);
}

static int fork_with(int flags) {
    jmp_buf where;
    return setjmp(where) ? 0 : clone_and_leave(flags, &where);
}

static int says(const char *path, const char *what) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int wrong = fd < 0 || write(fd, what, strlen(what)) != (ssize_t)strlen(what);
    if (fd >= 0) close(fd);
    return wrong;
}

// 0: there are sandboxes; else what could not be done.
static int sandbox(void) {
    char map[64];
    struct stat tasks;
    struct { unsigned version; int pid; } header = {0x20080522, 0};
    unsigned none[6] = {0};
    int uid = getuid(), gid = getgid(), child = fork_with(CLONE_NEWUSER), status;
    if (child < 0) return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(map, sizeof map, "%d %d 1\n", gid, gid);
        if (says("/proc/self/setgroups", "deny") | says("/proc/self/gid_map", map)) _exit(2);
        snprintf(map, sizeof map, "%d %d 1\n", uid, uid);
        if (says("/proc/self/uid_map", map)) _exit(3);
        if (stat("/proc/self/task/", &tasks) || tasks.st_nlink != 3) _exit(4);
        if (syscall(SYS_capset, &header, none)) _exit(5);
        _exit(unshare(CLONE_NEWUSER) ? 6 : 0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : status;
}

int main(int count, char **words) {
    size_t bytes = (size_t)atol(words[count - 1]) << 20, wrong = 0;
    printf("sandboxes: %d\n", sandbox());
    fflush(stdout);
    unsigned *memory = malloc(bytes);
    for (size_t k = 0; k < bytes / 4; k++) memory[k] = (unsigned)k * 2654435761u;
    for (int round = 0; round < 4; round++) {
        int pipes[2], status;
        char answer[16] = "";
        if (pipe(pipes)) return 2;
        int child = fork_with(0);
        if (child == 0) {
            for (size_t k = round; k < bytes / 4; k += 1024) wrong += memory[k] != (unsigned)k * 2654435761u;
            memory[round] = 0;
            if (!wrong && write(pipes[1], "ping", 5) != 5) _exit(3);
            _exit(wrong != 0);
        }
        if (child < 0) return 1;
        close(pipes[1]);
        int got = read(pipes[0], answer, sizeof answer);
        waitpid(child, &status, 0);
        close(pipes[0]);
        wrong += memory[round] != (unsigned)round * 2654435761u;
        printf("read %d '%s', status %x, wrong %zu\n", got, answer, status, wrong);
    }
    return 0;
}
