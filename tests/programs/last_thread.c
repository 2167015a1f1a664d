/* Processes whose last thread leaves by exit(2), not exit_group(2): as helpers in raw system calls do, and
 * all under seccomp's strict mode. Each must end, with the status of its first thread, before and after
 * memory is tight.
 *
 * usage: last_thread [MIB]: how much memory is written first.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* With the code that the first thread has: which of them counts where they differ is not the same in all
 * kernels. */
static void *later(void *code) {
    usleep(100 * 1000);
    syscall(SYS_exit, (int)(long)code);
    return NULL;
}

static void first_thread_alone(void) { syscall(SYS_exit, 3); }
static void first_thread_before_others(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, later, (void *)4);
    syscall(SYS_exit, 4);
}
static void first_thread_after_others(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, later, (void *)9);
    usleep(300 * 1000);
    syscall(SYS_exit, 5);
}
static void strict(void) {
    prctl(PR_SET_SECCOMP, 1);
    syscall(SYS_exit, 6);
}

int main(int argc, char **argv) {
    size_t len = (argc > 1 ? strtoul(argv[1], NULL, 0) : 0) << 20;
    char *p = mmap(NULL, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < len; i += 4096) p[i] = (char)(i >> 12);
    void (*ways[])(void) = {first_thread_alone, first_thread_before_others, first_thread_after_others,
        strict};
    for (int i = 0; i < 4; i++) {
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        pid_t child = fork();
        if (child == 0) ways[i](), _exit(99);
        int status = -1;
        waitpid(child, &status, 0);
        clock_gettime(CLOCK_MONOTONIC, &after);
        double took_s = (double)(after.tv_sec - before.tv_sec);
        took_s += (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3 + i || took_s > 2)
            return printf("way %d: status %#x after %.1f s\n", i, status, took_s), 1;
    }
    puts("all ended");
    return 0;
}
