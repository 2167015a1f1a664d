// A static program checks what it finds at its start, and memory of several threads, of a child and of the
// heap, most of which is swapped out meanwhile.
//
// usage: static MIB [WORD...]; prints what it has found, which is to be the same with memspill as without it.
// With the word "exit" or "abort" it ends so.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, BLOCK_BYTES = 3000 };
extern char **environ;
static size_t words_of_thread;
// The threads have theirs at the same time, however they run.
static pthread_barrier_t all_filled;
static volatile sig_atomic_t caught;

static void on_signal(int signal) { caught += signal == SIGALRM; }

static uint64_t value(uint64_t at, uint64_t who) { return (at + who) * 0x9e3779b97f4a7c15; }

static void *fill(void *argument) {
    uint64_t who = (uintptr_t)argument, bad = 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t *at = mmap(NULL, words_of_thread * 8, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) return (void *)1;
    for (size_t word = 0; word < words_of_thread; word++) at[word] = value(word, who);
    if (who < THREADS) pthread_barrier_wait(&all_filled);
    for (int pass = 0; pass < 2; pass++)
        for (size_t word = 0; word < words_of_thread; word++) bad += at[word] != value(word, who);
    munmap(at, words_of_thread * 8);
    return (void *)(uintptr_t)bad;
}

// Blocks that malloc takes from the heap, half of them given back meanwhile.
static uint64_t use_heap(size_t bytes) {
    size_t blocks = bytes / BLOCK_BYTES, bad = 0;
    uint64_t **all = calloc(blocks, sizeof *all);
    for (size_t block = 0; block < blocks; block++) {
        all[block] = malloc(BLOCK_BYTES);
        for (size_t word = 0; word < BLOCK_BYTES / 8; word++) all[block][word] = value(word, block);
        if (block % 2) free(all[block - 1]), all[block - 1] = NULL;
    }
    for (size_t block = 0; block < blocks; block++)
        for (size_t word = 0; all[block] && word < BLOCK_BYTES / 8; word++)
            bad += all[block][word] != value(word, block);
    uint64_t *longer = NULL;
    for (size_t words = 1 << 16; words <= bytes / 16; words *= 2) {
        longer = realloc(longer, words * 8);
        size_t first = words == 1 << 16 ? 0 : words / 2;
        for (size_t word = first; word < words; word++) longer[word] = value(word, 7);
        for (size_t word = 0; word < words; word++) bad += longer[word] != value(word, 7);
    }
    free(longer);
    for (size_t block = 0; block < blocks; block++) free(all[block]);
    free(all);
    return bad;
}

static int has_tracer(void) {
    char line[200];
    int tracer = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "TracerPid: %d", &tracer);
    if (status) fclose(status);
    return tracer;
}

int main(int count, char **words) {
    size_t bytes = (count > 1 ? strtoul(words[1], NULL, 10) : 8) << 20;
    char itself[300] = "";
    if (readlink("/proc/self/exe", itself, sizeof itself - 1) < 0) perror("readlink");
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    int blocks = 0, variables = 0, descriptors = 0;
    for (int signal = 1; signal < 65; signal++) blocks += sigismember(&blocked, signal) == 1;
    for (char **variable = environ; *variable; variable++) variables += !strncmp(*variable, "PATH=", 5);
    for (int descriptor = 3; descriptor < 100; descriptor++) {
        char name[40];
        snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
        descriptors += !access(name, F_OK);
    }
    printf("%s %s, %d blocked, tracer %d, PATH %d, %d descriptors, random %d, entry %d:", itself,
        program_invocation_short_name, blocks, has_tracer(), variables, descriptors,
        getauxval(AT_RANDOM) != 0, getauxval(AT_BASE) == 0 && getauxval(AT_ENTRY) != 0);
    for (int word = 1; word < count; word++) printf(" [%s]", words[word]);
    printf("\n");
    fflush(stdout);
    if (count > 2 && !strcmp(words[2], "exit")) exit(7);
    if (count > 2 && !strcmp(words[2], "abort")) abort();

    signal(SIGALRM, on_signal);
    words_of_thread = bytes / THREADS / 8;
    pthread_t threads[THREADS];
    if (pthread_barrier_init(&all_filled, NULL, THREADS)) return 3;
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, fill, (void *)thread)) return 3;
    raise(SIGALRM);
    uint64_t bad = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        void *result;
        pthread_join(threads[thread], &result);
        bad += (uintptr_t)result;
    }
    bad += use_heap(bytes / 4);

    // A child has its parent's memory, some of it swapped out.
    size_t kept_words = bytes / 8 / 4;
    uint64_t *kept = malloc(kept_words * 8);
    for (size_t word = 0; word < kept_words; word++) kept[word] = value(word, 9);
    bad += (uintptr_t)fill((void *)5);
    pid_t child = fork();
    if (child == 0) {
        uint64_t lost = 0;
        for (size_t word = 0; word < kept_words; word++) lost += kept[word] != value(word, 9);
        _exit(lost != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    for (size_t word = 0; word < kept_words; word++) bad += kept[word] != value(word, 9);
    char line[40] = "";
    FILE *other = popen("echo another program", "r");
    if (!other || !fgets(line, sizeof line, other) || pclose(other)) bad++;
    printf("bad %llu, child %d, caught %d, %s", (unsigned long long)bad, status, (int)caught, line);
    return bad != 0 || status != 0;
}
