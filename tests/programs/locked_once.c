/* All memory is locked and unlocked again, and all that is mapped is read once: what memspill has added to
 * the process must serve as before. Then more is written than the budget holds.
 *
 * usage: locked_once MIB
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static size_t len;
static unsigned long *p;

static void fill(unsigned long seed) {
    for (size_t i = 0; i < len / 8; i += 128) p[i] = i * seed;
}
static void verify(unsigned long seed, const char *when) {
    for (size_t i = 0; i < len / 8; i += 128)
        if (p[i] != i * seed) fprintf(stderr, "BAD PAGE: %zu %s\n", i / 512, when), exit(1);
}

/* As a debugger or a leak checker does. Not by loads: pages that memspill is just emptying are guarded for
 * some 100 ns. */
static void read_everything(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], prot[8], page[4096];
    unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, prot) == 3 && prot[0] == 'r' && prot[1] == 'w')
            for (unsigned long at = from; at < to; at += 4096) {
                struct iovec here = {page, 4096}, there = {(void *)at, 4096};
                process_vm_readv(getpid(), &here, 1, &there, 1, 0);
            }
    fclose(maps);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    len = strtoul(argv[1], NULL, 0) << 20;
    /* Before memory is tight, and then while it is. */
    for (unsigned long round = 1; round <= 3; round++) {
        if (mlockall(round == 2 ? MCL_CURRENT | MCL_FUTURE : MCL_CURRENT) || munlockall()) perror("mlockall");
        p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fill(3 * round);
        verify(3 * round, "after mlockall");
        read_everything();
        fill(5 * round);
        verify(5 * round, "after all was read");
        munmap(p, len);
    }
    puts("unlocked");
    return 0;
}
