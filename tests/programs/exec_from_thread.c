// Another program is run by a thread that is not the first one, while others are at work.
//
// usage: exec-from-thread PROGRAM [WORD...]
#include <pthread.h>
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
    for (int other = 0; other < OTHERS; other++) pthread_create(&thread, NULL, spin, NULL);
    if (count < 2 || pthread_create(&thread, NULL, run, words + 1)) return 2;
    pthread_join(thread, NULL);
    return 3;
}
