// Forks of every kind, each of which checks all of its parent's memory, twice as much as there is room for.
//
//   agent_forks threads   12 threads fork, map and unmap, and each child forks again
//   agent_forks fails     forks that the kernel refuses, and one that a filter refuses
//   agent_forks kinds     fork, vfork, forkpty, daemon, system, _Fork
//   agent_forks unseen    a clone past the C library: its child must not read zeros
//   agent_forks many      24 children that live at once, each stopped at first
//   agent_forks kept      memory that the program keeps from its children
//   agent_forks zeros     memory that was only read, and is written while a child comes
//   agent_forks chain     500 generations, each of which forks while it makes a thread
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static size_t pages;
static char *memory;

static uint64_t stamp(size_t page, uint64_t version) { return page * 0x9e3779b97f4a7c15ul + version; }

static void fill(uint64_t version) {
    for (size_t page = 0; page < pages; page++) {
        uint64_t *words = (uint64_t *)(memory + page * PAGE);
        for (size_t i = 0; i < PAGE / 8; i += 8) words[i] = stamp(page, version) + i;
    }
}

// Exits with 3 at the first wrong page.
static void check(const char *who, size_t first, size_t step, uint64_t version) {
    for (size_t page = first; page < pages; page += step) {
        uint64_t *words = (uint64_t *)(memory + page * PAGE);
        for (size_t i = 0; i < PAGE / 8; i += 8)
            if (words[i] != stamp(page, version) + i) {
                fprintf(stderr, "%s: page %zu word %zu is %#lx\n", who, page, i, words[i]);
                _exit(3);
            }
    }
}

static int status_of(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return status;
}

static void must(pid_t pid, const char *what) {
    int status = status_of(pid);
    if (status != 0) {
        fprintf(stderr, "%s: status %#x\n", what, status);
        exit(4);
    }
}

static void *fork_and_map(void *arg) {
    size_t number = (size_t)arg;
    for (int round = 0; round < 4; round++) {
        size_t len = (64 + number * 8) * PAGE;
        char *own = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(own, (int)number + 1, len);
        pid_t pid = fork();
        if (pid < 0) perror("fork"), exit(5);
        if (pid == 0) {
            for (size_t i = 0; i < len; i += 512)
                if (own[i] != (char)(number + 1)) _exit(6);
            check("child", number, 101, 1);
            pid_t grandchild = fork();
            if (grandchild < 0) _exit(7);
            if (grandchild == 0) {
                check("grandchild", number, 97, 1);
                memset(own, 99, len);
                _exit(own[len - 1] == 99 ? 0 : 8);
            }
            int status = status_of(grandchild);
            _exit(status ? 9 : 0);
        }
        munmap(own, len);
        must(pid, "child of a thread");
    }
    return 0;
}

static void *idle(void *arg) { return arg; }

// Threads come and go beside the forks, and large blocks of malloc.
static void *make_threads(void *stop) {
    while (!*(volatile int *)stop) {
        pthread_t thread;
        if (pthread_create(&thread, 0, idle, 0) == 0) pthread_join(thread, 0);
        char *block = malloc(400 << 10);
        memset(block, 1, 400 << 10);
        free(block);
    }
    return 0;
}

static int threads(void) {
    pthread_t thread[12], maker;
    static int stop;
    pthread_create(&maker, 0, make_threads, &stop);
    for (size_t i = 0; i < 12; i++) pthread_create(&thread[i], 0, fork_and_map, (void *)i);
    for (size_t i = 0; i < 12; i++) pthread_join(thread[i], 0);
    stop = 1;
    pthread_join(maker, 0);
    check("parent", 0, 1, 1);
    return 0;
}

static void *make_thread_after_thread(void *stop) {
    for (pthread_t thread; !*(volatile int *)stop;)
        if (pthread_create(&thread, 0, idle, 0) == 0) pthread_join(thread, 0);
    return 0;
}

// What a child has of a thread that was on its way when it was forked must not add up.
static int chain(void) {
    for (int generation = 0; generation < 500; generation++) {
        static int stop;
        pthread_t thread;
        alarm(60);
        if (pthread_create(&thread, 0, make_thread_after_thread, &stop)) return 70;
        usleep(1000);
        pid_t pid = fork();
        if (pid) {
            int status;
            stop = 1;
            if (pid < 0 || waitpid(pid, &status, 0) != pid) _exit(71);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 72);
        }
    }
    _exit(0);
}

static int refuse(int call, int argument, unsigned value) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[argument])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// As another user, without whom no process is refused.
static int fails(void) {
    if (geteuid() == 0 && setresuid(65533, 65533, 65533)) return 10;
    struct rlimit none = {1, 1}, before;
    getrlimit(RLIMIT_NPROC, &before);
    setrlimit(RLIMIT_NPROC, &(struct rlimit){1, before.rlim_max});
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        if (pid > 0) return 11;
        if (errno != EAGAIN) return 12;
    }
    (void)none;
    setrlimit(RLIMIT_NPROC, &before);
    check("after refused forks", 0, 1, 1);
    pid_t pid = fork();
    if (pid < 0) return 13;
    if (pid == 0) check("child after refused forks", 0, 1, 1), _exit(0);
    must(pid, "child after refused forks");
    // As the C library forks.
    if (refuse(SYS_clone, 0, CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD)) return 14;
    pid = fork();
    if (pid == 0) _exit(0);
    if (pid > 0 || errno != EACCES) return 15;
    check("after a fork that a filter refused", 0, 1, 1);
    fill(2);
    check("after a fork that a filter refused", 0, 1, 2);
    return 0;
}

static int kinds(void) {
    pid_t pid = fork();
    if (pid == 0) check("fork", 0, 1, 1), _exit(0);
    must(pid, "fork");
    int terminal;
    pid = forkpty(&terminal, 0, 0, 0);
    if (pid == 0) check("forkpty", 0, 1, 1), _exit(0);
    must(pid, "forkpty");
    pid = _Fork();
    if (pid == 0) check("_Fork", 0, 1, 1), _exit(0);
    must(pid, "_Fork");
    pid = vfork();
    if (pid == 0) execlp("true", "true", (char *)0), _exit(1);
    must(pid, "vfork");
    if (system("exit 7") != 7 << 8) return 20;
    int pipes[2];
    if (pipe(pipes)) return 21;
    pid = fork();
    if (pid == 0) {
        if (daemon(1, 1)) _exit(1);
        check("daemon", 0, 1, 1);
        _exit(write(pipes[1], "d", 1) != 1);
    }
    must(pid, "before daemon");
    close(pipes[1]);
    char said = 0;
    if (read(pipes[0], &said, 1) != 1 || said != 'd') return 22;
    check("parent", 0, 1, 1);
    return 0;
}

static int unseen_child(void) {
    // These may be away too.
    size_t count = pages;
    char *at = memory;
    pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        for (size_t page = 0; page < count; page++)
            if (*(uint64_t *)(at + page * PAGE) != stamp(page, 1)) _exit(30);
        _exit(31);
    }
    int status = status_of(pid);
    check("parent", 0, 1, 1);
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 31 ? 0 : WEXITSTATUS(status);
    return 32;
}

static int many(void) {
    enum { COUNT = 24 };
    pid_t pid[COUNT];
    for (int i = 0; i < COUNT; i++) {
        pid[i] = fork();
        if (pid[i] < 0) return perror("fork"), 40;
        if (pid[i] == 0) {
            raise(SIGSTOP);
            check("one of many", i, 101, 1);
            _exit(0);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        int status;
        if (waitpid(pid[i], &status, WUNTRACED) != pid[i] || !WIFSTOPPED(status)) return 41;
        kill(pid[i], SIGCONT);
    }
    for (int i = 0; i < COUNT; i++) must(pid[i], "one of many");
    return 0;
}

static int has(char *at) {
    unsigned char there;
    return mincore(at, PAGE, &there) == 0;
}

static int kept(void) {
    char *middle = memory + pages / 2 * PAGE, *wiped = memory + pages / 4 * PAGE;
    size_t len = 64 * PAGE;
    madvise(middle, len, MADV_DONTFORK);
    madvise(wiped, len, MADV_WIPEONFORK);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        if (pid < 0) return 50;
        if (pid == 0) {
            if (has(middle) || has(middle + len - PAGE)) _exit(51);
            if (!has(middle - PAGE) || !has(middle + len)) _exit(56);
            for (size_t i = 0; i < len; i += 512)
                if (wiped[i]) _exit(52);
            if (*(uint64_t *)(middle - PAGE) != stamp(pages / 2 - 1, 1)) _exit(53);
            if (*(uint64_t *)(middle + len) != stamp(pages / 2 + 64, 1)) _exit(54);
            pid_t grandchild = fork();
            uint64_t after = stamp(pages / 2 + 64, 1);
            if (grandchild == 0) _exit(has(middle) || *(uint64_t *)(middle + len) != after);
            int status = status_of(grandchild);
            _exit(status ? 55 : 0);
        }
        must(pid, "a child that has not all");
    }
    check("parent", 0, 1, 1);
    madvise(middle, len, MADV_DOFORK);
    madvise(wiped, len, MADV_KEEPONFORK);
    pid_t pid = fork();
    if (pid == 0) check("a child that has all again", 0, 1, 1), _exit(0);
    must(pid, "a child that has all again");
    return 0;
}

enum { AREAS = 2000, AREA_PAGES = 4 };
static char *areas[AREAS];
static atomic_int forking;

static void *write_areas(void *arg) {
    while (!atomic_load(&forking)) sched_yield();
    for (int i = 0; i < AREAS && atomic_load(&forking) == 1; i++) {
        areas[i][PAGE] = 1;
        for (volatile int pause = 0; pause < 5000; pause++);
    }
    return arg;
}

// Of a mapping in which there is nothing but the kernel's page of zeros the child gets no copy. It has zeros
// all the same, whatever its parent writes there before the child has joined.
static int zeros(void) {
    for (int round = 0; round < 4; round++) {
        // Each a mapping by itself, with a gap behind it.
        char *all = mmap(0, AREAS * 2 * AREA_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < AREAS; i++) {
            areas[i] = all + i * 2 * AREA_PAGES * PAGE;
            mprotect(areas[i], AREA_PAGES * PAGE, PROT_READ | PROT_WRITE);
        }
        for (int i = 0; i < AREAS; i++)
            if (((volatile char *)areas[i])[PAGE]) return 60;
        // Until they are found.
        usleep(500000);
        pthread_t writer;
        atomic_store(&forking, 0);
        pthread_create(&writer, 0, write_areas, 0);
        atomic_store(&forking, 1);
        pid_t pid = fork();
        if (pid < 0) return 61;
        if (pid == 0) {
            // Written before the fork, up to one of them.
            int i = 0;
            while (i < AREAS && areas[i][PAGE]) i++;
            for (; i < AREAS; i++)
                if (areas[i][PAGE]) _exit(62);
            check("child", 0, 101, 1);
            _exit(0);
        }
        must(pid, "child beside writes");
        atomic_store(&forking, 2);
        pthread_join(writer, 0);
        munmap(all, AREAS * 2 * AREA_PAGES * PAGE);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "chain")) return chain();
    pages = argc > 2 ? strtoul(argv[2], 0, 0) : 128 << 20 >> 12;
    memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    fill(1);
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "fails")) return fails();
    if (!strcmp(what, "kinds")) return kinds();
    if (!strcmp(what, "unseen")) return unseen_child();
    // What the mark is for: without it the child reads zeros.
    if (!strcmp(what, "many")) return many();
    if (!strcmp(what, "kept")) return kept();
    if (!strcmp(what, "zeros")) return zeros();
    return 2;
}
