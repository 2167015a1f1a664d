// preload MIB: fills memory that malloc gives, and looks at it again. Says which other malloc it has.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **args) {
    size_t words = (size_t)(count > 1 ? atol(args[1]) : 1) << 17, wrong = 0;
    uint64_t *memory = malloc(words * sizeof *memory);
    for (size_t i = 0; i < words; i++) memory[i] = i * 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < words; i++) wrong += memory[i] != i * 0x9e3779b97f4a7c15u;
    }
    printf("jemalloc: %d, wrong: %zu\n", dlsym(RTLD_DEFAULT, "mallctl") != NULL, wrong);
    return wrong != 0;
}
