// alone: counts its threads by the links of /proc/self/task, as programs do that insist on being alone before
// they enter a sandbox (Chromium's zygote), by each of the calls that can be used for it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t both;

static void *thread(void *unused) {
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    return unused;
}

static void count(const char *when) {
    struct stat one = {0}, two = {0}, three = {0};
    struct statx four = {0};
    int proc = open("/proc", O_DIRECTORY | O_PATH);
    int bad = stat("/proc/self/task", &one) | fstatat(proc, "self/task/", &two, 0);
    bad |= syscall(SYS_stat, "/proc/self/task", &three) != 0;
    bad |= statx(proc, "self/task", 0, STATX_NLINK, &four);
    close(proc);
    // The result of a call by the program's own instructions is told only if calls are trapped.
    three.st_nlink -= three.st_nlink == one.st_nlink + 1;
    printf("%s: %d, threads %d %d %d %d\n", when, bad, (int)one.st_nlink - 2, (int)two.st_nlink - 2,
           (int)three.st_nlink - 2, (int)four.stx_nlink - 2);
}

int main(void) {
    struct stat file;
    count("at once");
    // A process that waits is no longer one that has just begun.
    poll(NULL, 0, 20);
    count("alone");
    for (int k = 0; k < 20; k++) count("again");
    pthread_t other;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    pthread_barrier_wait(&both);
    count("with another");
    pthread_barrier_wait(&both);
    pthread_join(other, NULL);
    fflush(stdout);
    if (fork() == 0) {
        poll(NULL, 0, 20);
        count("child");
        return 0;
    }
    wait(NULL);
    if (vfork() == 0) {
        // It has no thread of ours, and its parent sleeps.
        _exit(stat("/proc/self/task", &file) || file.st_nlink != 3);
    }
    int status;
    wait(&status);
    printf("child of vfork: %d\n", status);
    return 0;
}
