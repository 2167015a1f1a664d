// fork_limit MIB CHILDREN: forks until so many children are there, or the limit on processes is reached, 24
// above what the user has. The answer of fork is true: each child that it tells of is there, with all of its
// parent's memory, and no other. Root has no such limit.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MORE = 24, ENDS_WITH = 7 };

static size_t pages;
static unsigned *memory;

// Threads of this user.
static int tasks(void) {
    int sum = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *one; all && (one = readdir(all));) {
        char path[300];
        struct stat stat_of;
        snprintf(path, sizeof path, "/proc/%s/task", one->d_name);
        if (atoi(one->d_name) && stat(path, &stat_of) == 0 && stat_of.st_uid == getuid()) {
            DIR *threads = opendir(path);
            for (struct dirent *thread; threads && (thread = readdir(threads));)
                sum += thread->d_name[0] != '.';
            if (threads) closedir(threads);
        }
    }
    closedir(all);
    return sum;
}

static int child(int *held) {
    size_t wrong = 0;
    char byte;
    close(held[1]);
    for (size_t k = 0; k < pages; k += 61) wrong += memory[k * 1024] != (unsigned)(k * 2654435761u);
    while (read(held[0], &byte, 1) < 0 && errno == EINTR) {}
    return wrong ? 3 : ENDS_WITH;
}

int main(int count, char **words) {
    int most = atoi(words[2]), forked = 0, ended = 0, error = 0, held[2], status;
    pages = (size_t)atol(words[1]) << 8;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t k = 0; k < pages; k++)
        for (int word = 0; word < 1024; word++) memory[k * 1024 + word] = (k + word) * 2654435761u;
    struct rlimit before, limit;
    getrlimit(RLIMIT_NPROC, &before);
    limit = before;
    limit.rlim_cur = tasks() + MORE;
    setrlimit(RLIMIT_NPROC, &limit);
    pipe(held);
    while (forked < most && error == 0) {
        pid_t pid = fork();
        if (pid == 0) _exit(child(held));
        if (pid < 0) error = errno;
        else forked++;
    }
    close(held[1]);
    for (pid_t pid; (pid = wait(&status)) > 0 || errno == EINTR;) {
        if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == ENDS_WITH) ended++;
        else printf("a child: status %x\n", status);
    }
    if (ended != forked) printf("%d forks, %d children\n", forked, ended);
    setrlimit(RLIMIT_NPROC, &before);
    pid_t last = fork();
    if (last == 0) _exit(0);
    status = -1;
    waitpid(last, &status, 0);
    printf("fork: %s; then: %x\n", strerror(error), status);
    return ended != forked || status != 0;
}
