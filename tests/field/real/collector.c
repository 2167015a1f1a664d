// collector.c: lists that the Boehm collector keeps; with GC_ENABLE_INCREMENTAL=1 its heap is protected
// against writes between collections.
// cc: -lgc
#include <gc.h>
#include <stdio.h>

struct cell {
    struct cell *next;
    long value, more[6];
};

int main(void) {
    static struct cell *lists[64];
    long sum = 0;
    GC_INIT();
    for (long k = 0; k < 3000000; k++) {
        struct cell *cell = GC_MALLOC(sizeof *cell);
        cell->value = k;
        cell->next = k % 8000 ? lists[k % 64] : NULL;
        lists[k % 64] = cell;
    }
    for (int k = 0; k < 64; k++)
        for (struct cell *cell = lists[k]; cell; cell = cell->next) sum += cell->value % 1000;
    printf("%ld\n", sum);
    return 0;
}
