// Children that write what they share with their parent.
//
//   forked_writers CHILDREN MIB     the parent fills MIB, and forks; each child writes all of it, partly by
//                                   system calls, and has what it has written; the first one forks in the
//                                   middle of that, and its child has what was there then. In the end the
//                                   parent has its own.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static unsigned char *memory;
static size_t pages;
static int zeros;

// Half of a page can be compressed.
static void fill(unsigned char *page, uint64_t who, size_t number) {
    uint64_t x = who << 32 | number;
    for (size_t at = 0; at < PAGE; at += 16) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(page + at, &x, sizeof x);
    }
}

static void check(size_t from, size_t to, uint64_t who, int zeroed) {
    static unsigned char expected[PAGE];
    for (size_t number = from; number < to; number++) {
        memset(expected, 0, PAGE);
        fill(expected, who, number);
        if (zeroed && number % 5 == 0) memset(expected + 16, 0, 64);
        if (memcmp(memory + number * PAGE, expected, PAGE)) {
            fprintf(stderr, "page %zu of writer %lu is not as it was written\n", number, (unsigned long)who);
            _exit(1);
        }
    }
}

static void write_pages(size_t from, size_t to, uint64_t who) {
    for (size_t number = from; number < to; number++) {
        unsigned char *page = memory + number * PAGE;
        // The first write to some pages is the kernel's.
        if (number % 5 == 0 && read(zeros, page + 16, 64) != 64) perror("read"), _exit(2);
        fill(page, who, number);
        if (number % 5 == 0 && read(zeros, page + 16, 64) != 64) perror("read"), _exit(2);
    }
}

static int failed(void) {
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    return failed;
}

static void child(uint64_t who) {
    write_pages(0, pages / 2, who);
    if (who == 1 && fork() == 0) {
        check(0, pages / 2, 1, 1);
        check(pages / 2, pages, 0, 0);
        write_pages(0, pages, 1000);
        check(0, pages, 1000, 1);
        _exit(0);
    }
    write_pages(pages / 2, pages, who);
    check(0, pages, who, 1);
    _exit(failed() ? 1 : 0);
}

int main(int count, char **args) {
    if (count != 3) return fprintf(stderr, "usage: forked_writers CHILDREN MIB\n"), 2;
    int children = atoi(args[1]);
    pages = (size_t)atoi(args[2]) << 20 >> 12;
    zeros = open("/dev/zero", O_RDONLY);
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (zeros < 0 || memory == MAP_FAILED) return perror("forked_writers"), 2;
    for (size_t number = 0; number < pages; number++) fill(memory + number * PAGE, 0, number);
    for (int who = 1; who <= children; who++) {
        pid_t pid = fork();
        if (pid < 0) return perror("fork"), 2;
        if (pid == 0) child(who);
    }
    int bad = failed();
    check(0, pages, 0, 0);
    printf("%d children of %zu MiB: %s\n", children, pages * PAGE >> 20, bad ? "wrong" : "right");
    return bad ? 1 : 0;
}
