/* System calls that no kernel has, and that the agent answers to its own tests: all are ENOSYS. Its memory is
 * more than its budget, and right. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    for (long number = 0x6d73; number <= 0x6d78; number++) {
        errno = 0;
        long answer = syscall(number, 0, 0, 0);
        printf("%lx: %ld, errno %d\n", number, answer, errno);
    }
    size_t count = (40 << 20) / sizeof(long);
    long *words = malloc(count * sizeof(long));
    unsigned long sum = 0;
    for (size_t i = 0; i < count; i++) words[i] = i;
    for (size_t i = 0; i < count; i++) sum += words[i];
    printf("sum %lu\n", sum);
    return 0;
}
