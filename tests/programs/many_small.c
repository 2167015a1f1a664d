// Many small processes, which keep their memory and then look whether it is all there.
//
// usage: many-small COUNT KIB; prints the sum of their anonymous memory (RssAnon, in MiB) 2 s after all of
// them are there.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILLED = 10, GO_ON = 11 };

static int one(size_t bytes) {
    char *base = malloc(bytes), byte = 0;
    for (size_t at = 0; at < bytes; at += 512)
        base[at] = at >> 9;
    if (write(FILLED, &byte, 1) != 1 || read(GO_ON, &byte, 1) != 0)
        return 3;
    for (size_t at = 0; at < bytes; at += 512)
        if (base[at] != (char)(at >> 9))
            return 1;
    return 0;
}

static long anonymous_kib(pid_t pid) {
    char path[64], text[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    int status = open(path, O_RDONLY);
    ssize_t length = read(status, text, sizeof text - 1);
    close(status);
    char *line = length > 0 ? strstr(text, "RssAnon:") : NULL;
    return line ? atol(line + 8) : 0;
}

int main(int argc, char **argv) {
    if (strcmp(argv[1], "one") == 0)
        return one(strtoul(argv[2], NULL, 10) << 10);
    int count = atoi(argv[1]), failed = 0, filled[2], go_on[2];
    if (pipe2(filled, O_CLOEXEC) != 0 || pipe2(go_on, O_CLOEXEC) != 0)
        return 3;
    pid_t *pids = malloc(count * sizeof *pids);
    for (int number = 0; number < count; number++) {
        pids[number] = fork();
        if (pids[number] == 0) {
            dup2(filled[1], FILLED);
            dup2(go_on[0], GO_ON);
            execl("/proc/self/exe", argv[0], "one", argv[2], (char *)NULL);
            _exit(3);
        }
    }
    char byte;
    for (int number = 0; number < count; number++)
        if (read(filled[0], &byte, 1) != 1)
            return 3;
    sleep(2);
    long sum_kib = 0;
    for (int number = 0; number < count; number++)
        sum_kib += anonymous_kib(pids[number]);
    close(go_on[1]);
    for (int number = 0; number < count; number++) {
        int status;
        failed += waitpid(pids[number], &status, 0) != pids[number] || status != 0;
    }
    printf("%ld\n", sum_kib >> 10);
    return failed != 0;
}
