// stopped_group CHILDREN MIB: a process group is stopped and continued every 100 ms, in the midst of its
// forks and faults. Each child writes pages of its own over those of its parent, and finds all as it was.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 4096 / sizeof(unsigned), WRITTEN = 40, ROUNDS = 4 };
static unsigned *memory;
static size_t pages;

static size_t page_of(int child, int k) { return (child * 37 + k * 101) % pages; }

static int child_is_well(int child) {
    for (int k = 0; k < WRITTEN; k++) memory[page_of(child, k) * WORDS + 700] = child + 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < WRITTEN; k++) {
            unsigned *page = memory + page_of(child, k) * WORDS;
            if (page[0] != page_of(child, k) * 31 || page[700] != (unsigned)child + 1) return 0;
        }
        usleep(100000);
    }
    return 1;
}

static int group(int children) {
    for (size_t k = 0; k < pages; k++)
        for (size_t word = 0; word < WORDS / 2; word++) memory[k * WORDS + word] = k * 31 + word;
    for (int child = 0; child < children; child++) {
        pid_t pid = fork();
        if (pid < 0) return perror("fork"), 1;
        if (pid == 0) _exit(!child_is_well(child));
    }
    int status, bad = 0;
    while (wait(&status) > 0) bad += status != 0;
    return bad;
}

int main(int count, char **args) {
    if (count != 3) return 2;
    int children = atoi(args[1]), status;
    pages = (size_t)atol(args[2]) << 8;
    memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return perror("memory"), 1;
    pid_t leader = fork();
    if (leader < 0) return perror("fork"), 1;
    if (leader == 0) {
        setpgid(0, 0);
        _exit(group(children));
    }
    setpgid(leader, leader);
    while (waitpid(leader, &status, WNOHANG) == 0) {
        kill(-leader, SIGSTOP);
        usleep(100000);
        kill(-leader, SIGCONT);
        usleep(100000);
    }
    printf("the group ends with %x\n", status);
    return status != 0;
}
