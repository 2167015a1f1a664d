/* Pages that are advised out leave, also while memspill's thread in this process hardly gets any CPU: it is
 * of the kernel's idle class, beside busy threads.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 1024UL

static void *be_busy(void *none) {
    for (volatile unsigned long n = 0;; n++) (void)none;
    return NULL;
}

/* Gives the thread of that name to the idle class. */
static int slow_down(const char *name) {
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fgets(comm, sizeof comm, file) && !strncmp(comm, name, strlen(name))) {
            struct sched_param none = {0};
            found = sched_setscheduler(atoi(task->d_name), SCHED_IDLE, &none) == 0;
        }
        fclose(file);
    }
    if (tasks) closedir(tasks);
    return found;
}

int main(void) {
    char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned long page = 0; page < PAGES; page++) memset(p + page * PAGE, (int)page | 1, PAGE);
    if (!slow_down("memspill")) return puts("not tested: no such thread, or no right"), 0;
    for (long n = 2 * sysconf(_SC_NPROCESSORS_ONLN); n > 0; n--) {
        pthread_t busy;
        if (pthread_create(&busy, NULL, be_busy, NULL)) return perror("thread"), 2;
    }
    if (madvise(p, PAGES * PAGE, 21)) return perror("MADV_PAGEOUT"), 2;
    unsigned char there[PAGES];
    unsigned long left = 0;
    if (mincore(p, PAGES * PAGE, there)) return perror("mincore"), 2;
    for (unsigned long page = 0; page < PAGES; page++) left += there[page] & 1;
    for (unsigned long page = 0; page < PAGES; page++)
        if ((unsigned char)p[page * PAGE + page] != (unsigned char)(page | 1)) return puts("BAD PAGE"), 1;
    printf("%lu pages are left\n", left);
    return left != 0;
}
