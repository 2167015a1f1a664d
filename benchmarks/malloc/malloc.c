// What the comparison of this folder (compare.py) does with malloc.
//
//   malloc fill MIB BLOCK THREADS      so much memory is filled by blocks of BLOCK bytes, none is freed
//   malloc churn BALLAST BLOCK TIMES   BALLAST MiB are filled; then a block is made, filled and freed, TIMES
//                                      times: prints the nanoseconds of one
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS_MAX 64

static size_t bytes, block;

// One word of noise in 64 bytes, so that a page compresses, but is not zeros.
static unsigned noise(char *p, size_t len, unsigned state) {
    for (size_t i = 0; i + sizeof state <= len; i += 64) {
        state = state * 1664525 + 1013904223;
        memcpy(p + i, &state, sizeof state);
    }
    return state;
}

static char *made(size_t len) {
    char *p = malloc(len);
    if (!p) {
        perror("malloc");
        exit(1);
    }
    return p;
}

static void *fill(void *number) {
    unsigned state = (unsigned)(size_t)number + 1;
    for (size_t i = 0; i < bytes / block; i++) state = noise(made(block), block, state);
    return (void *)(size_t)state;
}

static int fill_all(size_t threads) {
    pthread_t ids[THREADS_MAX];
    unsigned sum = 0;
    if (threads == 1) sum = (unsigned)(size_t)fill(NULL);
    for (size_t i = 0; threads > 1 && i < threads; i++)
        if (pthread_create(&ids[i], NULL, fill, (void *)i)) return 1;
    for (size_t i = 0; threads > 1 && i < threads; i++) {
        void *one;
        pthread_join(ids[i], &one);
        sum += (unsigned)(size_t)one;
    }
    printf("%u\n", sum);
    return 0;
}

static int churn(size_t ballast, size_t times) {
    struct timespec start, end;
    unsigned sum = 0;
    noise(made(ballast), ballast, 1);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t i = 0; i < times; i++) {
        char *p = made(block);
        memset(p, (int)i, block);
        sum += (unsigned char)p[block / 2];
        free(p);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
    printf("%.0f\n", ns / times);
    return sum == 1;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    size_t mib = atol(argv[2]), last = atol(argv[4]);
    block = atol(argv[3]);
    if (!block || !last || last > (argv[1][0] == 'f' ? THREADS_MAX : 1u << 30)) return 2;
    if (argv[1][0] == 'c') return churn(mib << 20, last);
    bytes = (mib << 20) / last;
    return fill_all(last);
}
