// late_forks SECONDS MIB WORKERS: workers fork children that only end, while another process fills memory:
// before the tree comes near its budget, and behind that, each child ends as it says.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ENDS_WITH = 7 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static int work(int worker, double end) {
    while (now() < end) {
        pid_t child = fork();
        if (child == 0) _exit(ENDS_WITH);
        int status = 0;
        if (child < 0) { printf("worker %d cannot fork\n", worker); return 1; }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != ENDS_WITH) {
            printf("worker %d: status %x\n", worker, status);
            return 1;
        }
    }
    return 0;
}

int main(int count, char **words) {
    double end = now() + atof(words[1]);
    size_t pages = (size_t)atol(words[2]) << 8, wrong = 0;
    int workers = atoi(words[3]), bad = 0, status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int k = 0; k < workers; k++)
        if (fork() == 0) _exit(work(k, end));
    usleep(100000);
    char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t k = 0; k < pages; k++) {
        memory[k * 4096] = k;
        if (k % 64 == 0) usleep(500);
    }
    while (wait(&status) > 0) bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    for (size_t k = 0; k < pages; k++) wrong += memory[k * 4096] != (char)k;
    printf("bad workers: %d, wrong: %zu\n", bad, wrong);
    return bad != 0 || wrong != 0;
}
