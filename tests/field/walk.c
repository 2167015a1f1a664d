// walk MIB ROUNDS: fills memory with numbers, and looks at it again and again in two orders. The plainest
// program there is: with it, that pages leave and come back unchanged.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int main(int count, char **words) {
    size_t pages = (size_t)atol(words[1]) << 8, wrong = 0, each = 512;
    uint64_t *memory =
        mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t k = 0; k < pages * each; k++) memory[k] = k % 3 ? mix(k) : k;
    for (int round = 0; round < atoi(words[2]); round++) {
        for (size_t k = 0; k < pages; k++) {
            size_t page = round % 2 ? mix(k + round) % pages : k, at = page * each + k % each;
            wrong += memory[at] != (at % 3 ? mix(at) : at);
        }
    }
    printf("%zu pages, wrong: %zu\n", pages, wrong);
    return wrong != 0;
}
