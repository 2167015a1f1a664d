/* A tracer that stops every thread of a process, the evictor among them, and reads all of its memory, most of
 * which is swapped out; meanwhile it needs memory itself. Then the process goes on. Both check each page.
 *
 *   stop_all ROUNDS
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 40000, OWN_PAGES = 6000, THREADS_MAX = 64 };

/* The tracee counts rounds here; page `n` holds `n` and a word that only the tracee changes. */
static uint64_t *memory;
static volatile int *rounds_done;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void *touch(void *first)
{
	for (;;) {
		for (uint64_t n = (uintptr_t)first; n < PAGES; n += 2) {
			uint64_t *page = memory + n * (PAGE / 8);
			if (page[0] != n || page[1] != page[PAGE / 8 - 1]) {
				fprintf(stderr, "BAD PAGE %lu in the traced process\n", (unsigned long)n);
				_exit(3);
			}
			page[1]++;
			page[PAGE / 8 - 1]++;
		}
		__atomic_add_fetch(rounds_done, 1, __ATOMIC_SEQ_CST);
	}
}

static void traced(void)
{
	pthread_t other;

	for (uint64_t n = 0; n < PAGES; n++)
		memory[n * (PAGE / 8)] = n;
	if (pthread_create(&other, NULL, touch, (void *)1))
		die("pthread_create");
	touch(NULL);
}

static int stop_all(pid_t pid, pid_t *threads)
{
	char path[64];
	int count = 0, found = 1;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	while (found) {
		found = 0;
		DIR *tasks = opendir(path);
		if (!tasks)
			die("opendir");
		for (struct dirent *entry; (entry = readdir(tasks));) {
			pid_t tid = atoi(entry->d_name);
			int known = tid == 0;
			for (int i = 0; i < count; i++)
				known |= threads[i] == tid;
			if (known)
				continue;
			if (count == THREADS_MAX || ptrace(PTRACE_ATTACH, tid, 0, 0))
				die("PTRACE_ATTACH");
			threads[count++] = tid;
			found = 1;
		}
		closedir(tasks);
	}
	for (int i = 0; i < count; i++)
		if (waitpid(threads[i], NULL, __WALL) != threads[i])
			die("waitpid");
	return count;
}

static void read_all(pid_t pid)
{
	static uint64_t page[PAGE / 8];

	for (uint64_t n = 0; n < PAGES; n++) {
		struct iovec here = { page, PAGE }, there = { memory + n * (PAGE / 8), PAGE };
		if (process_vm_readv(pid, &here, 1, &there, 1, 0) != PAGE)
			die("process_vm_readv");
		/* A thread may have been stopped between its two stores. */
		if (page[0] != n || page[1] - page[PAGE / 8 - 1] > 1) {
			fprintf(stderr, "BAD PAGE %lu read by the tracer\n", (unsigned long)n);
			exit(3);
		}
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 3, prot = PROT_READ | PROT_WRITE;
	pid_t threads[THREADS_MAX], pid;

	memory = mmap(NULL, (size_t)PAGES * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	rounds_done = mmap(NULL, PAGE, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || rounds_done == MAP_FAILED)
		die("mmap");
	pid = fork();
	if (pid == 0)
		traced();
	for (int round = 0; round < rounds; round++) {
		int before = *rounds_done;
		while (*rounds_done < before + 2)
			usleep(1000);
		int count = stop_all(pid, threads);
		read_all(pid);
		uint64_t *own = mmap(NULL, (size_t)OWN_PAGES * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (own == MAP_FAILED)
			die("mmap");
		for (uint64_t n = 0; n < OWN_PAGES; n++)
			own[n * (PAGE / 8)] = n;
		for (uint64_t n = 0; n < OWN_PAGES; n++)
			if (own[n * (PAGE / 8)] != n) {
				fprintf(stderr, "BAD PAGE %lu of the tracer\n", (unsigned long)n);
				return 3;
			}
		munmap(own, (size_t)OWN_PAGES * PAGE);
		for (int i = 0; i < count; i++)
			if (ptrace(PTRACE_DETACH, threads[i], 0, 0))
				die("PTRACE_DETACH");
	}
	int before = *rounds_done;
	while (*rounds_done < before + 2)
		usleep(1000);
	kill(pid, 9);
	waitpid(pid, NULL, 0);
	puts("all right");
	return 0;
}
