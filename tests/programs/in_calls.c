// Threads in the middle of every kind of call that waits, and of handlers: no call fails, no sleep is short,
// no byte is lost, whoever comes and goes meanwhile (tests/attach.sh). Prints `round N` every 100 ms; what is
// wrong is printed, and ends it.
//
//   in_calls [MIB]    MIB (100) of memory, which one thread writes and reads
// Threads here never return.
#pragma GCC diagnostic ignored "-Wreturn-type"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t rounds_of[64];
static const char *names[64];
static int threads;

static volatile int ends;
static void wrong(const char *what, long result) {
    while (ends) pause();
    printf("wrong: %s: %ld, %s\n", what, result, strerror(errno));
    fflush(stdout);
    _exit(1);
}
#define MUST(what, is) do { long result_ = (long)(is); if (!result_) wrong(what, result_); } while (0)

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// A wait that begins now and is not to be shorter. (How late it may be is the machine's matter, but not
// seconds.)
static double began_at(void) { return now(CLOCK_MONOTONIC); }
static void lasted(const char *what, double began, double seconds) {
    double took = now(CLOCK_MONOTONIC) - began;
    if (took < seconds - 0.0005 || took > seconds + 20) {
        printf("wrong: %s of %.4f s took %.4f s\n", what, seconds, took);
        fflush(stdout);
        _exit(1);
    }
}

static struct timespec of_ms(int ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000L}; }
static int some_ms(unsigned *seed) { return 1 + rand_r(seed) % 150; }

static void do_nanosleep(unsigned *seed) {
    int ms = some_ms(seed);
    struct timespec t = of_ms(ms), left;
    double began = began_at();
    MUST("nanosleep", nanosleep(&t, &left) == 0);
    lasted("nanosleep", began, ms / 1e3);
}
static void do_clock_nanosleep(unsigned *seed) {
    int ms = some_ms(seed);
    double began = began_at();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    MUST("clock_nanosleep", clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == 0);
    lasted("clock_nanosleep", began, ms / 1e3);
}
static void do_poll(unsigned *seed) {
    static int pipes[2];
    if (!pipes[1]) MUST("pipe", pipe(pipes) == 0);
    int ms = some_ms(seed);
    struct pollfd fds[3] = {{.fd = pipes[0], .events = POLLIN}, {.fd = -1}, {.fd = -1}};
    double began = began_at();
    MUST("poll", poll(fds, 3, ms) == 0);
    lasted("poll", began, ms / 1e3);
}
static void do_ppoll(unsigned *seed) {
    int ms = some_ms(seed);
    struct timespec t = of_ms(ms);
    sigset_t all;
    sigfillset(&all);
    double began = began_at();
    MUST("ppoll", ppoll(NULL, 0, &t, &all) == 0);
    lasted("ppoll", began, ms / 1e3);
}
static void do_select(unsigned *seed) {
    int ms = some_ms(seed);
    struct timeval t = {0, ms * 1000};
    double began = began_at();
    MUST("select", select(0, NULL, NULL, NULL, &t) == 0);
    lasted("select", began, ms / 1e3);
}
static void do_futex(unsigned *seed) {
    int word = 7, ms = some_ms(seed);
    struct timespec t = of_ms(ms);
    double began = began_at();
    long result = syscall(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 7, &t, NULL, 0);
    MUST("futex", result == -1 && errno == ETIMEDOUT);
    lasted("futex", began, ms / 1e3);
}
static void do_cond(unsigned *seed) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    int ms = some_ms(seed);
    struct timespec t;
    double began = began_at();
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&mutex);
    int result;
    while ((result = pthread_cond_timedwait(&cond, &mutex, &t)) == 0) {}
    pthread_mutex_unlock(&mutex);
    MUST("pthread_cond_timedwait", result == ETIMEDOUT);
    lasted("pthread_cond_timedwait", began, ms / 1e3);
}
static void do_epoll(unsigned *seed) {
    static int epoll;
    if (!epoll) epoll = epoll_create1(0);
    struct epoll_event events[4];
    int ms = some_ms(seed);
    double began = began_at();
    MUST("epoll_wait", epoll_wait(epoll, events, 4, ms) == 0);
    lasted("epoll_wait", began, ms / 1e3);
}
static void do_sigtimedwait(unsigned *seed) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    int ms = some_ms(seed);
    struct timespec t = of_ms(ms);
    double began = began_at();
    MUST("sigtimedwait", sigtimedwait(&set, NULL, &t) == -1 && errno == EAGAIN);
    lasted("sigtimedwait", began, ms / 1e3);
}
static void do_recv_timeout(unsigned *seed) {
    static int pair[2];
    if (!pair[1]) MUST("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int ms = some_ms(seed);
    struct timeval limit = {0, ms * 1000};
    char byte;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    double began = began_at();
    MUST("recv with a limit", recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN);
    lasted("recv with a limit", began, ms / 1e3);
}
static void do_semop(unsigned *seed) {
    static int set = -1;
    if (set < 0) {
        set = semget(IPC_PRIVATE, 1, 0600);
        MUST("semget", set >= 0);
    }
    struct sembuf take = {0, -1, 0};
    int ms = some_ms(seed);
    struct timespec t = of_ms(ms);
    double began = began_at();
    MUST("semtimedop", semtimedop(set, &take, 1, &t) == -1 && errno == EAGAIN);
    lasted("semtimedop", began, ms / 1e3);
    rounds_of[63] = set;
}

// Two threads that hand bytes to each other: none is lost, none comes twice.
struct line { int in, out, is_first, by_socket, by_epoll; };
static void *hand_on(void *arg) {
    struct line *line = arg;
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = line->by_epoll ? "epoll and read" : line->by_socket ? "recv" : "read";
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, line->in, &event);
    for (uint64_t round = 0;; round++) {
        uint64_t word = round, got = 0;
        if (line->is_first) MUST("write", write(line->out, &word, sizeof word) == sizeof word);
        if (line->by_epoll) MUST("epoll_wait without a limit", epoll_wait(epoll, &event, 1, -1) == 1);
        long len = line->by_socket ? recv(line->in, &got, sizeof got, MSG_WAITALL)
                                   : read(line->in, &got, sizeof got);
        MUST(names[index], len == sizeof got && got == round);
        if (round % 64 == 0) usleep(20000);
        if (!line->is_first) MUST("write", write(line->out, &word, sizeof word) == sizeof word);
        rounds_of[index]++;
    }
    return NULL;
}
static void hand(int by_socket, int by_epoll) {
    int there[2], back[2];
    if (by_socket) {
        MUST("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, there) == 0);
        MUST("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, back) == 0);
    } else {
        MUST("pipe", pipe(there) == 0 && pipe(back) == 0);
    }
    for (int first = 0; first < 2; first++) {
        struct line *line = malloc(sizeof *line);
        *line = (struct line){first ? back[0] : there[0], first ? there[1] : back[1], first, by_socket,
                              by_epoll};
        pthread_t thread;
        MUST("pthread_create", pthread_create(&thread, NULL, hand_on, line) == 0);
    }
}

// A handler on its own stack, in which the thread sleeps most of the time; and signals that are counted.
static sem_t handled;
static __thread char *own_stack;
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context, (void)info;
    char here;
    if (own_stack && (&here < own_stack || &here > own_stack + 65536)) wrong("the handler's stack", 0);
    if (signal == SIGUSR2) {
        struct timespec t = of_ms(30);
        double began = began_at();
        MUST("nanosleep in a handler", nanosleep(&t, NULL) == 0);
        lasted("nanosleep in a handler", began, 0.03);
    }
    sem_post(&handled);
}
static void *be_signalled(void *arg) {
    int pipes[2], index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "signalled";
    (void)arg;
    own_stack = malloc(65536);
    stack_t stack = {.ss_sp = own_stack, .ss_size = 65536};
    MUST("sigaltstack", sigaltstack(&stack, NULL) == 0);
    MUST("pipe", pipe(pipes) == 0);
    for (;;) {
        char byte;
        stack_t told;
        MUST("a read that is restarted", read(pipes[0], &byte, 1) != -1);
        MUST("sigaltstack", sigaltstack(NULL, &told) == 0 && told.ss_sp == own_stack);
    }
}
static void *signal_it(void *arg) {
    pthread_t other = *(pthread_t *)arg;
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "signals";
    for (;; rounds_of[index]++) {
        MUST("pthread_kill", pthread_kill(other, rounds_of[index] % 3 ? SIGUSR1 : SIGUSR2) == 0);
        int result;
        while ((result = sem_wait(&handled)) == -1 && errno == EINTR) wrong("sem_wait", -1);
        usleep(1000);
    }
}
// sigsuspend: a mask for the time of a call.
static volatile int suspended;
static void on_rt(int signal) { (void)signal, suspended++; }
static void *suspend(void *arg) {
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "sigsuspend";
    (void)arg;
    sigset_t block, none;
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGRTMIN + 4);
    pthread_sigmask(SIG_BLOCK, &block, NULL);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 4};
    event._sigev_un._tid = syscall(SYS_gettid);
    MUST("timer_create", timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    for (int before = 0;; before++, rounds_of[index]++) {
        struct itimerspec when = {.it_value = of_ms(40)};
        timer_settime(timer, 0, &when, NULL);
        MUST("sigsuspend", sigsuspend(&none) == -1 && errno == EINTR && suspended == before + 1);
        sigset_t now_blocked;
        pthread_sigmask(SIG_BLOCK, NULL, &now_blocked);
        MUST("the mask behind sigsuspend", sigismember(&now_blocked, SIGRTMIN + 4));
    }
}

// Numbers in registers, and a buffer whose every page is known.
static void *compute(void *arg) {
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "computes";
    (void)arg;
    for (;; rounds_of[index]++) {
        double sums[8] = {0};
        for (int i = 0; i < 200000; i++)
            for (int j = 0; j < 8; j++) sums[j] += i * (j + 1) * 0.5;
        for (int j = 0; j < 8; j++) MUST("a sum", sums[j] == 199999.0 * 200000 / 2 * (j + 1) * 0.5);
        usleep(3000);
    }
}
static uint64_t *memory;
static size_t words;
static void *use_memory(void *arg) {
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "memory";
    (void)arg;
    uint64_t version = 0;
    for (size_t i = 0; i < words; i++) memory[i] = i * 0x9e3779b97f4a7c15ull;
    for (;; rounds_of[index]++) {
        for (size_t i = 0; i < words; i += 512) {
            for (size_t j = i; j < i + 512; j += 73)
                if (memory[j] != j * 0x9e3779b97f4a7c15ull + version) wrong("memory", j);
            for (size_t j = i; j < i + 512; j++) memory[j]++;
        }
        version++;
    }
}
static void *nothing(void *arg) { return arg; }
static void *make_threads(void *arg) {
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "makes threads";
    (void)arg;
    for (;; rounds_of[index]++) {
        pthread_t thread;
        void *result, *passed = &result;
        MUST("pthread_create", pthread_create(&thread, NULL, nothing, passed) == 0);
        MUST("pthread_join", pthread_join(thread, &result) == 0 && result == passed);
        usleep(2000);
    }
}
static void *fork_some(void *arg) {
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = "forks";
    (void)arg;
    for (;; rounds_of[index]++) {
        int status;
        pid_t child = fork();
        MUST("fork", child >= 0);
        // Not at once: the SIGCHLD of one that ends while its parent is still inside of fork, with its
        // signals blocked, would go to another thread, and wake that.
        if (!child) {
            usleep(200000);
            _exit(3);
        }
        MUST("waitpid", waitpid(child, &status, 0) == child && status == 3 << 8);
        usleep(150000);
    }
}

typedef void (*Wait)(unsigned *);
static struct { const char *name; Wait wait; } waits[] = {
    {"nanosleep", do_nanosleep},     {"clock_nanosleep", do_clock_nanosleep},
    {"poll", do_poll},               {"ppoll", do_ppoll},
    {"select", do_select},           {"futex", do_futex},
    {"cond", do_cond},               {"epoll", do_epoll},
    {"sigtimedwait", do_sigtimedwait}, {"recv with a limit", do_recv_timeout},
    {"semop", do_semop},
};
static void *keep_waiting(void *arg) {
    size_t which = (size_t)arg;
    unsigned seed = which + 1;
    int index = __atomic_fetch_add(&threads, 1, __ATOMIC_SEQ_CST);
    names[index] = waits[which].name;
    for (;; rounds_of[index]++) waits[which].wait(&seed);
}
static void start(void *(*what)(void *), void *arg) {
    pthread_t thread;
    MUST("pthread_create", pthread_create(&thread, NULL, what, arg) == 0);
}
static void remove_semaphores(int signal) {
    (void)signal;
    ends = 1;
    semctl(rounds_of[63], 0, IPC_RMID);
    _exit(0);
}

int main(int argc, char **argv) {
    words = (argc > 1 ? atoi(argv[1]) : 100) * (size_t)(1 << 17);
    memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST("mmap", memory != MAP_FAILED);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGRTMIN + 4, on_rt);
    signal(SIGTERM, remove_semaphores);
    sem_init(&handled, 0, 0);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) start(keep_waiting, (void *)i);
    hand(0, 0), hand(1, 0), hand(0, 1);
    static pthread_t signalled;
    pthread_create(&signalled, NULL, be_signalled, NULL);
    start(signal_it, &signalled);
    start(suspend, NULL), start(compute, NULL), start(use_memory, NULL), start(make_threads, NULL);
    if (!getenv("NO_FORKS")) start(fork_some, NULL);
    uint64_t before[64] = {0};
    for (int round = 1;; round++) {
        struct timespec t = of_ms(100);
        MUST("nanosleep", nanosleep(&t, NULL) == 0);
        printf("round %d\n", round);
        fflush(stdout);
        // Who makes no progress in a minute hangs.
        if (round % 600) continue;
        for (int i = 0; i < threads; i++) {
            if (strcmp(names[i], "signalled") && rounds_of[i] == before[i]) wrong(names[i], i);
            before[i] = rounds_of[i];
        }
    }
}
