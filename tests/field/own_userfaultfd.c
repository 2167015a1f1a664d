// own_userfaultfd MIB: with much of its memory swapped out, a program registers new memory and this
// with a userfaultfd of its own. Either it is told EBUSY, or every fault on what is new comes to it, and none
// on what it has written.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

static int file;
static char page[PAGE] __attribute__((aligned(PAGE)));

static void *serve(void *unused) {
    struct uffd_msg message;
    while (read(file, &message, sizeof message) == sizeof message) {
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t at = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
        ioctl(file, UFFDIO_COPY, &copy);
    }
    return unused;
}

static char *map(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(int count, char **words) {
    size_t bytes = (size_t)atol(words[1]) << 20, wrong = 0;
    uint64_t *memory = (uint64_t *)map(bytes);
    for (size_t k = 0; k < bytes / 8; k++) memory[k] = k * 0x9e3779b97f4a7c15u;
    file = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    pthread_t thread;
    memset(page, 0x5a, PAGE);
    if (file < 0 || ioctl(file, UFFDIO_API, &api) || pthread_create(&thread, NULL, serve, NULL)) return 77;
    char *fresh = map(PAGES * PAGE);
    struct uffdio_register part = {{(uintptr_t)fresh, PAGES * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    int is_refused = ioctl(file, UFFDIO_REGISTER, &part) != 0;
    if (is_refused && errno != EBUSY) printf("refused: %s\n", strerror(errno));
    // Written memory has no missing page, as far as the program can tell.
    part.range = (struct uffdio_range){(uintptr_t)memory, bytes};
    if (ioctl(file, UFFDIO_REGISTER, &part) != 0 && errno != EBUSY) printf("refused: %s\n", strerror(errno));
    for (size_t k = 0; k < PAGES; k++) wrong += fresh[k * PAGE + 17] != (is_refused ? 0 : 0x5a);
    for (size_t k = 0; k < bytes / 8; k++) wrong += memory[k] != k * 0x9e3779b97f4a7c15u;
    printf("wrong: %zu\n", wrong);
    return wrong != 0;
}
