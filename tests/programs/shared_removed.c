// MADV_REMOVE beside processes that store to the same pages: shared_removed MIB [raw]
//
// Rounds: a range is filled, and swapped out for the most part; it is removed, and is zeros in each process,
// also after what was swapped out meanwhile has come back. Bytes stored after the call stay. With `raw` the
// call is made by instructions of its own; so is MADV_DONTNEED, after which all is as before. Beside it
// threads read what is to stay, and one gives advice on memory of its own, for which the others wait.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, ROUNDS = 12, MAPPINGS = 600 };

static uint64_t *memory;
static size_t pages;
static volatile int is_over;

static long raw_madvise(void *start, size_t bytes, int advice) {
#ifdef __x86_64__
    register long result __asm__("rax") = SYS_madvise;
    register void *first __asm__("rdi") = start;
    register size_t second __asm__("rsi") = bytes;
    register long third __asm__("rdx") = advice;
    __asm__ volatile("syscall" : "+r"(result) : "r"(first), "r"(second), "r"(third) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = SYS_madvise;
    register long result __asm__("x0") = (long)start;
    register size_t second __asm__("x1") = bytes;
    register long third __asm__("x2") = advice;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(number), "r"(second), "r"(third) : "memory");
#endif
    return result;
}

static void *look_around(void *sum) {
    for (size_t page = 0; !is_over; page = (page + 7919) % pages) {
        *(volatile uint64_t *)sum += memory[page * WORDS];
        usleep(200);
    }
    return NULL;
}

static void *advise(void *unused) {
    char *own = mmap(NULL, MAPPINGS * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) exit(2);
    for (int i = 0; i < MAPPINGS; i += 2) mprotect(own + i * PAGE, PAGE, PROT_READ);
    for (int n = 0; !is_over; n++) {
        raw_madvise(own, MAPPINGS * PAGE, n % 2 ? MADV_DONTFORK : MADV_DOFORK);
        usleep(50);
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int is_raw = argc > 2;
    pages = strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    pthread_t readers[2], adviser;
    uint64_t sums[2] = {0};
    for (int i = 0; is_raw && i < 2; i++) pthread_create(&readers[i], NULL, look_around, &sums[i]);
    if (is_raw) pthread_create(&adviser, NULL, advise, NULL);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t page = 0; page < pages; page++)
            for (size_t word = 0; word < WORDS; word++)
                memory[page * WORDS + word] = (page * 0x9e3779b97f4a7c15u) ^ (word * round);
        size_t first = pages / 8 * (round % 5), last = first + pages / 4;
        if (is_raw && raw_madvise(memory, pages * PAGE, MADV_DONTNEED)) return 1;
        void *start = memory + first * WORDS;
        if (is_raw ? raw_madvise(start, (last - first) * PAGE, MADV_REMOVE)
                   : madvise(start, (last - first) * PAGE, MADV_REMOVE)) {
            perror("MADV_REMOVE");
            return 1;
        }
        // Every third page has something new at once.
        for (size_t page = first; page < last; page += 3) memory[page * WORDS + 5] = round;
        for (int in_child = 1; in_child >= 0; in_child--) {
            pid_t child = in_child ? fork() : 0;
            if (child == 0) {
                for (size_t page = 0; page < pages; page++) {
                    int removed = page >= first && page < last, is_new = removed && (page - first) % 3 == 0;
                    for (size_t word = 1; word < WORDS; word += 4) {
                        uint64_t should = removed ? (is_new && word == 5 ? round : 0)
                                                  : (page * 0x9e3779b97f4a7c15u) ^ (word * round);
                        if (memory[page * WORDS + word] != should) {
                            fprintf(stderr, "round %lu: page %zu word %zu is %lx, not %lx\n", round, page,
                                    word, memory[page * WORDS + word], should);
                            exit(1);
                        }
                    }
                }
                if (in_child) _exit(0);
            } else {
                int status;
                waitpid(child, &status, 0);
                if (status) return 1;
            }
        }
    }
    is_over = 1;
    for (int i = 0; is_raw && i < 2; i++) pthread_join(readers[i], NULL);
    if (is_raw) pthread_join(adviser, NULL);
    puts("all as it should be");
    return 0;
}
