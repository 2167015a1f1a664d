/* One thread moves memory (mremap), another one maps what it leaves behind and guards it at once, while the move is not over
 * for memspill yet: what was moved must not be taken for what is guarded.
 *
 * usage: guards_beside_moves SECONDS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define INSTALL 102
#define PAGE 4096UL
#define PAGES 256UL
#define PLACES 4

static char *places[PLACES];
/* The place that is being left; NULL: none, and `busy` says whether the other thread has seen that. */
static char *_Atomic leaving;
static _Atomic int busy, done;
static _Atomic long guarded;

/* The place that is left is mapped and guarded as soon as it is free. */
static void *squat(void *unused) {
    (void)unused;
    while (!done) {
        busy = 1;
        char *place = leaving;
        if (place) {
            char *p = mmap(place, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (p == place && madvise(p, PAGES * PAGE, INSTALL) == 0) guarded++;
            if (p != MAP_FAILED) munmap(p, PAGES * PAGE);
        }
        busy = 0;
    }
    return NULL;
}

static char *press(void) {
    static char *p;
    const size_t len = 96UL << 20;
    if (!p) p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static size_t from;
    for (size_t i = 0; i < len / 8; i += PAGE) p[(from + i) % len] = (char)i;
    from = (from + len / 8) % len;
    return p;
}

int main(int argc, char **argv) {
    long seconds = argc > 1 ? atol(argv[1]) : 5, moves = 0, bad = 0;
    for (int i = 0; i < 10; i++) press();
    char *all = mmap(NULL, 2 * PAGES * PAGE * PLACES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PLACES; i++) places[i] = all + (2 * i) * (long)(PAGES * PAGE);
    munmap(all, 2 * PAGES * PAGE * PLACES);
    char *p = mmap(places[0], PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t i = 0; i < PAGES; i++) memset(p + i * PAGE, (int)(i % 250 + 1), PAGE);
    pthread_t thread;
    pthread_create(&thread, NULL, squat, NULL);
    time_t end = time(NULL) + seconds;
    while (time(NULL) < end && !bad) {
        press();
        char *to = places[(moves + 1) % PLACES];
        leaving = p;
        p = mremap(p, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (p == MAP_FAILED) return perror("mremap"), 2;
        leaving = NULL;
        while (busy) {}
        moves++;
        for (size_t i = 0; i < PAGES; i++)
            if (p[i * PAGE] != (char)(i % 250 + 1) || p[i * PAGE + 4095] != (char)(i % 250 + 1)) bad++;
    }
    done = 1;
    pthread_join(thread, NULL);
    printf("%ld moves, %ld times guarded, %ld bad\n", moves, (long)guarded, bad);
    if (bad) fprintf(stderr, "BAD PAGE: %ld\n", bad);
    return bad || !guarded;
}
