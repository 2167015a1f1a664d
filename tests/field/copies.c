// copies CHILDREN MIB PERCENT: the parent fills MIB and forks; each child writes PERCENT of the pages that it
// shares with the others, and finds all as it must be, again and again, when all children are there. In the
// end the parent has its own.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t *memory;
static size_t pages;

static uint64_t at(size_t page, uint64_t who) { return (page * 64 + who + 1) * 0x9e3779b97f4a7c15u; }

static void fill(size_t page, uint64_t who) {
    uint64_t x = at(page, who);
    for (int k = 0; k < WORDS; k += 2) memory[page * WORDS + k] = x = x * 6364136223846793005u + 1;
}

static size_t wrong(size_t page, uint64_t who) {
    uint64_t x = at(page, who);
    for (int k = 0; k < WORDS; k += 2)
        if (memory[page * WORDS + k] != (x = x * 6364136223846793005u + 1)) return 1;
    return 0;
}

static int child(uint64_t who, size_t percent, int all_there) {
    size_t bad = 0;
    char byte;
    for (size_t page = 0; page < pages; page++)
        if (page % 100 < percent) fill(page, who);
    if (read(all_there, &byte, 1) != 0) bad++;
    for (int round = 0; round < 4; round++)
        for (size_t page = 0; page < pages; page++) bad += wrong(page, page % 100 < percent ? who : 0);
    return bad != 0;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    int children = atoi(words[1]), failed = 0, status, all_there[2];
    if (pipe(all_there)) return 2;
    pages = (size_t)atol(words[2]) << 8;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < pages; page++) fill(page, 0);
    for (int k = 1; k <= children; k++) {
        pid_t pid = fork();
        if (pid == 0) close(all_there[1]), _exit(child(k, atoi(words[3]), all_there[0]));
        if (pid < 0) perror("fork"), failed++;
    }
    close(all_there[1]);
    while (wait(&status) > 0) failed += status != 0;
    size_t bad = 0;
    for (size_t page = 0; page < pages; page++) bad += wrong(page, 0);
    printf("%d children of %zu pages: %d failed, %zu wrong\n", children, pages, failed, bad);
    return failed || bad;
}
