// Another program is run by threads that are not the first one, while others are at work; the first of them
// that does so ends the rest.
//
// usage: exec-from-thread THREADS PROGRAM [WORD...]
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { OTHERS = 3 };

static void *spin(void *nothing) {
    for (;;) usleep(100);
    return nothing;
}

static void *run(void *words) {
    usleep(20000);
    execv(*(char **)words, words);
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    int threads = count > 2 ? atoi(words[1]) : 0;
    for (int other = 0; other < OTHERS; other++) pthread_create(&thread, NULL, spin, NULL);
    while (threads-- > 0)
        if (pthread_create(&thread, NULL, run, words + 2)) return 2;
    pthread_join(thread, NULL);
    return 3;
}
