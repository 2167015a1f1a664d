// A process forks, and its children only end. A tracer holds each child for 50 ms where it first sets a
// timer: a child that memspill has put off, and which is not done with its first steps when it is to join at
// last, is what any child may be on a busy machine. Alone no child sets one.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 5, HELD_US = 50000, ENDS_WITH = 7 };

static int traced(void) {
    int ended = 0;
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    for (int k = 0; k < CHILDREN; k++) {
        pid_t child = fork();
        if (child == 0) _exit(ENDS_WITH);
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == ENDS_WITH) ended++;
        else printf("child %d: status %x\n", k, status);
    }
    printf("%d children\n", ended);
    fflush(stdout);
    return ended != CHILDREN;
}

static int is_behind_timer(pid_t who) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, who, 0, &regs) != 0) return 0;
    return regs.orig_rax == SYS_timer_settime && (long)regs.rax != -ENOSYS;
}

int main(void) {
    pid_t first = fork();
    if (first == 0) _exit(traced());
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    int status, has_begun = 0;
    pid_t held = first;
    for (pid_t who; (who = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (who == first) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            continue;
        }
        int signal = WSTOPSIG(status), is_event = status >> 16 != 0;
        if (who == first && !has_begun) {
            ptrace(PTRACE_SETOPTIONS, who, 0, options);
            has_begun = 1;
        } else if (signal == (SIGTRAP | 0x80) && who != first && who != held && is_behind_timer(who)) {
            usleep(HELD_US);
            held = who;
        }
        int is_passed = !is_event && signal != SIGSTOP && signal != (SIGTRAP | 0x80);
        ptrace(PTRACE_SYSCALL, who, 0, is_passed ? signal : 0);
    }
    return 1;
}
