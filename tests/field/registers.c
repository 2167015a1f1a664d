// registers.c: all registers are the same after an access to a page that is away, an instruction that reads
// or writes it, string instructions in the middle of a page, and a signal at any of these.
// cc: -mavx -O2
#include "press.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>

enum { PAGES = 1024 };
static unsigned char *memory;
static volatile long ticks;

static void on_tick(int number) { ticks++; }

// The integer registers, flags and ymm0 to ymm15 before and after an access at `address`.
static void access_with_all_registers(unsigned char *address, int writes) {
    static _Alignas(32) uint64_t vectors[64], seen[64];
    uint64_t flags = 0, sum = 0;
    for (int k = 0; k < 64; k++) vectors[k] = (uint64_t)address * (2 * k + 1);
    asm volatile(
        "vmovdqa (%[in]), %%ymm0; vmovdqa 32(%[in]), %%ymm1; vmovdqa 64(%[in]), %%ymm7\n"
        "vmovdqa 96(%[in]), %%ymm8; vmovdqa 128(%[in]), %%ymm14; vmovdqa 160(%[in]), %%ymm15\n"
        "mov $0x1111, %%r8; mov $0x2222, %%r9; mov $0x3333, %%r10; mov $0x4444, %%r11\n"
        "mov $0x5555, %%r12; mov $0x6666, %%r13; mov $0x7777, %%r14; mov $0x8888, %%rbx\n"
        "stc\n"
        "jrcxz 1f\n"
        "movb $0x5a, (%[at])\n"
        "jmp 2f\n"
        "1: movb (%[at]), %%al\n"
        "2: pushfq; pop %[flags]\n"
        "lea (%%r8,%%r9), %[sum]; add %%r10, %[sum]; add %%r11, %[sum]; add %%r12, %[sum]\n"
        "add %%r13, %[sum]; add %%r14, %[sum]; add %%rbx, %[sum]\n"
        "vmovdqa %%ymm0, (%[out]); vmovdqa %%ymm1, 32(%[out]); vmovdqa %%ymm7, 64(%[out])\n"
        "vmovdqa %%ymm8, 96(%[out]); vmovdqa %%ymm14, 128(%[out]); vmovdqa %%ymm15, 160(%[out])\n"
        : [flags] "=&r"(flags), [sum] "=&r"(sum)
        : [at] "r"(address), [in] "r"(vectors), [out] "r"(seen), "c"((long)writes)
        : "rax", "rbx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "memory", "cc", "xmm0", "xmm1",
          "xmm7", "xmm8", "xmm14", "xmm15");
    MUST(flags & 1);
    MUST(sum == 0x1111 + 0x2222 + 0x3333 + 0x4444 + 0x5555 + 0x6666 + 0x7777 + 0x8888);
    MUST(memcmp(vectors, seen, 192) == 0);
}

static void fill(void) {
    for (size_t at = 0; at < PAGES * PAGE; at++) memory[at] = at * 7 + at / PAGE;
}

int main(void) {
    struct itimerval often = {{0, 500}, {0, 500}};
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    memory = anonymous(PAGES * PAGE);
    unsigned char *copy = anonymous(PAGES * PAGE);
    fill();
    press_begin(16);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int page = 0; page < PAGES; page++) access_with_all_registers(memory + page * PAGE + page, 0);
    press();
    for (int page = 0; page < PAGES; page++) access_with_all_registers(memory + page * PAGE + page, 1);
    for (int page = 0; page < PAGES; page++) MUST(memory[page * PAGE + page] == 0x5a);
    fill();
    press(), press();
    // One string instruction over many pages that are away, on both sides.
    size_t left = PAGES * PAGE;
    unsigned char *from = memory, *to = copy;
    asm volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(left)::"memory");
    MUST(left == 0 && from == memory + PAGES * PAGE && to == copy + PAGES * PAGE);
    press();
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    for (size_t at = 0; at < PAGES * PAGE; at++) MUST(copy[at] == (unsigned char)(at * 7 + at / PAGE));
    MUST(ticks > 0);
    puts("registers are the same");
    return 0;
}
