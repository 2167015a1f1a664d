// press.h: memory that a program fills and reads so that its other memory has to leave. With a budget that is
// smaller than what `press_begin` takes, whatever is idle is swapped out by two calls of `press`.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };
static volatile unsigned char *press_memory;
static size_t press_bytes;

static void *anonymous(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) perror("mmap"), exit(2);
    return memory;
}

static void press(void) {
    for (size_t at = 0; at < press_bytes; at += PAGE) press_memory[at + at / PAGE % 64]++;
}

static void press_begin(size_t mib) {
    press_bytes = mib << 20;
    press_memory = anonymous(press_bytes);
    for (size_t at = 0; at < press_bytes; at += 8)
        *(volatile uint64_t *)(press_memory + at) = at * 0x9e3779b1;
    press();
}

// Ends the program where something is not as it has to be.
#define MUST(condition)                                                     \
    do {                                                                    \
        if (!(condition)) {                                                 \
            printf("line %d: not true: %s\n", __LINE__, #condition);        \
            exit(1);                                                        \
        }                                                                   \
    } while (0)
