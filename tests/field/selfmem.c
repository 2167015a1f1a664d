// selfmem MIB: a process reads and writes its own memory by /proc/self/mem, as code generators do: by pread
// and pwrite, by read and write at a position, by lists of buffers, and over pages at once.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, STEP = 16 * PAGE, PART = 3 * PAGE };

int main(int count, char **words) {
    size_t bytes = (size_t)atol(words[1]) << 20, failed = 0, wrong = 0;
    int file = open("/proc/self/mem", O_RDWR), error = 0;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t each = bytes / sizeof *memory;
    for (size_t k = 0; k < each; k++) memory[k] = k * 0x9e3779b97f4a7c15u;
    static uint64_t buffer[PART / 8];
    for (size_t at = 0; at + STEP <= bytes; at += STEP) {
        off_t from = (off_t)(uintptr_t)memory + (off_t)at;
        struct iovec list[2] = {{buffer, PAGE}, {(char *)buffer + PAGE, 2 * PAGE}};
        ssize_t got;
        errno = 0;
        switch (at / STEP % 3) {
        case 0: got = pread(file, buffer, PART, from); break;
        case 1: lseek(file, from, SEEK_SET); got = read(file, buffer, PART); break;
        default: got = preadv(file, list, 2, from);
        }
        if (got != PART) failed++, error = errno;
        for (size_t k = 0; k < PART / 8; k++) {
            wrong += got == PART && buffer[k] != (at / 8 + k) * 0x9e3779b97f4a7c15u;
            buffer[k] = ~((at / 8 + k) * 0x9e3779b97f4a7c15u);
        }
        errno = 0;
        switch (at / STEP % 3) {
        case 0: got = pwrite(file, buffer, PART, from); break;
        case 1: lseek(file, from, SEEK_SET); got = write(file, buffer, PART); break;
        default: got = pwritev(file, list, 2, from);
        }
        if (got != PART || lseek(file, 0, SEEK_CUR) < 0) failed++, error = errno;
    }
    for (size_t k = 0; k < each; k++) {
        uint64_t value = k * 0x9e3779b97f4a7c15u;
        wrong += memory[k] != (k * 8 % STEP < PART ? ~value : value);
    }
    printf("calls that failed: %zu (%s), wrong words: %zu\n", failed, error ? strerror(error) : "-", wrong);
    // Missing memory stays an error.
    errno = 0;
    munmap(memory, bytes);
    ssize_t got = pread(file, buffer, 8, (off_t)(uintptr_t)memory);
    printf("of nothing: %zd %s\n", got, strerror(errno));
    return failed || wrong;
}
