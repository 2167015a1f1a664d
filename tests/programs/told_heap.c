// Is what malloc gets from the kernel registered before malloc returns?
//
//     told_heap MIB BLOCK
//
// Fills MIB MiB by blocks of BLOCK bytes. In the second half it looks at once whether the mapping that is new
// is registered with a userfaultfd ("um" in VmFlags of /proc/self/smaps): that of a block that malloc has mapped
// by itself (100 KiB or more), else that which ends where the heap ends, each time that this has grown by 64
// KiB or more. Prints how often it was and how often not; 0 if it always was, and that 10 times at least.
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

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? atol(argv[1]) : 96) << 20, block = argc > 2 ? atol(argv[2]) : 4000;
    int told = 0, untold = 0;
    unsigned sum = 0;
    char *end = sbrk(0);
    for (size_t i = 0; i < bytes / block; i++) {
        char *p = malloc(block);
        if (!p) return 1;
        char *now = sbrk(0);
        char *fresh = block >= 100 << 10 ? p : now - end >= 64 << 10 ? now : NULL;
        if (i > bytes / block / 2 && fresh) {
            if (is_registered((unsigned long)fresh) == 1) told++;
            else untold++;
        }
        memset(p, (int)i, block);
        sum += (unsigned char)p[block / 2];
        end = now;
    }
    printf("registered %d, not %d, sum %u\n", told, untold, sum);
    return untold != 0 || told < 10;
}
