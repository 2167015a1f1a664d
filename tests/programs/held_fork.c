/* A tracer holds a process in the middle of its fork, and the child with it, for some seconds, in which it
 * needs memory itself. Then both go on. All check each page.
 *
 *   held_fork PAGES OWN_PAGES SECONDS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t *map(uint64_t pages)
{
	void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static void fill(uint64_t *memory, uint64_t pages, uint64_t word)
{
	for (uint64_t n = 0; n < pages; n++)
		memory[n * (PAGE / 8)] = n ^ word;
}

static void check(const uint64_t *memory, uint64_t pages, uint64_t word, const char *whose)
{
	for (uint64_t n = 0; n < pages; n++) {
		if (memory[n * (PAGE / 8)] != (n ^ word)) {
			fprintf(stderr, "BAD PAGE %lu of the %s\n", (unsigned long)n, whose);
			_exit(3);
		}
	}
}

static int traced(uint64_t pages)
{
	uint64_t *memory = map(pages);
	int status;

	fill(memory, pages, 1);
	raise(SIGSTOP);
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		check(memory, pages, 1, "child");
		_exit(0);
	}
	fill(memory, pages, 2);
	check(memory, pages, 2, "parent");
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	if (WIFSIGNALED(status))
		fprintf(stderr, "the child was ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}

static void work_while_it_is_held(uint64_t pages, time_t seconds)
{
	time_t end = time(NULL) + seconds;
	uint64_t word = 5, *memory = map(pages);

	do {
		fill(memory, pages, ++word);
		check(memory, pages, word, "tracer");
		printf("its tracer got on\n");
		fflush(stdout);
		sleep(1);
	} while (time(NULL) < end);
}

int main(int argc, char **argv)
{
	pid_t child, pid = argc == 4 ? fork() : -1;
	int status, is_held = 0;

	if (pid < 0)
		die("fork");
	if (pid == 0)
		return traced(strtoull(argv[1], NULL, 0));
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
		die("waitpid");
	if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEFORK))
		die("PTRACE_SEIZE");
	kill(pid, SIGCONT);
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8)) {
			unsigned long number;
			ptrace(PTRACE_GETEVENTMSG, pid, 0, &number);
			child = number;
			work_while_it_is_held(strtoull(argv[2], NULL, 0), strtoll(argv[3], NULL, 0));
			is_held = 1;
			if (waitpid(child, &status, __WALL) != child || ptrace(PTRACE_DETACH, child, 0, 0))
				die("PTRACE_DETACH");
		}
		ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
	}
	if (!is_held)
		fprintf(stderr, "it was not held in a fork\n");
	return WIFEXITED(status) && is_held ? WEXITSTATUS(status) : 4;
}
