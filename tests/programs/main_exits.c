// The first thread ends with pthread_exit, the others go on: /proc/PID shows no memory any more.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 24576, ROUNDS = 4 };

static char *fill(long mark)
{
    char *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
        0);
    if (memory == MAP_FAILED)
        exit(3);
    for (long page = 0; page < PAGES; page++)
        *(long *)(memory + page * PAGE) = page + mark;
    return memory;
}

static void check(char *memory, long mark)
{
    for (long page = 0; page < PAGES; page++)
        if (*(long *)(memory + page * PAGE) != page + mark) {
            fprintf(stderr, "page %ld is wrong\n", page);
            exit(1);
        }
}

static pthread_t first;
static char *early;

static void *work(void *unused)
{
    (void)unused;
    pthread_join(first, NULL);
    for (long round = 2; round < 2 + ROUNDS; round++) {
        char *memory = fill(round); // a fresh mapping, so that growth must be seen too
        check(memory, round);
        check(early, 1);
        munmap(memory, (size_t)PAGES * PAGE);
    }
    puts("ready");
    exit(0);
}

int main(void)
{
    pthread_t other;
    first = pthread_self();
    early = fill(1);
    if (pthread_create(&other, NULL, work, NULL) != 0)
        return 2;
    pthread_exit(NULL);
}
