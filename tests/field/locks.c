// locks.c: mutexes, condition variables and robust locks whose memory is swapped out while they are held,
// waited for, and left behind by a thread or a process that ends: then the kernel reads them.
#include "press.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

struct page {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    long turn;
} __attribute__((aligned(PAGE)));

static struct page *pages;
static pthread_barrier_t held;

static void init(struct page *page, int shared) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, shared);
    pthread_mutex_init(&page->mutex, &attributes);
    pthread_cond_init(&page->condition, NULL);
}

// Takes its lock, and ends with it.
static void *leaves_it(void *page) {
    pthread_mutex_lock(&((struct page *)page)->mutex);
    pthread_barrier_wait(&held);
    pthread_barrier_wait(&held);
    return NULL;
}

static void a_thread_ends_with_its_lock(int round) {
    pthread_t thread;
    struct page *page = pages + round % 8;
    pthread_create(&thread, NULL, leaves_it, page);
    pthread_barrier_wait(&held);
    press(), press();
    madvise(page, PAGE, MADV_PAGEOUT);
    pthread_barrier_wait(&held);
    MUST(pthread_mutex_lock(&page->mutex) == EOWNERDEAD);
    MUST(pthread_mutex_consistent(&page->mutex) == 0);
    MUST(pthread_mutex_unlock(&page->mutex) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

static void a_process_ends_with_its_lock(void) {
    struct page *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status;
    init(page, PTHREAD_PROCESS_SHARED);
    pid_t child = fork();
    if (child == 0) {
        pthread_mutex_lock(&page->mutex);
        press();
        _exit(7);
    }
    MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    MUST(pthread_mutex_lock(&page->mutex) == EOWNERDEAD);
    MUST(pthread_mutex_consistent(&page->mutex) == 0);
    MUST(pthread_mutex_unlock(&page->mutex) == 0);
    munmap(page, PAGE);
}

// Two threads take turns by a condition variable; one presses before it gives the turn away.
static void *partner(void *page_) {
    struct page *page = page_;
    for (int turn = 0; turn < 6; turn++) {
        pthread_mutex_lock(&page->mutex);
        while (page->turn != 2 * turn + 1) pthread_cond_wait(&page->condition, &page->mutex);
        page->turn++;
        pthread_cond_signal(&page->condition);
        pthread_mutex_unlock(&page->mutex);
    }
    return NULL;
}

static void two_take_turns(struct page *page) {
    pthread_t thread;
    page->turn = 0;
    pthread_create(&thread, NULL, partner, page);
    for (int turn = 0; turn < 6; turn++) {
        press(), press();
        pthread_mutex_lock(&page->mutex);
        page->turn++;
        pthread_cond_signal(&page->condition);
        while (page->turn != 2 * turn + 2) pthread_cond_wait(&page->condition, &page->mutex);
        pthread_mutex_unlock(&page->mutex);
    }
    MUST(pthread_join(thread, NULL) == 0);
}

int main(void) {
    pages = anonymous(9 * PAGE);
    for (int k = 0; k < 9; k++) init(pages + k, PTHREAD_PROCESS_PRIVATE);
    pthread_barrier_init(&held, NULL, 2);
    press_begin(16);
    for (int round = 0; round < 4; round++) a_thread_ends_with_its_lock(round);
    a_process_ends_with_its_lock();
    two_take_turns(pages + 8);
    puts("locks are as they were left");
    return 0;
}
