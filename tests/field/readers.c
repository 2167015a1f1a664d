// readers vm|mem|peek MIB: a process reads and writes the memory of its child, which has filled more than the
// budget: by process_vm_readv and process_vm_writev, by /proc/PID/mem, by ptrace. The child then finds what
// was written.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, STEP = 64 * PAGE, PART = 5 * PAGE, WORDS = PART / 8 };

static uint64_t value(size_t k) { return k * 0x9e3779b97f4a7c15u; }

static uint64_t buffer[WORDS];

// Whether all of it was read or written.
static int all(const char *kind, pid_t pid, int file, uint64_t *at, int writes) {
    if (!strcmp(kind, "peek")) {
        for (size_t k = 0; k < WORDS; k += PAGE / 8) {
            errno = 0;
            if (writes) ptrace(PTRACE_POKEDATA, pid, at + k, buffer[k]);
            else buffer[k] = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, at + k, 0);
            if (errno) return 0;
        }
        return 1;
    }
    if (!strcmp(kind, "mem")) {
        off_t from = (off_t)(uintptr_t)at;
        return PART == (writes ? pwrite(file, buffer, PART, from) : pread(file, buffer, PART, from));
    }
    struct iovec mine = {buffer, PART}, theirs[2] = {{at, PAGE}, {at + PAGE / 8, PART - PAGE}};
    return PART == (writes ? process_vm_writev : process_vm_readv)(pid, &mine, 1, theirs, 2, 0);
}

int main(int count, char **words) {
    const char *kind = words[1];
    size_t bytes = (size_t)atol(words[2]) << 20, step = !strcmp(kind, "peek") ? PAGE / 8 : 1;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int begin[2], end[2];
    char byte = 0;
    if (pipe(begin) || pipe(end)) return 3;
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t k = 0; k < bytes / 8; k++) memory[k] = value(k);
        size_t wrong = 0;
        if (write(begin[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 1) _exit(3);
        for (size_t k = 0; k < bytes / 8; k++) {
            int written = k * 8 % STEP < PART && k % step == 0;
            wrong += memory[k] != (written ? ~value(k) : value(k));
        }
        printf("the child finds %zu wrong\n", wrong);
        fflush(stdout);
        _exit(wrong != 0);
    }
    if (read(begin[0], &byte, 1) != 1) return 3;
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int file = open(path, O_RDWR), status, failed = 0, wrong = 0, error = 0;
    int is_traced = !strcmp(kind, "peek");
    if (is_traced && (ptrace(PTRACE_ATTACH, pid, 0, 0) || waitpid(pid, &status, 0) != pid)) return 4;
    for (size_t at = 0; at + STEP <= bytes; at += STEP) {
        if (!all(kind, pid, file, memory + at / 8, 0)) failed++, error = errno;
        for (size_t k = 0; k < WORDS; k++) {
            wrong += k % step == 0 && buffer[k] != value(at / 8 + k);
            buffer[k] = ~value(at / 8 + k);
        }
        if (!all(kind, pid, file, memory + at / 8, 1)) failed++, error = errno;
    }
    if (is_traced) ptrace(PTRACE_DETACH, pid, 0, 0);
    printf("%d calls failed (%s), %d words were wrong\n", failed, error ? strerror(error) : "-", wrong);
    fflush(stdout);
    if (write(end[1], &byte, 1) != 1) return 3;
    waitpid(pid, &status, 0);
    return failed || wrong || status;
}
