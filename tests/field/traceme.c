// traceme fork|vfork|stop|twice MIB: what debuggers do to start a program. A process that has filled memory
// makes a child, which asks to be traced (PTRACE_TRACEME) and executes; `stop`: and stops itself before, as
// strace's does; `twice`: and asks again. Each stop is passed on. Prints how the child ended and for which
// signals it stopped: those that it has without memspill.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(const char *kind) {
    char *words[] = {"true", NULL};
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) return 8;
    if (!strcmp(kind, "twice") && (ptrace(PTRACE_TRACEME, 0, 0, 0) != -1 || errno != EPERM)) return 7;
    setpgid(0, 0);
    signal(SIGTTOU, SIG_DFL);
    if (!strcmp(kind, "stop")) raise(SIGSTOP);
    // As a shell looks for it.
    execv("/nowhere/true", words);
    execv("/bin/true", words);
    return 9;
}

int main(int count, char **words) {
    size_t bytes = (size_t)atol(words[2]) << 20;
    char *memory = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(memory + at) = at * 0x9e3779b97f4a7c15u;
    pid_t pid = strcmp(words[1], "vfork") ? fork() : vfork();
    if (pid == 0) _exit(child(words[1]));
    int status = 0, stops[65] = {0};
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        stops[signal]++;
        ptrace(PTRACE_CONT, pid, 0, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
    }
    printf("exit %d, signal %d; stops:", WEXITSTATUS(status), WTERMSIG(status));
    for (int signal = 1; signal < 65; signal++) {
        if (stops[signal]) printf(" %s %d", sigabbrev_np(signal), stops[signal]);
    }
    size_t wrong = 0;
    for (size_t at = 0; at < bytes; at += 8) wrong += *(uint64_t *)(memory + at) != at * 0x9e3779b97f4a7c15u;
    printf("; wrong: %zu\n", wrong);
    return 0;
}
