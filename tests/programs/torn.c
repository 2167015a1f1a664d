/* A mapping of which every other page is made inaccessible when memory is tight already: what fills memory
 * ahead of a stream must leave those pages alone. They would count, and could not be swapped out.
 *
 * usage: torn MIB: the accessible half.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    /* Mappings are few (vm.max_map_count), so the pieces are of four pages. */
    const size_t piece = 4 << 12;
    size_t len = strtoul(argv[1], NULL, 0) << 20, pieces = len / piece, bad = 0;
    size_t heap_len = 96UL << 20;
    unsigned char *heap = mmap(NULL, heap_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(heap, 3, heap_len);
    unsigned char *torn = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* By now it is registered as a whole. */
    for (size_t i = 0; i < pieces; i++) mprotect(torn + (2 * i + 1) * piece, piece, PROT_NONE);
    for (int round = 1; round <= 2; round++) {
        for (size_t i = 0; i < pieces; i++)
            memset(torn + 2 * i * piece, (int)(i + (size_t)round) % 251, piece);
        for (size_t i = 0; i < pieces; i++)
            for (size_t at = 0; at < piece; at += 512)
                bad += torn[2 * i * piece + at] != (i + (size_t)round) % 251;
    }
    for (size_t i = 0; i < heap_len; i += 512) bad += heap[i] != 3;
    if (bad) return fprintf(stderr, "BAD PAGE: %zu\n", bad), 1;
    puts("whole");
    return 0;
}
