// Shared memory of which a process gives back a part and has it mapped again by mremap: shared_regrow MIB
//
// Longer in place, for which the kernel has no event, and a second mapping of the same memory. Bytes stored
// by way of one are there by way of the other, and in a child.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 6 };
static size_t pages;

static void check(const char *what, volatile uint64_t *memory, size_t from, uint64_t round) {
    for (size_t page = from; page < pages; page++)
        if (memory[page * PAGE / 8] != (round << 32 | page)) {
            fprintf(stderr, "%s: round %lu page %zu is %lx\n", what, round, page, memory[page * PAGE / 8]);
            exit(1);
        }
}

static void *must(void *at) {
    if (at == MAP_FAILED) { perror("mremap"); exit(2); }
    return at;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t bytes = strtoul(argv[1], 0, 10) << 20, half = bytes / 2;
    pages = bytes / PAGE;
    uint64_t *memory = must(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t page = 0; page < pages; page++) memory[page * PAGE / 8] = round << 32 | page;
        if (round == 1) sleep(2); // it has become managed
        // The upper half is no longer mapped, and then again, in its place: no page was lost.
        if (munmap((char *)memory + half, half)) { perror("munmap"); return 2; }
        if (must(mremap(memory, half, bytes, 0)) != memory) return 2;
        check("grown", memory, 0, round);
        uint64_t *second = must(mremap(memory, 0, bytes, MREMAP_MAYMOVE));
        check("second mapping", second, 0, round);
        second[round * PAGE / 8] = 7;
        if (memory[round * PAGE / 8] != 7) { fprintf(stderr, "not the same memory\n"); return 1; }
        second[round * PAGE / 8] = round << 32 | round;
        // The first mapping moves while the second stays.
        memory = must(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
            must(mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))));
        munmap(second, bytes);
        pid_t child = fork();
        if (child == 0) { check("child", memory, 0, round); _exit(0); }
        int status;
        waitpid(child, &status, 0);
        if (status) { fprintf(stderr, "a child ends with %d\n", status); return 1; }
    }
    return 0;
}
