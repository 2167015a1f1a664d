/* Memory that is writable and executable at once, as some JIT compilers have it: more than the budget, each
 * page a function that is called after it was swapped out; beside it plain memory, so that batches hold pages
 * of both kinds.
 *
 * usage: jit MIB
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    size_t pages = strtoul(argv[1], NULL, 0) * 256, bad = 0;
    unsigned char *code = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE | PROT_EXEC,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Right beside it, so that a run of pages may cross from one into the other. */
    unsigned char *data = mmap(code - (pages << 10), pages << 10, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || data == MAP_FAILED) return perror("mmap"), 2;
    for (int round = 1; round <= 2; round++) {
        for (size_t i = 0; i < pages; i++) {
            unsigned char *at = code + (i << 12);
            unsigned value = (unsigned)i * 2654435761u + (unsigned)round;
            memset(at, (int)(value % 251), 4096);
#if defined __x86_64__
            at[0] = 0xb8; /* mov eax, value; ret */
            memcpy(at + 1, &value, 4);
            at[5] = 0xc3;
#else
            memcpy(at, &value, 4);
#endif
            if (i % 4 == 0) memset(data + (i / 4 << 12), (int)(value % 251), 4096);
        }
        for (size_t i = 0; i < pages; i++) {
            unsigned char *at = code + (i << 12);
            unsigned value = (unsigned)i * 2654435761u + (unsigned)round, found;
#if defined __x86_64__
            found = ((unsigned (*)(void))(void *)at)();
#else
            memcpy(&found, at, 4);
#endif
            bad += found != value || at[4095] != value % 251;
            if (i % 4 == 0) bad += data[(i / 4 << 12) + 7] != value % 251;
        }
    }
    if (bad) return fprintf(stderr, "BAD PAGE: %zu of them\n", bad), 1;
    puts("compiled");
    return 0;
}
