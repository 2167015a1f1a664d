// heap_top.c: brk grows and shrinks while what it holds is away; mremap moves and grows such memory; children
// by vfork and posix_spawn get their words from it.
#define _GNU_SOURCE
#include "press.h"
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static void fill(uint64_t *memory, size_t bytes, uint64_t seed) {
    for (size_t k = 0; k < bytes / 8; k++) memory[k] = k * seed;
}
static int is_filled(const uint64_t *memory, size_t bytes, uint64_t seed) {
    for (size_t k = 0; k < bytes / 8; k++)
        if (memory[k] != k * seed) return 0;
    return 1;
}
static int is_zero(const uint64_t *memory, size_t bytes) { return is_filled(memory, bytes, 0); }

static void heap(void) {
    enum { HALF = 4 << 20 };
    char *start = sbrk(0);
    start = sbrk((PAGE - (uintptr_t)start % PAGE) % PAGE + 2 * HALF);
    start = (char *)sbrk(0) - 2 * HALF;
    fill((uint64_t *)start, 2 * HALF, 3);
    press(), press();
    MUST(brk(start + HALF) == 0);
    MUST(brk(start + 2 * HALF) == 0);
    MUST(is_filled((uint64_t *)start, HALF, 3));
    MUST(is_zero((uint64_t *)(start + HALF), HALF));
    MUST(brk(start) == 0);
}

static void moves(void) {
    size_t bytes = 4 << 20;
    uint64_t *memory = anonymous(bytes);
    fill(memory, bytes, 5);
    press(), press();
    memory = mremap(memory, bytes, 2 * bytes, MREMAP_MAYMOVE);
    MUST(memory != MAP_FAILED && is_filled(memory, bytes, 5));
    MUST(is_zero(memory + bytes / 8, bytes));
    press(), press();
    uint64_t *place = anonymous(bytes);
    MUST(mremap((char *)memory + PAGE, bytes - PAGE, bytes - PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) ==
         place);
    press();
    MUST(place[0] == (uint64_t)PAGE / 8 * 5 && memory[1] == 5);
    munmap(place, bytes);
}

static void children(void) {
    char *words = anonymous(PAGE);
    char *script = words + 100, *line[4] = {words, words + 20, script, NULL};
    int status;
    strcpy(words, "sh"), strcpy(words + 20, "-c"), strcpy(script, "exit 7");
    pid_t child;
    for (int k = 0; k < 3; k++) {
        press(), press();
        MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, line, environ) == 0);
        MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        press(), press();
        child = vfork();
        if (child == 0) execv("/bin/sh", line), _exit(99);
        MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    }
}

int main(void) {
    press_begin(16);
    heap();
    moves();
    children();
    puts("memory is where it was put");
    return 0;
}
