// process_madvise MIB: a program gives itself advice by process_madvise, on several ranges at once, most of
// whose pages are away.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
static uint64_t *memory;
static size_t pages;

static void fill(void) {
    for (size_t i = 0; i < pages; i++) memory[i * PAGE / 8 + 9] = i + 1;
}

// How many pages of [from, to) are as they were filled.
static size_t same(size_t from, size_t to) {
    size_t count = 0;
    for (size_t i = from; i < to; i++) count += memory[i * PAGE / 8 + 9] == i + 1;
    return count;
}

// On the second and the fourth quarter.
static long advise(int self, int advice) {
    size_t bytes = pages / 4 * PAGE;
    struct iovec ranges[] = {{(char *)memory + bytes, bytes}, {(char *)memory + 3 * bytes, bytes}};
    long result = syscall(SYS_process_madvise, self, ranges, 2, advice, 0);
    return result == (long)(2 * bytes) ? 1 : result < 0 ? -errno : 0;
}

int main(int count, char **args) {
    (void)count;
    pages = (size_t)atol(args[1]) << 8;
    size_t quarter = pages / 4;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    for (int round = 0; round < 2; round++) {
        fill();
        long result = advise(self, MADV_DONTNEED);
        int took = result == 1;
        printf("DONTNEED %ld", result);
        printf(", kept %d", same(0, quarter) == quarter && same(2 * quarter, 3 * quarter) == quarter);
        size_t left = same(quarter, 2 * quarter) + same(3 * quarter, pages);
        printf(", gone %d\n", left == (took ? 0 : 2 * quarter));
        fill();
        // Pages that are not stored to again may be gone or not.
        printf("FREE %ld", advise(self, MADV_FREE));
        memory[9] = 1;
        printf(", kept %d\n", same(0, quarter) == quarter && same(2 * quarter, 3 * quarter) == quarter);
        fill();
        printf("GUARD_INSTALL %ld", advise(self, GUARD_INSTALL));
        result = advise(self, GUARD_REMOVE);
        printf(", GUARD_REMOVE %ld, kept %d", result,
            same(0, quarter) == quarter && same(2 * quarter, 3 * quarter) == quarter);
        printf(", gone %d\n", result != 1 || same(quarter, 2 * quarter) + same(3 * quarter, pages) == 0);
        // Removing guards that are not there does nothing.
        fill();
        result = advise(self, GUARD_REMOVE);
        printf("GUARD_REMOVE %ld, kept %d\n", result, same(0, pages) == pages);
    }
    struct iovec wrong = {(char *)memory + 1, PAGE};
    long result = syscall(SYS_process_madvise, self, &wrong, 1, MADV_DONTNEED, 0);
    printf("not a page: %ld %s\n", result, strerror(errno));
    result = syscall(SYS_process_madvise, self, (void *)8, 1, MADV_DONTNEED, 0);
    printf("no ranges: %ld %s\n", result, strerror(errno));
    return 0;
}
