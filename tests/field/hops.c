// A chain of processes, each of which makes the next one and ends at once: somebody is there all the time,
// and nobody for long. The last one says that it was reached.
//   hops COUNT
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 200;
    for (int hop = 0; hop < count; hop++) {
        switch (fork()) {
        case -1: perror("fork"); return 2;
        case 0: break;
        default: _exit(0);
        }
    }
    printf("the last of %d\n", count);
    return 0;
}
