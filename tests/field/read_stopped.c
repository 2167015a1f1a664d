// read_stopped MIB: a process reads its child's memory while the child is stopped, after it goes on, and when
// it is gone. While it is stopped each call answers: all, as it was written, or an error. Missing and
// read-only memory is EFAULT as ever.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PART = 20 * PAGE, STEP = 256 * PAGE };

static uint64_t value(size_t k) { return k * 0x9e3779b97f4a7c15u; }

static uint64_t buffer[PART / 8];
static size_t failed, wrong;

// Reads a part of it every so many bytes.
static void look(pid_t pid, uint64_t *memory, size_t bytes) {
    for (size_t at = 2 * STEP; at + STEP <= bytes; at += STEP) {
        struct iovec mine = {buffer, PART}, theirs = {memory + at / 8, PART};
        ssize_t got = process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
        failed += got != PART;
        for (ssize_t k = 0; k < got / 8; k++) wrong += buffer[k] != value(at / 8 + (size_t)k);
    }
}

static const char *result(ssize_t got) { return got < 0 ? strerror(errno) : got == PAGE ? "all" : "a part"; }

int main(int count, char **words) {
    size_t bytes = (size_t)atol(words[1]) << 20;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t k = 0; k < bytes / 8; k++) memory[k] = value(k);
        mprotect(memory, STEP, PROT_READ);
        munmap(memory + STEP / 8, PAGE);
        raise(SIGSTOP);
        pause();
        _exit(0);
    }
    if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) return 3;
    look(pid, memory, bytes);
    failed = 0;
    printf("stopped: %zu words are wrong\n", wrong);
    kill(pid, SIGCONT);
    if (waitpid(pid, &status, WCONTINUED) != pid || !WIFCONTINUED(status)) return 3;
    struct iovec mine = {buffer, PAGE}, gone = {memory + STEP / 8, PAGE}, fixed = {memory, PAGE};
    // As often as a debugger looks. It is refused at once.
    for (int looked = 0; looked < 1000; looked++) process_vm_readv(pid, &mine, 1, &gone, 1, 0);
    printf("unmapped: %s\n", result(process_vm_readv(pid, &mine, 1, &gone, 1, 0)));
    printf("read-only: %s", result(process_vm_writev(pid, &mine, 1, &fixed, 1, 0)));
    printf(", %s\n", result(process_vm_readv(pid, &mine, 1, &fixed, 1, 0)));
    look(pid, memory, bytes);
    printf("goes on: %zu calls failed, %zu words are wrong\n", failed, wrong);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    printf("gone: %s\n", result(process_vm_readv(pid, &mine, 1, &fixed, 1, 0)));
    return failed || wrong;
}
