// All that may happen to shared anonymous memory, one after the other, while it is swapped: shared_changes
// MIB
//
// MADV_REMOVE (zeros for everybody), MADV_DONTNEED (nothing is lost), mprotect, a mapping that moves, one
// that is cut, one of which only a child is left, and exec.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };
static size_t pages;

static void *map(void) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"); exit(2); }
    return memory;
}

static uint64_t stamp(size_t page, uint64_t round) { return (page * 2654435761u) ^ round << 40 | 1; }

static void fill(uint64_t *memory, size_t from, size_t to, uint64_t round) {
    for (size_t page = from; page < to; page++)
        for (size_t word = 0; word < WORDS; word += 7)
            memory[page * WORDS + word] = stamp(page, round) + word;
}

static void expect(const char *what, uint64_t *memory, size_t from, size_t to, size_t first,
                   uint64_t round) {
    for (size_t page = from; page < to; page++)
        for (size_t word = 0; word < WORDS; word += 7) {
            uint64_t should = round ? stamp(first + page - from, round) + word : 0;
            if (memory[page * WORDS + word] != should) {
                fprintf(stderr, "%s: page %zu word %zu is %lx, not %lx\n", what, page, word,
                        memory[page * WORDS + word], should);
                exit(1);
            }
        }
}

static void in_child(void (*what)(uint64_t *), uint64_t *memory) {
    pid_t child = fork();
    if (child == 0) { what(memory); _exit(0); }
    int status;
    waitpid(child, &status, 0);
    if (status) { fprintf(stderr, "a child ends with %d\n", status); exit(1); }
}

static void sees_what_is_left(uint64_t *memory) {
    expect("child, removed", memory, 0, pages / 4, 0, 0);
    expect("child, kept", memory, pages / 4, pages, pages / 4, 1);
    fill(memory, 0, pages / 4, 2);
}

static void sees_all(uint64_t *memory) {
    expect("child", memory, 0, pages / 4, 0, 2);
    expect("child", memory, pages / 4, pages, pages / 4, 1);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE;
    if (getenv("AFTER_EXEC")) return 0;
    uint64_t *memory = map();
    fill(memory, 0, pages, 1);
    usleep(300000);
    fill(memory, 0, pages, 1);
    expect("filled", memory, 0, pages, 0, 1);
    if (madvise(memory, pages / 4 * PAGE, MADV_REMOVE)) { perror("MADV_REMOVE"); return 1; }
    in_child(sees_what_is_left, memory);
    if (madvise(memory, pages * PAGE, MADV_DONTNEED)) { perror("MADV_DONTNEED"); return 1; }
    in_child(sees_all, memory);
    // Locked memory is not to be removed, and is not.
    if (mlock(memory, PAGE)) { perror("mlock"); return 1; }
    if (madvise(memory, PAGE, MADV_REMOVE) == 0) { fprintf(stderr, "locked, and removed\n"); return 1; }
    munlock(memory, PAGE);
    mprotect(memory, pages * PAGE, PROT_READ);
    sees_all(memory);
    mprotect(memory, pages * PAGE, PROT_READ | PROT_WRITE);
    // It moves onto other memory, whose place it takes.
    uint64_t *other = map();
    fill(other, 0, pages, 3);
    memory = mremap(memory, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
    if (memory == MAP_FAILED) { perror("mremap"); return 1; }
    sees_all(memory);
    // In two, and the pieces in the other order.
    uint64_t *place = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t half = pages / 2;
    mremap(memory + half * WORDS, half * PAGE, half * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    mremap(memory, half * PAGE, half * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + half * WORDS);
    expect("second half", place, 0, half, half, 1);
    expect("first quarter", place, half, half + pages / 4, 0, 2);
    // Private memory where it was, which is not the object's.
    uint64_t *private = mmap(memory, pages * PAGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    fill(private, 0, pages, 4);
    expect("private", private, 0, pages, 0, 4);
    expect("second half", place, 0, half, half, 1);
    // Many objects that come and go.
    for (uint64_t round = 5; round < 10; round++) {
        uint64_t *brief = map();
        fill(brief, 0, pages, round);
        usleep(50000);
        expect("brief", brief, 0, pages, 0, round);
        munmap(brief, pages * PAGE);
    }
    expect("first quarter", place, half, half + pages / 4, 0, 2);
    // Only a child has it at last; the parent goes on by exec.
    int ends[2];
    if (pipe(ends)) return 2;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        // Until the parent has called exec, which closes the other end.
        if (read(ends[0], &byte, 1) != 0) _exit(2);
        expect("orphan", place, 0, half, half, 1);
        expect("orphan", place, half, half + pages / 4, 0, 2);
        puts("all as it should be");
        fflush(stdout);
        _exit(0);
    }
    close(ends[0]);
    munmap(place, pages * PAGE);
    char fd[16];
    snprintf(fd, sizeof fd, "%d", ends[1]);
    setenv("FD", fd, 1);
    execl("/bin/sh", "sh", "-c", "eval \"exec $FD>&-\"; wait; sleep 1", NULL);
    return 2;
}
