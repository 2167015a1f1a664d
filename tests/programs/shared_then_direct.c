// Shared memory that has become twice what the budget holds, of which nothing may leave any more:
// shared_then_direct MIB FILE
//
// The file is opened with O_DIRECT and stays open. The memory that the program needs then must come from
// elsewhere, or the run must end with a line that says why. Ends with 77 where there is no O_DIRECT.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t bytes = strtoul(argv[1], 0, 10) << 20;
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) { perror("mmap"); return 2; }
    for (size_t at = 0; at < bytes; at += 4096) *(size_t *)(shared + at) = at + 1;
    sleep(2); // it has become managed
    int file = open(argv[2], O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (file < 0) return errno == EINVAL ? 77 : 2;
    unlink(argv[2]);
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < bytes; at += 4096)
            if (*(size_t *)(shared + at) != at + 1) { fprintf(stderr, "wrong at %zx\n", at); return 1; }
    return 0;
}
