// Is what malloc gets from the kernel registered before malloc returns?
//
//     told_heap MIB BLOCK [thread]
//
// Fills MIB MiB by blocks of BLOCK bytes. In the second half it looks at once whether the mapping that is new
// is registered with a userfaultfd ("um" in VmFlags of /proc/self/smaps): that of a block that malloc has
// mapped by itself (100 KiB or more), else that which ends where the heap ends, each time that this has grown
// by 64 KiB or more; in a further thread, whose heap malloc opens page by page, that of one block in 64
// KiB. Prints how often it was and how often not; 0 if it always was, 10 times at least.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char lines[1 << 20];

// Uses no heap, which must not grow meanwhile.
static int is_registered(unsigned long at) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    int is_inside = 0, is_there = 0;
    unsigned long start, end;
    if (!smaps) return -1;
    setvbuf(smaps, lines + (1 << 19), _IOFBF, 1 << 19);
    while (fgets(lines, 1 << 19, smaps)) {
        if (sscanf(lines, "%lx-%lx %*s", &start, &end) == 2) is_inside = start < at && at <= end;
        if (is_inside && !strncmp(lines, "VmFlags:", 8)) is_there = strstr(lines, " um") != NULL;
    }
    fclose(smaps);
    return is_there;
}

static size_t bytes, block;
static int told, untold, is_thread;

static void *fill(void *unused) {
    unsigned sum = 0;
    char *end = sbrk(0);
    for (size_t i = 0; i < bytes / block; i++) {
        char *p = malloc(block);
        if (!p) exit(1);
        char *now = sbrk(0);
        int is_fresh = is_thread ? i % ((64 << 10) / block) == 0 : now - end >= 64 << 10;
        char *fresh = block >= 100 << 10 || is_thread ? p : now;
        if (i > bytes / block / 2 && (is_fresh || block >= 100 << 10)) {
            if (is_registered((unsigned long)fresh) == 1) told++;
            else untold++;
        }
        memset(p, (int)i, block);
        sum += (unsigned char)p[block / 2];
        end = now;
    }
    printf("registered %d, not %d, sum %u\n", told, untold, sum);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 3) return 2;
    bytes = (size_t)atol(argv[1]) << 20;
    block = atol(argv[2]);
    is_thread = argc > 3;
    if (!is_thread) fill(NULL);
    else if (pthread_create(&thread, NULL, fill, NULL) || pthread_join(thread, NULL)) return 1;
    return untold != 0 || told < 10;
}
