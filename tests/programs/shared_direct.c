// Reads past the page cache into shared memory that is being swapped: shared_direct SECONDS FILE
//
// In each round the file is opened with O_DIRECT (by open, by syscall) or has that switched on (fcntl), is
// read into a part of the memory, and is closed. The bytes that were read must be there. Beside it a thread
// walks through private memory, so that pages are taken out all the time.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, FILE_PAGES = 512, SHARED_PAGES = 8192, PRIVATE_PAGES = 16384 };
static atomic_int is_over;

static uint64_t stamp(size_t page, size_t word) { return page * 0x9e3779b97f4a7c15u + word * 77 + 1; }

static void *walk(void *memory) {
    for (size_t round = 0; !is_over; round++)
        for (size_t page = 0; page < PRIVATE_PAGES && !is_over; page++)
            ((volatile uint64_t *)memory)[page * WORDS] = round;
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    double end = now() + atof(argv[1]);
    const char *path = argv[2];
    int protection = PROT_READ | PROT_WRITE, fd;
    uint64_t *page = aligned_alloc(PAGE, PAGE);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    for (size_t i = 0; i < FILE_PAGES; i++) {
        for (size_t word = 0; word < WORDS; word++) page[word] = stamp(i, word);
        if (write(fd, page, PAGE) != PAGE) { perror(path); return 2; }
    }
    fsync(fd);
    close(fd);
    fd = open(path, O_RDONLY | O_DIRECT);
    if (fd < 0) { perror("O_DIRECT"); return 77; }
    close(fd);
    size_t private_bytes = (size_t)PRIVATE_PAGES * PAGE;
    uint64_t *shared = mmap(NULL, (size_t)SHARED_PAGES * PAGE, protection, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *other = mmap(NULL, private_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < SHARED_PAGES; i++) shared[i * WORDS] = i;
    pthread_t walker;
    pthread_create(&walker, NULL, walk, other);
    unsigned long rounds = 0;
    for (size_t at = 0; now() < end; at = (at + FILE_PAGES) % SHARED_PAGES, rounds++) {
        // Long enough for pages to leave between.
        if (rounds % 16 == 0) usleep(1200000);
        uint64_t *part = shared + at * WORDS;
        memset(part, 0, (size_t)FILE_PAGES * PAGE);
        fd = rounds % 3 == 0   ? open(path, O_RDONLY | O_DIRECT)
             : rounds % 3 == 1 ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECT)
                               : open(path, O_RDONLY);
        if (rounds % 3 == 2) fcntl(fd, F_SETFL, O_DIRECT);
        if (read(fd, part, sizeof(uint64_t) * FILE_PAGES * WORDS) != FILE_PAGES * PAGE) {
            perror("read");
            return 2;
        }
        close(fd);
        for (size_t i = 0; i < FILE_PAGES; i++)
            for (size_t word = 0; word < WORDS; word += 3)
                if (part[i * WORDS + word] != stamp(i, word)) {
                    fprintf(stderr, "round %lu: page %zu word %zu is %lx, not %lx\n", rounds, i, word,
                            part[i * WORDS + word], stamp(i, word));
                    return 1;
                }
    }
    is_over = 1;
    pthread_join(walker, NULL);
    unlink(path);
    puts("all as it should be");
    return 0;
}
