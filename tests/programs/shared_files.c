// Files of shared memory that are swapped: shared_files MODE MIB [NAME]
//
// Each mode fills a file by a mapping and looks at it later, when a part of it has been swapped out:
//   pool      a memfd that processes map anew, one of them with MAP_POPULATE, and all add to
//   calls     pread, pwrite, ftruncate and fallocate of what is mapped
//   sealed, readonly, private, popen: uses in which it cannot be managed (a seal; a mapping by a read-only
//             descriptor; a private mapping; children that read it by a descriptor)
//   hold      /dev/shm/NAME: says "ready", waits for /dev/shm/NAME.go, and checks it
//   verify    /dev/shm/NAME, filled by another run of this
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, WORKERS = 3, ROUNDS = 3 };
static size_t pages, bytes;

static void fail(const char *what) { perror(what); _exit(2); }

#define MUST(condition) do { if (!(condition)) fail(#condition); } while (0)

static uint64_t word_of(size_t page, size_t word) { return page * 2654435761u + (word % 64) * 40503u + 1; }

static void *map(int fd, int protection, int flags) {
    void *memory = mmap(NULL, bytes, protection, flags, fd, 0);
    MUST(memory != MAP_FAILED);
    return memory;
}

static uint64_t *map_shared(int fd) { return map(fd, PROT_READ | PROT_WRITE, MAP_SHARED); }

static void fill(uint64_t *memory, size_t from, size_t to) {
    for (size_t page = from; page < to; page++)
        for (size_t word = 0; word < WORDS; word++) memory[page * WORDS + word] = word_of(page, word);
}

// Word 0 of each page may have been added to.
static void check(const uint64_t *memory, size_t from, size_t to, uint64_t added) {
    for (size_t page = from; page < to; page++)
        for (size_t word = 0; word < WORDS; word++)
            if (memory[page * WORDS + word] != word_of(page, word) + (word ? 0 : added)) {
                fprintf(stderr, "page %zu word %zu: %lx\n", page, word, memory[page * WORDS + word]);
                _exit(1);
            }
}

static void check_zero(const uint64_t *memory, size_t from, size_t to) {
    for (size_t at = from * WORDS; at < to * WORDS; at++)
        if (memory[at]) { fprintf(stderr, "page %zu is not zero\n", at / WORDS); _exit(1); }
}

static void check_by_calls(int fd, size_t from, size_t to) {
    uint64_t page[WORDS];
    for (size_t at = from; at < to; at++) {
        MUST(pread(fd, page, PAGE, at * PAGE) == PAGE);
        for (size_t word = 0; word < WORDS; word++)
            if (page[word] != word_of(at, word)) {
                fprintf(stderr, "read: page %zu word %zu: %lx\n", at, word, page[word]);
                _exit(1);
            }
    }
}

// More memory than there is, so that what is not used leaves.
static void press(size_t press_bytes) {
    char *memory = mmap(NULL, press_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < press_bytes; at += PAGE) memory[at] += at / PAGE + 1;
    MUST(munmap(memory, press_bytes) == 0);
}

static int new_memfd(void) {
    int fd = memfd_create("shared_files", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(fd >= 0);
    MUST(ftruncate(fd, bytes) == 0);
    return fd;
}

static void wait_for(pid_t pid) {
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    if (status) { fprintf(stderr, "a child: status %x\n", status); _exit(1); }
}

static void pool(void) {
    int fd = new_memfd();
    uint64_t *memory = map_shared(fd);
    fill(memory, 0, pages);
    pid_t workers[WORKERS];
    for (int worker = 0; worker < WORKERS; worker++)
        if ((workers[worker] = fork()) == 0) {
            MUST(munmap(memory, bytes) == 0);
            for (int round = 0; round < ROUNDS; round++) {
                int flags = MAP_SHARED | (worker == 1 ? MAP_POPULATE : 0);
                uint64_t *own = map(fd, PROT_READ | PROT_WRITE, flags);
                for (size_t page = 0; page < pages; page++) {
                    __atomic_fetch_add(&own[page * WORDS], 1, __ATOMIC_RELAXED);
                    if (own[page * WORDS + 77] != word_of(page, 77)) {
                        fprintf(stderr, "worker %d: page %zu\n", worker, page);
                        _exit(1);
                    }
                }
                MUST(munmap(own, bytes) == 0);
            }
            _exit(0);
        }
    for (int worker = 0; worker < WORKERS; worker++) wait_for(workers[worker]);
    check(memory, 0, pages, WORKERS * ROUNDS);
    // Nobody has it mapped for a while.
    MUST(munmap(memory, bytes) == 0);
    press(bytes);
    memory = map_shared(fd);
    check(memory, 0, pages, WORKERS * ROUNDS);
}

static void calls(void) {
    int fd = new_memfd();
    uint64_t *memory = map_shared(fd);
    fill(memory, 0, pages);
    press(2 * bytes);
    check_by_calls(fd, 0, pages);
    uint64_t own = 99;
    sleep(3);
    press(2 * bytes);
    MUST(pwrite(fd, &own, 8, 5 * PAGE + 8) == 8);
    MUST(memory[5 * WORDS + 1] == 99);
    memory[5 * WORDS + 1] = word_of(5, 1);
    check(memory, 0, pages, 0);
    sleep(5);
    press(2 * bytes);
    MUST(ftruncate(fd, bytes / 2) == 0 && ftruncate(fd, bytes) == 0);
    check(memory, 0, pages / 2, 0);
    check_zero(memory, pages / 2, pages);
    fill(memory, pages / 2, pages);
    MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE * 16) == 0);
    check_zero(memory, 0, 16);
    check(memory, 16, pages, 0);
}

static void unfit(const char *mode) {
    int fd = new_memfd();
    uint64_t *memory = map_shared(fd), *other = NULL;
    fill(memory, 0, pages);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (!strcmp(mode, "sealed")) MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
    if (!strcmp(mode, "readonly")) other = map(open(path, O_RDONLY), PROT_READ, MAP_SHARED);
    press(6 * bytes);
    // When it is managed already, as far as it may be.
    if (!strcmp(mode, "private")) other = map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    if (!strcmp(mode, "popen")) {
        MUST(fcntl(fd, F_SETFD, 0) == 0);
        char command[128];
        // Each opens it anew.
        snprintf(command, sizeof command, "cat /dev/fd/%d | cmp - /proc/%d/fd/%d", fd, getpid(), fd);
        MUST(system(command) == 0);
        snprintf(command, sizeof command, "cat /dev/fd/%d >shared_files.copy", fd);
        MUST(system(command) == 0);
        check_by_calls(open("shared_files.copy", O_RDONLY), 0, pages);
        unlink("shared_files.copy");
    }
    check(memory, 0, pages, 0);
    if (other) check(other, 0, pages, 0);
    press(6 * bytes);
    check(memory, 0, pages, 0);
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[1] : "", *name = argc > 3 ? argv[3] : "shared_files";
    bytes = argc > 2 ? strtoul(argv[2], NULL, 10) << 20 : 0;
    pages = bytes / PAGE;
    char path[300], go[310];
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    snprintf(go, sizeof go, "%s.go", path);
    if (!strcmp(mode, "pool")) pool();
    else if (!strcmp(mode, "calls")) calls();
    else if (!strcmp(mode, "hold")) {
        int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        MUST(fd >= 0 && ftruncate(fd, bytes) == 0);
        uint64_t *memory = map_shared(fd);
        fill(memory, 0, pages);
        struct stat now;
        int tries = 0;
        do {
            press(2 * bytes);
            MUST(fstat(fd, &now) == 0);
        } while ((size_t)now.st_blocks * 512 > bytes / 4 * 3 && ++tries < 30);
        printf("ready after %d tries\n", tries);
        fflush(stdout);
        while (access(go, F_OK)) usleep(10000);
        check(memory, 0, pages, 0);
    } else if (!strcmp(mode, "verify")) {
        int fd = open(path, O_RDONLY);
        MUST(fd >= 0);
        check_by_calls(fd, 0, pages);
    } else unfit(mode);
    return 0;
}
