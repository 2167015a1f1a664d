// A program with a userfaultfd of its own, whose memory lies right above other memory: own_userfaultfd MIB
//
// Its own handler says what is in the upper part. The lower part is touched in ascending order while memory
// is scarce: whoever brings pages ahead there must stop where the upper part begins. Every second upper part
// cannot be accessed until it is read, as what a heap grows into. Ends with 77 where the program gets no
// userfaultfd.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, LOWER = 250, UPPER = 64, PLACES = 16 };
static int uffd;

static void *serve(void *unused) {
    static char page[PAGE] __attribute__((aligned(4096)));
    memset(page, 0x5a, PAGE);
    for (struct uffd_msg message; read(uffd, &message, sizeof message) == sizeof message;) {
        struct uffdio_copy copy = { .dst = message.arg.pagefault.address & ~(PAGE - 1ul), .src = (long)page,
                                    .len = PAGE };
        ioctl(uffd, UFFDIO_COPY, &copy);
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) return 77;
    char *places[PLACES];
    for (int n = 0; n < PLACES; n++) {
        places[n] = mmap(NULL, (LOWER + UPPER) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
        struct uffdio_register range = { .range = { (long)places[n] + LOWER * PAGE, UPPER * PAGE },
                                         .mode = UFFDIO_REGISTER_MODE_MISSING };
        if (ioctl(uffd, UFFDIO_REGISTER, &range)) { perror("UFFDIO_REGISTER"); return 2; }
        if (n % 2 && mprotect(places[n] + LOWER * PAGE, UPPER * PAGE, PROT_NONE)) return 2;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, serve, NULL);
    size_t bytes = strtoul(argv[1], 0, 10) << 20;
    char *hog = malloc(bytes);
    memset(hog, 1, bytes);
    usleep(300000); // new memory has been found by now
    for (int n = 0; n < PLACES; n++) {
        for (int page = 0; page < LOWER; page++) places[n][page * PAGE] = 7;
        if (n % 2 && mprotect(places[n] + LOWER * PAGE, UPPER * PAGE, PROT_READ | PROT_WRITE)) return 2;
        for (int page = LOWER; page < LOWER + UPPER; page++)
            if (places[n][page * PAGE] != 0x5a) {
                fprintf(stderr, "place %d page %d holds %x\n", n, page - LOWER, places[n][page * PAGE]);
                return 1;
            }
    }
    for (size_t at = 0; at < bytes; at += PAGE)
        if (hog[at] != 1) { fprintf(stderr, "byte %zx is %x\n", at, hog[at]); return 1; }
    return 0;
}
