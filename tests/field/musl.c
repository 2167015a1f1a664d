// A program of another C library: it is loaded with the agent, fills more memory than there is, has threads
// that end and are joined, forks, and runs itself.
// compiler: musl-gcc
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static uint64_t *memory;
static size_t words;

static uint64_t word_at(size_t i) { return i * 0x9e3779b97f4a7c15u ^ i >> 7; }

// How many words are not what they were.
static size_t wrong_words(void) {
    size_t wrong = 0;
    for (size_t i = 0; i < words; i++) wrong += memory[i] != word_at(i);
    return wrong;
}

static void *in_thread(void *part) {
    size_t wrong = 0;
    for (size_t i = (size_t)part; i < words; i += 512) wrong += memory[i] != word_at(i);
    return (void *)wrong;
}

static int ended(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

int main(int count, char **args) {
    size_t mib = count > 1 ? strtoul(args[1], NULL, 10) : 1;
    words = (mib << 20) / sizeof *memory;
    memory = malloc(mib << 20);
    for (size_t i = 0; i < words; i++) memory[i] = word_at(i);
    printf("wrong %zu\n", wrong_words());
    for (size_t round = 0; round < 6; round++) {
        pthread_t threads[4];
        size_t wrong = 0;
        for (size_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, in_thread, (void *)(round * 4 + i));
        for (size_t i = 0; i < 4; i++) {
            void *found;
            pthread_join(threads[i], &found);
            wrong += (size_t)found;
        }
        if (wrong) printf("threads of round %zu: wrong %zu\n", round, wrong);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(wrong_words() != 0);
    printf("fork %x\n", ended(child));
    printf("system %x\n", system("exit 7"));
    if (count < 3) return 0;
    fflush(stdout);
    char *itself[] = {args[0], args[2], NULL};
    int error = posix_spawn(&child, args[0], NULL, NULL, itself, environ);
    printf("spawn %d\n", error ? error : ended(child));
    return wrong_words() != 0;
}
