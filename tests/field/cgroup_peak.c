// cgroup_peak FILE COMMAND...: runs the command in a memory cgroup of its own, and writes to FILE the most
// anonymous and shared memory that the group had, in KiB, looked at 100 times a second. Writes nothing where
// there is no memory cgroup to be had. Ends as the command does.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char group[100];
static pid_t child;

static void forward(int number) { kill(child, number); }

static int in_group(const char *file, int flags) {
    char path[150];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return open(path, flags | O_CLOEXEC);
}

// In bytes: `total_rss` and `total_shmem` of version 1, `anon` and `shmem` of version 2.
static long used(int stat) {
    char text[8192], *line, *rest;
    long sum = 0, value;
    ssize_t length = pread(stat, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char name[40];
        if (sscanf(line, "%39s %ld", name, &value) == 2 &&
            (!strcmp(name, "total_rss") || !strcmp(name, "total_shmem") || !strcmp(name, "anon") ||
             !strcmp(name, "shmem")))
            // Version 1 has `shmem` too, which `total_shmem` contains.
            sum += strcmp(name, "shmem") || !strstr(group, "/memory/") ? value : 0;
    }
    return sum;
}

static void make_group(void) {
    const char *roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (int k = 0; k < 2; k++) {
        snprintf(group, sizeof group, "%s/memspill-peak-%d", roots[k], getpid());
        if (mkdir(group, 0755) == 0) {
            int stat = in_group("memory.stat", O_RDONLY);
            if (stat >= 0) {
                close(stat);
                return;
            }
            rmdir(group);
        }
    }
    group[0] = 0;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    make_group();
    int stat = group[0] ? in_group("memory.stat", O_RDONLY) : -1;
    int procs = group[0] ? in_group("cgroup.procs", O_WRONLY) : -1;
    child = fork();
    if (child == 0) {
        if (procs >= 0 && write(procs, "0", 1) != 1) perror("cgroup.procs");
        execvp(words[2], words + 2);
        perror(words[2]);
        _exit(127);
    }
    signal(SIGTERM, forward);
    signal(SIGINT, forward);
    long peak = 0;
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        long now = stat >= 0 ? used(stat) : 0;
        peak = now > peak ? now : peak;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    if (group[0]) {
        FILE *file = fopen(words[1], "w");
        if (file) fprintf(file, "%ld\n", peak >> 10), fclose(file);
        // The processes that the command has left may take a moment to end.
        for (int k = 0; k < 300 && rmdir(group) && errno == EBUSY; k++)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
