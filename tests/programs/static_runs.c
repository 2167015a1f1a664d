// A program without a loader that runs another one by each of the ways that there are, or forks a child that
// fills memory itself.
//
// usage: static-runs exec|function|thread|fork|vfork|spawn|popen|failing|filtered|harmless PROGRAM [WORD...]
//        static-runs child|grandchild MIB
// Exit code: the other's. 100 and more: what went wrong here.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int code_of(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return 101;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
}

static void *run(void *words) {
    execv(*(char **)words, words);
    return NULL;
}

static int fill(size_t mib) {
    size_t words = mib << 17, bad = 0;
    uint64_t *at = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 103;
    for (size_t word = 0; word < words; word++) at[word] = word * 0x9e3779b97f4a7c15;
    for (size_t word = 0; word < words; word++) bad += at[word] != word * 0x9e3779b97f4a7c15;
    return bad != 0;
}

// An exec that fails leaves the mask of signals, and all else, as it was.
static int fails(char **words) {
    sigset_t mask, before, after;
    sigemptyset(&mask);
    before = after = mask;
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    sigprocmask(SIG_SETMASK, NULL, &before);
    size_t bytes = 200000;
    char *longer = malloc(bytes);
    memset(longer, 'x', bytes - 1);
    longer[bytes - 1] = 0;
    char *too_long[] = {words[0], longer, NULL};
    for (int times = 0; times < 3; times++)
        if (execv(words[0], too_long) != -1 || errno != E2BIG) return 104;
    if (execv("/nothing/there", words) != -1 || errno != ENOENT) return 105;
    sigprocmask(SIG_SETMASK, NULL, &after);
    return memcmp(&before, &after, sizeof before) ? 106 : 0;
}

// As in <linux/filter.h> and <linux/seccomp.h>, which not every C library has.
struct instruction { uint16_t code; uint8_t yes, no; uint32_t value; };
enum { LOAD = 0x20, IS_EQUAL = 0x15, RETURN = 6, FILTER = 2 };
static const uint32_t kill_process = 0x80000000, allow = 0x7fff0000;

struct program { uint16_t len; struct instruction *code; };

// From here on whoever makes this call is killed.
static int filter(uint32_t call) {
    struct instruction no_call[] = {
        {LOAD, 0, 0, 0}, {IS_EQUAL, 0, 1, call}, {RETURN, 0, 0, kill_process}, {RETURN, 0, 0, allow}};
    struct program program = {4, no_call};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, FILTER, &program);
}

int main(int count, char **words) {
    if (count < 3) return 100;
    const char *how = words[1];
    char **other = words + 2;
    pid_t child = -1;
    if (!strcmp(how, "child") || !strcmp(how, "grandchild")) {
        // It finds what its parent had.
        char *inherited = strdup(words[2]);
        child = fork();
        if (child == 0 && !strcmp(how, "grandchild") && (child = fork())) _exit(code_of(child));
        if (child == 0) _exit(strcmp(inherited, words[2]) ? 107 : fill(strtoul(words[2], NULL, 10)));
        return code_of(child);
    }
    if (!strcmp(how, "failing")) {
        int failed = fails(other);
        if (failed) return failed;
        child = fork();
        if (child == 0) _exit((failed = fails(other)) ? failed : (execv(other[0], other), 108));
        if ((failed = code_of(child))) return failed;
        how = "exec";
    }
    if (!strcmp(how, "filtered") || !strcmp(how, "harmless")) {
        if (filter(!strcmp(how, "filtered") ? SYS_socket : SYS_reboot)) return 115;
        how = "vfork";
    }
    if (!strcmp(how, "exec")) return execv(other[0], other), 109;
    if (!strcmp(how, "function")) return syscall(SYS_execve, other[0], other, environ), 116;
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, other)) return 110;
        for (;;) pause();
    }
    if (!strcmp(how, "fork")) {
        if ((child = fork()) == 0) _exit((execv(other[0], other), 111));
    } else if (!strcmp(how, "vfork")) {
        if ((child = vfork()) == 0) _exit((execv(other[0], other), 112));
    } else if (!strcmp(how, "spawn")) {
        if (posix_spawn(&child, other[0], NULL, NULL, other, environ)) return 113;
    } else if (!strcmp(how, "popen")) {
        char line[1000] = "exec";
        for (char **word = other; *word; word++) strcat(strcat(line, " "), *word);
        FILE *output = popen(line, "r");
        while (output && fgets(line, sizeof line, output)) fputs(line, stdout);
        int status = output ? pclose(output) : -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 114;
    }
    return code_of(child);
}
