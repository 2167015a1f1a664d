/* Sorts four times the budget: sort [BUDGET_MIB]. Build it with `pkg-config --cflags --libs memspill`. */
#include <memspill.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *checked(void *pointer) {
    if (!pointer) {
        fprintf(stderr, "%s\n", memspill_last_error());
        exit(1);
    }
    return pointer;
}

/* In place, and along the memory: what swap likes. */
static void sort(uint64_t *from, uint64_t *to) {
    while (to - from > 1) {
        uint64_t middle = from[(to - from) / 2], *left = from, *right = to - 1;
        while (left <= right) {
            while (*left < middle) left++;
            while (*right > middle) right--;
            if (left <= right) {
                uint64_t number = *left;
                *left++ = *right;
                *right-- = number;
            }
        }
        if (right - from < to - left) {
            sort(from, right + 1);
            from = left;
        } else {
            sort(left, to);
            to = right + 1;
        }
    }
}

int main(int argc, char **argv) {
    uint64_t budget = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 20;
    size_t count = budget * 4 / sizeof(uint64_t);
    struct memspill_arena *arena = checked(memspill_arena_create(budget));
    uint64_t *numbers = checked(memspill_arena_alloc(arena, count * sizeof(uint64_t)));
    uint64_t next = 1, before = 0, after = 0;
    for (size_t i = 0; i < count; i++) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        before += numbers[i] = next >> 16;
    }
    sort(numbers, numbers + count);
    for (size_t i = 0; i < count; i++) {
        if (i && numbers[i - 1] > numbers[i]) return puts("not sorted"), 1;
        after += numbers[i];
    }
    if (before != after) return puts("not the same numbers"), 1;
    struct memspill_stats stats;
    if (memspill_arena_stats(arena, &stats) < 0) checked(NULL);
    printf("%zu numbers sorted in %ju MiB\n", count, (uintmax_t)(budget >> 20));
    memspill_arena_destroy(arena);
    return 0;
}
