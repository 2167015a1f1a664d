/* Threads, forks and new programs while system calls are trapped; and many threads beside an evictor. */
#include "pager.h"
#include <spawn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

static void vforked(void)
{
    arena_start(64);
    char *path = strcpy(across(16), "/bin/true");
    char **args = across(16);
    for (int i = 0; i < 20; i++) {
        args[0] = path;
        args[1] = 0;
        away();
        volatile int mine = i;
        pid_t child = vfork();
        if (child == 0) {
            if (i % 2)
                execv(path, args);
            _exit(i % 2 ? 99 : is_armed() ? i : 98);
        }
        int status, expected = i % 2 ? 0 : is_armed() ? i : 98;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == expected);
        CHECK(mine == i);
    }
}

extern char **environ;

static void spawned(void)
{
    arena_start(64);
    for (int i = 0; i < 20; i++) {
        pid_t child;
        int status, tube[2];
        char text[16] = "";
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t set;
        CHECK(pipe(tube) == 0);
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, tube[1], 1);
        posix_spawnattr_init(&attributes);
        sigfillset(&set);
        posix_spawnattr_setsigdefault(&attributes, &set);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
        char *path = strcpy(across(16), "/bin/echo"), *word = strcpy(across(16), "good");
        char **args = across(24);
        args[0] = path, args[1] = word, args[2] = 0;
        away();
        CHECK(posix_spawn(&child, path, &actions, &attributes, args, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(read(tube[0], text, 16) == 5 && !strcmp(text, "good\n"));
        close(tube[0]), close(tube[1]);
        CHECK(posix_spawn(&child, "/none", 0, &attributes, args, environ) == ENOENT);
        arena_reset();
    }
}

static void *add_one(void *arg)
{
    if (is_armed())
        __atomic_fetch_add((int *)arg, 1, __ATOMIC_SEQ_CST);
    return arg;
}

static void forked(void)
{
    int armed = 0;
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        pid_t child = fork();
        if (child == 0) {
            int in_child = 0;
            CHECK(pthread_create(&thread, 0, add_one, &in_child) == 0);
            CHECK(pthread_join(thread, 0) == 0);
            _exit(in_child);
        }
        int status;
        CHECK(pthread_create(&thread, 0, add_one, &armed) == 0 && pthread_join(thread, 0) == 0);
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == is_armed());
    }
    CHECK(armed == 10 * is_armed());
}

static void nothing(int signal)
{
    (void)signal;
}

/* A child that has all handlers cleared, also those of the dispatch, and traps its calls all the same. */
static void cleared(void)
{
    struct clone_args args = {.flags = 1ull << 32, .exit_signal = SIGCHLD};
    struct sigaction action;
    int status, armed = is_armed();
    signal(SIGUSR1, nothing);
    pid_t child = syscall(SYS_clone3, &args, sizeof args);
    if (child == 0) {
        int good = sigaction(SIGUSR1, 0, &action) == 0 && action.sa_handler == SIG_DFL && is_armed() == armed;
        _exit(good ? 7 : 8);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    CHECK(sigaction(SIGUSR1, 0, &action) == 0 && action.sa_handler == nothing);
}

static volatile int cleaned;
static char *cancel_buffer;
static int cancel_tube[2];

static void clean(void *arg)
{
    (void)arg;
    cleaned++;
}

static void *wait_in_read(void *arg)
{
    pthread_cleanup_push(clean, 0);
    read(cancel_tube[0], cancel_buffer, 16);
    pthread_cleanup_pop(0);
    return arg;
}

static void cancelled(void)
{
    arena_start(64);
    cancel_buffer = across(16);
    CHECK(pipe(cancel_tube) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        away();
        CHECK(pthread_create(&thread, 0, wait_in_read, 0) == 0);
        usleep(i % 4 * 1000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
    }
    CHECK(cleaned > 0);
}

/* A file larger than a piece, in one call, where half of the buffer is away. */
static void large(void)
{
    size_t len = 5 << 20;
    char name[] = "/tmp/dispatch-XXXXXX";
    int file = mkstemp(name), same = 1;
    arena_start(1500);
    unlink(name);
    unsigned char *buffer = whole(len);
    for (size_t i = 0; i < len; i++)
        buffer[i] = i * 7 + i / PAGE;
    away();
    CHECK(write(file, buffer, len) == (ssize_t)len && lseek(file, 0, SEEK_SET) == 0);
    memset(buffer, 0, len);
    away();
    CHECK(read(file, buffer, len) == (ssize_t)len);
    for (size_t i = 0; i < len; i++)
        same &= buffer[i] == (unsigned char)(i * 7 + i / PAGE);
    CHECK(same && read(file, buffer, len) == 0);
    away();
    CHECK(pread(file, buffer, len, 100) == (ssize_t)len - 100 && buffer[1] == (unsigned char)(101 * 7));
    CHECK(pwrite(file, buffer, len, 1 << 20) == (ssize_t)len && lseek(file, 0, SEEK_CUR) == (off_t)len);
}

/* Each thread sends itself bytes in several ways, from and to memory that comes and goes. */
#define THREADS 12
#define BYTES 9000

static _Atomic int stop;
static _Atomic long rounds;

static unsigned char byte_of(unsigned round, size_t at)
{
    return round * 31 + at * 7 + at / PAGE;
}

static void one_round(unsigned round, unsigned char *from, unsigned char *to, int *stream, int *datagram)
{
    size_t len = 1 + round * 977 % BYTES, half = len / 2;
    for (size_t i = 0; i < len; i++)
        from[i] = byte_of(round, i), to[i] = 0;
    struct iovec *vector = (struct iovec *)(to + BYTES + 8 - BYTES % 8);
    struct msghdr *message = (struct msghdr *)(from + BYTES + 8 - BYTES % 8);
    vector[0] = (struct iovec){to, half};
    vector[1] = (struct iovec){to + half, len - half};
    if (round % 2) {
        CHECK(write(stream[1], from, len) == (ssize_t)len);
        ssize_t got = round % 4 == 1 ? read(stream[0], to, len) : readv(stream[0], vector, 2);
        CHECK(got == (ssize_t)len);
    } else {
        *message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 2};
        CHECK(send(datagram[1], from, len, 0) == (ssize_t)len);
        CHECK(recvmsg(datagram[0], message, 0) == (ssize_t)len);
    }
    for (size_t i = 0; i < len; i++)
        if (to[i] != byte_of(round, i)) {
            printf("round %u: byte %zu of %zu is %u, not %u\n", round, i, len, to[i], byte_of(round, i));
            exit(1);
        }
}

static void *send_and_check(void *arg)
{
    unsigned char *from = arg, *to = from + 4 * PAGE;
    int stream[2], datagram[2];
    CHECK(pipe(stream) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0);
    for (unsigned round = 0; !atomic_load(&stop); round++) {
        one_round(round, from, to, stream, datagram);
        atomic_fetch_add(&rounds, 1);
        struct timespec *nap = (struct timespec *)from;
        *nap = (struct timespec){0, 1000};
        if (round % 16 == 0)
            CHECK(nanosleep(nap, nap) == 0 || errno == EINTR);
    }
    return arg;
}

static void *short_thread(void *arg)
{
    return getppid() > 0 ? arg : 0;
}

static void storm(void)
{
    pthread_t threads[THREADS], other;
    arena_start(8 * THREADS + 8);
    evict_always(1);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], 0, send_and_check, whole(8 * PAGE)) == 0);
    for (int i = 0; i < 30; i++) {
        usleep(100000);
        void *result;
        CHECK(pthread_create(&other, 0, short_thread, &stop) == 0);
        CHECK(pthread_join(other, &result) == 0 && result);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    evict_always(0);
    printf("%ld rounds, %lu pages brought\n", atomic_load(&rounds), brought());
    CHECK(rounds > THREADS && brought() > 100);
}

static int set_filter(struct sock_filter *code, unsigned short len)
{
    struct sock_fprog filter = {len, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void *write_a_byte(void *unused)
{
    (void)unused;
    return (void *)(write(1, "", 0) == 0 ? 0l : 1l);
}

/* Filters hold for the program, and not for what the dispatch needs. */
static void seccomp_filters(void)
{
    struct sock_filter forbids[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    CHECK(set_filter(forbids, 4) == 0);
    /* What a new thread begins with. */
    forbids[1].k = SYS_sigaltstack;
    CHECK(set_filter(forbids, 4) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1 && errno == EINVAL);
    struct sock_filter serves[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mkdir, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 1000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    CHECK(set_filter(serves, 9) == 0);
    CHECK(mkdir("/nowhere", 0) == -1 && errno == EXDEV);
    pthread_t thread;
    void *failed;
    CHECK(pthread_create(&thread, 0, write_a_byte, 0) == 0 && pthread_join(thread, &failed) == 0 && !failed);
}

const struct test thread_tests[] = {
    {"vforked", vforked},
    {"spawned", spawned},
    {"forked", forked},
    {"cleared", cleared},
    {"cancelled", cancelled},
    {"large", large},
    {"storm", storm},
    {"seccomp_filters", seccomp_filters},
    {0, 0},
};
