// Children of a process of which nothing is away yet.
//
//   late_children joins   one that computes, one that waits and one that forks have memspill's thread soon;
//                         so have programs that they run; one that runs a short one never has it
//   late_children grows   one thread fills twice as much memory as there is room for, while another forks:
//                         each child has all that was there when it was made
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES (48ul << 20 >> 12)

static atomic_uint *shared; // 0: go on; 1: end
static char *memory;
static atomic_ulong filled;

static int status_of(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) perror("waitpid"), exit(2);
    return status;
}

static int threads_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) count += entry->d_name[0] != '.';
    if (dir) closedir(dir);
    return count;
}

// Two threads: the child's own, and memspill's.
static void must_join(const char *what, pid_t pid) {
    for (int tries = 0; threads_of(pid) != 2; tries++) {
        if (tries == 200) {
            fprintf(stderr, "a child that %s has not joined in 2 s: %d threads\n", what, threads_of(pid));
            kill(pid, SIGKILL);
            exit(3);
        }
        usleep(10000);
    }
    *shared = 1;
    // Again and again: the first may come just before it waits.
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) kill(pid, SIGUSR1), usleep(1000);
    if (status != 0) fprintf(stderr, "a child that %s ended with %#x\n", what, status), exit(3);
    *shared = 0;
}

static void nothing(int signal) { (void)signal; }

static void *alive(void *unused) {
    (void)unused;
    return NULL;
}

static void end(int signal) { _exit(signal != SIGUSR1); }

static void spin_ms(double ms) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1e3 + (now.tv_nsec - begin.tv_nsec) / 1e6 < ms);
}

// One that waits for a pipe joins meanwhile, and reads or writes all the same, and all of it.
static void pipes(void) {
    int to[2], from[2];
    char bytes[4096], got[4096];
    if (pipe(to) || pipe(from)) perror("pipe"), exit(2);
    if (fcntl(from[1], F_SETPIPE_SZ, sizeof bytes) < 0) perror("F_SETPIPE_SZ"), exit(2);
    memset(bytes, 'a', sizeof bytes);
    pid_t pid = fork();
    if (pid == 0) {
        if (read(to[0], got, sizeof got) != 1 || got[0] != 'x') _exit(4);
        if (write(from[1], "b", 1) != 1) _exit(5);
        // This one waits until all that is in it has been read.
        memset(got, 'c', sizeof got);
        _exit(write(from[1], got, sizeof got) != sizeof got);
    }
    for (int tries = 0; threads_of(pid) != 2; tries++, usleep(1000))
        if (tries == 2000) fprintf(stderr, "a child that reads a pipe has not joined\n"), exit(3);
    if (write(to[1], "x", 1) != 1) perror("write"), exit(2);
    usleep(30000);
    if (read(from[0], got, sizeof got) != 1 || got[0] != 'b') fprintf(stderr, "not what it wrote\n"), exit(3);
    memset(bytes, 'c', sizeof bytes);
    if (read(from[0], got, sizeof got) != sizeof got || memcmp(got, bytes, sizeof got))
        fprintf(stderr, "it wrote a part\n"), exit(3);
    if (status_of(pid) != 0) fprintf(stderr, "a child that waits for pipes has failed\n"), exit(3);
    // Full from the start: the first write waits.
    memset(bytes, 'd', sizeof bytes);
    if (write(from[1], bytes, sizeof bytes) != sizeof bytes) perror("write"), exit(2);
    if ((pid = fork()) == 0) {
        memset(got, 'e', sizeof got);
        _exit(write(from[1], got, sizeof got) != sizeof got);
    }
    for (int tries = 0; threads_of(pid) != 2; tries++, usleep(1000))
        if (tries == 2000) fprintf(stderr, "a child that writes to a pipe has not joined\n"), exit(3);
    for (const char *expected = "de"; *expected; expected++) {
        memset(bytes, *expected, sizeof bytes);
        if (read(from[0], got, sizeof got) != sizeof got || memcmp(got, bytes, sizeof got))
            fprintf(stderr, "a page of '%c' is not whole\n", *expected), exit(3);
    }
    if (status_of(pid) != 0) fprintf(stderr, "a child that writes to a full pipe has failed\n"), exit(3);
    close(to[0]), close(to[1]), close(from[0]), close(from[1]);
}

static void joins(void) {
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    pid_t pid;
    for (int round = 0; round < 5; round++) {
        if ((pid = fork()) == 0) {
            while (*shared == 0) continue;
            _exit(0);
        }
        must_join("computes", pid);
        if ((pid = fork()) == 0) {
            signal(SIGUSR1, SIG_IGN);
            execl("/proc/self/exe", "late_children", "spins", NULL);
            _exit(6);
        }
        must_join("runs a program that computes", pid);
        // Its parent ends at once.
        int ends[2];
        if (pipe(ends)) perror("pipe"), exit(2);
        if ((pid = fork()) == 0) {
            pid_t orphan = fork();
            if (orphan == 0) execl("/proc/self/exe", "late_children", "spins", NULL);
            _exit(write(ends[1], &orphan, sizeof orphan) != sizeof orphan);
        }
        pid_t orphan;
        if (status_of(pid) != 0 || read(ends[0], &orphan, sizeof orphan) != sizeof orphan)
            fprintf(stderr, "a child that leaves one behind has failed\n"), exit(3);
        close(ends[0]), close(ends[1]);
        for (int tries = 0; threads_of(orphan) != 2; tries++, usleep(10000))
            if (tries == 200) fprintf(stderr, "an orphan has not joined in 2 s\n"), exit(3);
        kill(orphan, SIGKILL);
        if ((pid = fork()) == 0) {
            // Nothing but the signal ends this: memspill's timer does not.
            pause();
            _exit(*shared == 0 ? 4 : 0);
        }
        must_join("waits", pid);
        if ((pid = fork()) == 0) {
            signal(SIGUSR1, SIG_IGN);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                page[0] = 1;
                _exit(threads_of(getpid()) == 2 ? 0 : 5);
            }
            int status = status_of(grandchild);
            while (*shared == 0) sched_yield();
            _exit(status != 0);
        }
        must_join("forks", pid);
        if ((pid = fork()) == 0) {
            pthread_t thread;
            int failed = pthread_create(&thread, NULL, alive, NULL) || pthread_join(thread, NULL);
            _exit(failed || threads_of(getpid()) != 2);
        }
        if (status_of(pid) != 0) fprintf(stderr, "a child that makes a thread has failed\n"), exit(3);
        pipes();
        // A FIFO that nobody writes to yet: opening it waits, and is not ended by the timer.
        char fifo[] = "late-fifo";
        if (mkfifo(fifo, 0600)) perror("mkfifo"), exit(2);
        if ((pid = fork()) == 0) _exit(open(fifo, O_RDONLY) < 0);
        usleep(50000);
        int writer = open(fifo, O_WRONLY);
        int status = status_of(pid);
        close(writer);
        unlink(fifo);
        if (status != 0) fprintf(stderr, "a child that opens a FIFO ended with %#x\n", status), exit(3);
    }
    // About when the timer tells: after 10 ms, or 3.
    for (int round = 0; round < 120; round++) {
        if ((pid = fork()) == 0) {
            spin_ms((round % 2 ? 9.7 : 2.7) + round / 2 * 0.01);
            execl("/bin/true", "true", NULL);
            _exit(6);
        }
        int status = status_of(pid);
        if (status != 0) fprintf(stderr, "a child that runs a program late: %#x\n", status), exit(3);
    }
    // Whether these join is seen in the supervisor alone; that they run is what matters here.
    for (int round = 0; round < 100; round++) {
        if ((pid = fork()) == 0) {
            int null = open("/dev/null", O_RDWR);
            dup2(null, 1);
            close(null);
            signal(SIGUSR1, SIG_DFL);
            execl("/bin/true", "true", NULL);
            _exit(6);
        }
        if (status_of(pid) != 0) fprintf(stderr, "a child that runs a program has failed\n"), exit(3);
    }
}

static uint64_t stamp(size_t page) { return page * 0x9e3779b97f4a7c15ul + 1; }

static void *fill(void *unused) {
    (void)unused;
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t *words = (uint64_t *)(memory + page * PAGE);
        for (size_t i = 0; i < PAGE / 8; i += 16) words[i] = stamp(page) + i;
        atomic_store(&filled, page + 1);
    }
    return NULL;
}

static void grows(void) {
    pthread_t thread;
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pthread_create(&thread, NULL, fill, NULL)) perror("memory"), exit(2);
    size_t forks = 0;
    for (size_t before = 0; before < PAGES; forks++) {
        before = atomic_load(&filled);
        pid_t pid = fork();
        if (pid < 0) perror("fork"), exit(2);
        if (pid == 0) {
            // Some of them, so that there are many children while memory becomes tight.
            for (size_t page = forks % 16; page < before; page += 16) {
                uint64_t *words = (uint64_t *)(memory + page * PAGE);
                for (size_t i = 0; i < PAGE / 8; i += 16)
                    if (words[i] != stamp(page) + i) _exit(7);
            }
            _exit(0);
        }
        int status = status_of(pid);
        if (status != 0) {
            fprintf(stderr, "fork %zu with %zu pages ended with %#x\n", forks, before, status);
            exit(3);
        }
    }
    pthread_join(thread, NULL);
    printf("%zu forks\n", forks);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "spins") == 0) {
        signal(SIGUSR1, end);
        for (;;) continue;
    }
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 2 || shared == MAP_FAILED) return 2;
    if (strcmp(argv[1], "joins") == 0) joins();
    else if (strcmp(argv[1], "grows") == 0) grows();
    else return 2;
    return 0;
}
