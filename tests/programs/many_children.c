// A process with more memory than the budget, and many children.
//
//   many_children fork N MIB   fills MIB, then makes N children that end at once; none is waited for until
//                              all were made
//   many_children vm N MIB     fills MIB, then makes N processes that have the same memory (CLONE_VM), one
//                              after the other; some are killed
//
// In the end everything must be in memory as it was filled.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES 65536ul

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15ul + 1; }

static int ends(void *killed)
{
    if (killed)
        raise(SIGKILL);
    _exit(3);
}

static int fail(const char *what)
{
    perror(what);
    return 1;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int children = atoi(arguments[2]);
    size_t words = (strtoul(arguments[3], NULL, 10) << 20) / sizeof(uint64_t);
    uint64_t *memory = malloc(words * sizeof(uint64_t));
    char *stack = malloc(STACK_BYTES);
    if (!memory || !stack)
        return fail("malloc");
    for (size_t at = 0; at < words; at++)
        memory[at] = word(at);
    if (!strcmp(arguments[1], "fork")) {
        for (int child = 0; child < children; child++) {
            pid_t pid = fork();
            if (pid < 0)
                return fail("fork");
            if (pid == 0)
                _exit(3);
        }
        int status;
        for (int child = 0; child < children; child++)
            if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
                return fail("a child");
    } else {
        for (int child = 0; child < children; child++) {
            int is_killed = child % 3 == 0, status;
            pid_t pid = clone(ends, stack + STACK_BYTES, CLONE_VM | SIGCHLD, is_killed ? stack : NULL);
            if (pid < 0)
                return fail("clone");
            if (waitpid(pid, &status, 0) != pid || !!WIFSIGNALED(status) != is_killed)
                return fail("a process with the same memory");
        }
    }
    for (size_t at = 0; at < words; at++)
        if (memory[at] != word(at)) {
            printf("word %zu is %#lx\n", at, memory[at]);
            return 1;
        }
    printf("%d children\n", children);
    return 0;
}
