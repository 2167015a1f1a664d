// Children of forks whose memory another process reads before they touch it themselves, as a tracer does:
// whom the first page fault names is not the child. Part of the memory is not to be inherited
// (MADV_WIPEONFORK, MADV_DONTFORK).
//
// usage: read_from_outside; prints "ready", or what was found in a child or in the parent and should not be
// there.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 10000, ROUNDS = 6 };
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static char *wiped, *kept, *absent;
static int to_reader[2], from_reader[2];

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(3);
}

static char *fresh(void) {
    char *at = mmap(NULL, PAGES * (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    for (size_t page = 0; page < PAGES; page++) *(uint64_t *)(at + page * PAGE + 64) = page + 1;
    return at;
}

// The first page that is not as it should be, or -1.
static long wrong(char *at, int empty) {
    for (size_t page = 0; page < PAGES; page++)
        if (*(volatile uint64_t *)(at + page * PAGE + 64) != (empty ? 0 : page + 1)) return page;
    return -1;
}

struct request {
    pid_t pid;
    char *addr;
};

// Reads a few pages of a process's memory: these are the first faults there.
static void look_into(struct request asked) {
    for (int page = 0; page < 8; page++) {
        uint64_t word = 0;
        struct iovec here = {&word, sizeof word}, there = {asked.addr + page * 1000 * PAGE + 64, sizeof word};
        if (process_vm_readv(asked.pid, &here, 1, &there, 1, 0) != sizeof word) fail("process_vm_readv");
        if (word != (uint64_t)page * 1000 + 1) {
            printf("from outside, page %d of a child holds %llu\n", page * 1000, (unsigned long long)word);
            exit(1);
        }
    }
}

static void reader(void) {
    struct request asked;
    while (read(to_reader[0], &asked, sizeof asked) == sizeof asked) {
        if (asked.addr) {
            look_into(asked);
        } else if (ptrace(PTRACE_SEIZE, asked.pid, 0, PTRACE_O_TRACEFORK)) {
            fail("PTRACE_SEIZE");
        }
        if (write(from_reader[1], "", 1) != 1) fail("write");
        if (asked.addr) continue;
        // The asker forks now, and its child stops before it has done anything.
        int status;
        unsigned long child = 0;
        for (int stopped = 0; stopped < 2;) {
            pid_t who = waitpid(-1, &status, __WALL);
            if (who < 0) fail("waitpid");
            if (who == asked.pid && status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8))
                ptrace(PTRACE_GETEVENTMSG, who, 0, &child);
            stopped++;
        }
        look_into((struct request){child, kept});
        if (ptrace(PTRACE_DETACH, child, 0, 0) || ptrace(PTRACE_DETACH, asked.pid, 0, 0))
            fail("PTRACE_DETACH");
    }
    exit(0);
}

static void ask(pid_t pid, char *addr) {
    struct request request = {pid, addr};
    if (write(to_reader[1], &request, sizeof request) != sizeof request) fail("write");
}

static void answered(void) {
    char byte;
    if (read(from_reader[0], &byte, 1) != 1) fail("the reader has ended");
}

int main(void) {
    if (pipe(to_reader) || pipe(from_reader)) fail("pipe");
    // Only `kept` is known to the reader: it lies where the next mapping will be, in the reader as well.
    kept = mmap(NULL, PAGES * (size_t)PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t reader_pid = fork();
    if (reader_pid == 0) {
        close(to_reader[1]);
        reader();
    }
    munmap(kept, PAGES * (size_t)PAGE);
    char *expected = kept;
    kept = fresh();
    if (kept != expected) fail("another address");
    wiped = fresh();
    absent = fresh();
    if (madvise(wiped, PAGES * (size_t)PAGE, MADV_WIPEONFORK)) fail("MADV_WIPEONFORK");
    if (madvise(absent, PAGES * (size_t)PAGE, MADV_DONTFORK)) fail("MADV_DONTFORK");
    prctl(PR_SET_PTRACER, reader_pid);
    for (int round = 0; round < ROUNDS; round++) {
        // In turn: a raw system call, so that the child touches nothing by itself; a stop at the fork; and a
        // child that forks before it has touched anything.
        int traced = round % 3 == 1, twice = round % 3 == 2, go[2];
        if (pipe(go)) fail("pipe");
        if (traced) {
            ask(getpid(), NULL);
            answered();
        }
        pid_t child = traced ? fork() : syscall(SYS_fork);
        if (child == 0) {
            char byte;
            while (!traced && read(go[0], &byte, 1) != 1) {}
            if (twice) {
                pid_t grandchild = fork();
                int status = 0;
                if (grandchild > 0 && (waitpid(grandchild, &status, 0) != grandchild || status)) _exit(2);
            }
            long page;
            if ((page = wrong(wiped, 1)) >= 0) printf("a child's wiped page %ld is not empty\n", page);
            else if ((page = wrong(kept, 0)) >= 0) printf("a child's page %ld is lost\n", page);
            fflush(stdout);
            _exit(page >= 0);
        }
        if (child < 0) fail("fork");
        if (!traced) {
            ask(child, kept);
            answered();
            if (write(go[1], "", 1) != 1) fail("write");
        }
        close(go[0]);
        close(go[1]);
        int status;
        if (waitpid(child, &status, 0) != child) fail("waitpid");
        if (status) {
            printf("round %d: a child ended with %x\n", round, status);
            exit(1);
        }
        if (wrong(wiped, 0) >= 0 || wrong(kept, 0) >= 0 || wrong(absent, 0) >= 0) {
            printf("round %d: the parent finds other bytes\n", round);
            exit(1);
        }
    }
    printf("ready\n");
    return 0;
}
