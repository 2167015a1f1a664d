// Memory that grows by mremap, in place or by moving, while it is being managed; and that is cut and moved
// onto other memory.
//
// usage: remap-grow MIB PARTS STEP_KIB; prints the most anonymous memory (RssAnon, in MiB) that it has had.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "most_anonymous.h"

enum { PAGE = 4096 };
// By system call: the agent does not see it.
static char *map(size_t bytes) {
    char *at = (char *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
        -1, 0);
    if (at == MAP_FAILED)
        perror("mmap"), exit(3);
    return at;
}

static void fill(char *base, size_t from, size_t to, uint64_t mark) {
    for (size_t at = from; at < to; at += PAGE)
        *(volatile uint64_t *)(base + at) = at + mark;
}

static void check(char *base, size_t bytes, uint64_t mark) {
    for (size_t at = 0; at < bytes; at += PAGE)
        if (*(volatile uint64_t *)(base + at) != at + mark)
            printf("byte %zu of part %lu is lost\n", at, (unsigned long)mark), exit(1);
}

static char *remap(char *from, size_t bytes, size_t now, int flags, char *to) {
    char *at = mremap(from, bytes, now, flags, to);
    if (at == MAP_FAILED)
        perror("mremap"), exit(3);
    return at;
}

int main(int argc, char **argv) {
    size_t most = (argc > 1 ? strtoul(argv[1], NULL, 10) : 300) << 20;
    size_t parts = argc > 2 ? strtoul(argv[2], NULL, 10) : 300;
    size_t step = (argc > 3 ? strtoul(argv[3], NULL, 10) : 64) << 10;
    char **part = malloc(parts * sizeof *part);
    size_t *bytes = malloc(parts * sizeof *bytes);
    // Each is filled where nobody was told of it, and grows at once.
    for (size_t number = 0; number < parts; number++) {
        bytes[number] = (most / parts / 4 * 3) / step * step;
        part[number] = map(bytes[number]);
        fill(part[number], 0, bytes[number], number + 1);
        while (bytes[number] < most / parts) {
            char *block = bytes[number] / step % 3 ? NULL : map(PAGE);
            part[number] = remap(part[number], bytes[number], bytes[number] + step, MREMAP_MAYMOVE, NULL);
            fill(part[number], bytes[number], bytes[number] + step, number + 1);
            bytes[number] += step;
            if (block)
                munmap(block, PAGE);
        }
        look();
    }
    usleep(100000);
    look();
    for (size_t number = 0; number < parts; number++)
        check(part[number], bytes[number], number + 1);
    // Cut, and moved onto another one.
    for (size_t number = 0; number + 1 < parts; number += 2) {
        size_t kept = bytes[number] / 2 / PAGE * PAGE;
        part[number] = remap(part[number], bytes[number], kept, 0, NULL);
        check(part[number], kept, number + 1);
        part[number] = remap(part[number], kept, kept, MREMAP_MAYMOVE | MREMAP_FIXED, part[number + 1]);
        check(part[number], kept, number + 1);
        if (*(volatile uint64_t *)(part[number] + kept) != kept + number + 2)
            return printf("the rest of part %zu is lost\n", number + 2), 1;
    }
    printf("%ld\n", most_kib >> 10);
    return 0;
}
