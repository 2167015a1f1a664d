// A thread ends while the page of its `struct pthread` would be taken out: what the kernel writes there,
// after the thread's last instruction, must arrive, or whoever joins the thread waits for ever.
//
// The thread is stopped by a tracer in the kernel, on its way out; then its page is advised to leave. The
// alarm ends a join that has no end.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

enum { MEMORY_BYTES = 160 << 20, PAGE_BYTES = 4096 };

struct thread {
    pid_t id;
    uintptr_t self;
};

static int to_thread[2], from_thread[2];

static void *ends(void *nothing) {
    struct thread own = {gettid(), (uintptr_t)pthread_self()};
    char go;
    if (write(from_thread[1], &own, sizeof own) != sizeof own || read(to_thread[0], &go, 1) != 1) _exit(9);
    return nothing;
}

static int ends_as_c11(void *nothing) {
    ends(nothing);
    return -5;
}

// Returns how many bytes of the page the advice reached; -1: the thread could not be traced.
static long advised_at_its_end(struct thread thread, int process) {
    int status, signal = 0;
    if (ptrace(PTRACE_SEIZE, thread.id, 0, PTRACE_O_TRACEEXIT) || write(to_thread[1], "x", 1) != 1)
        return -1;
    while (waitpid(thread.id, &status, __WALL) > 0 && status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8)) {
        signal = WSTOPSIG(status);
        ptrace(PTRACE_CONT, thread.id, 0, status >> 16 ? 0 : signal);
    }
    struct iovec page = {(void *)(thread.self & -(uintptr_t)PAGE_BYTES), PAGE_BYTES};
    long advised = syscall(SYS_process_madvise, process, &page, 1, MADV_PAGEOUT, 0);
    ptrace(PTRACE_CONT, thread.id, 0, 0);
    while (waitpid(thread.id, &status, __WALL) > 0 && !WIFEXITED(status))
        ptrace(PTRACE_CONT, thread.id, 0, 0);
    return advised;
}

static void join_threads(char *memory) {
    pthread_t thread;
    thrd_t c11;
    int result;
    alarm(20);
    for (int round = 0; round < 3; round++) {
        if (pthread_create(&thread, 0, ends, 0)) _exit(3);
        // The stack is managed from now on, and used again by the next thread.
        for (size_t at = 0; at < MEMORY_BYTES; at += PAGE_BYTES) memory[at]++;
        pthread_join(thread, 0);
    }
    if (thrd_create(&c11, ends_as_c11, 0) || thrd_join(c11, &result) || result != -5) _exit(4);
    _exit(0);
}

int main(void) {
    char *memory = mmap(0, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pipe(to_thread) || pipe(from_thread)) return 2;
    pid_t child = fork();
    if (child == 0) join_threads(memory);
    int process = syscall(SYS_pidfd_open, child, 0), status;
    for (int round = 0; round < 4; round++) {
        struct thread thread;
        if (read(from_thread[0], &thread, sizeof thread) != sizeof thread) return 5;
        if (round == 0) {
            sleep(1);
            if (write(to_thread[1], "x", 1) != 1) return 6;
        } else if (advised_at_its_end(thread, process) != PAGE_BYTES) {
            perror("a thread could not be traced, or its page not be advised");
            return 7;
        }
    }
    if (waitpid(child, &status, 0) != child) return 8;
    if (WIFSIGNALED(status))
        fprintf(stderr, "the join of a thread that has ended: %s\n", strsignal(WTERMSIG(status)));
    return status != 0;
}
