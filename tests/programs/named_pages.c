/* Entries of 32 bytes in a row, each with the address of a page somewhere else, as a sort has of its lines.
 * They are walked upwards and downwards, and each page that they name is checked, while another thread drops
 * some of those pages and writes some. Between two walks all named pages move to another address.
 *
 *   named_pages PAGES WALKS [dense]      dense: no page compresses
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, VISITS = 8, RUN = 16 };

struct entry {
	uint64_t *page;
	uint64_t number, rest[2];
};

static uint64_t pages, *memory;
/* The state of each run of pages: odd while it changes, else 0 modulo 4 if empty, and 2 if written. */
static _Atomic uint64_t *states;
static atomic_int stop;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void *map(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		die("mmap");
	return at;
}

static uint64_t *page_of(uint64_t number)
{
	return memory + number * (PAGE / 8);
}

static uint64_t drawn(uint64_t *state, uint64_t below)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state % below;
}

static void fill(uint64_t *words, uint64_t count)
{
	static uint64_t random = 2463534242;

	for (uint64_t i = 0; i < count; i++)
		words[i] = drawn(&random, UINT64_MAX);
}

static void write_run(uint64_t run)
{
	for (uint64_t n = run * RUN; n < (run + 1) * RUN; n++)
		*page_of(n) = n + 1;
}

static void *change(void *unused)
{
	uint64_t random = 88172645463325252;

	while (!stop) {
		uint64_t run = drawn(&random, pages / RUN), next = (states[run] | 3) + 1;
		int empties = drawn(&random, 2);
		states[run] |= 1;
		if (!empties)
			write_run(run);
		else if (madvise(page_of(run * RUN), (uint64_t)RUN * PAGE, MADV_DONTNEED))
			die("madvise");
		states[run] = empties ? next : next + 2;
		usleep(200);
	}
	return unused;
}

static void visit(const struct entry *entry)
{
	uint64_t before = states[entry->number / RUN], found = *(volatile uint64_t *)entry->page;

	if (before & 1 || states[entry->number / RUN] != before)
		return;
	if (found != (before & 2 ? entry->number + 1 : 0)) {
		fprintf(stderr, "BAD PAGE %lu: %lu\n", (unsigned long)entry->number, (unsigned long)found);
		_exit(3);
	}
}

int main(int argc, char **argv)
{
	uint64_t random = 362436069, walks, entries;
	pthread_t other;

	if (argc < 3 || argc > 4)
		return 2;
	int is_dense = argc == 4;
	pages = strtoull(argv[1], NULL, 0) / RUN * RUN;
	walks = strtoull(argv[2], NULL, 0);
	entries = pages * VISITS;
	memory = map(pages * PAGE);
	states = map(pages / RUN * sizeof *states);
	struct entry *row = map(entries * sizeof *row);
	for (uint64_t run = 0; run < pages / RUN; run++) {
		if (is_dense)
			fill(page_of(run * RUN), (uint64_t)RUN * PAGE / 8);
		write_run(run);
		states[run] = 2;
	}
	for (uint64_t i = 0; i < entries; i++) {
		row[i].number = drawn(&random, pages);
		if (is_dense)
			fill(row[i].rest, 2);
	}
	for (uint64_t walk = 0; walk < walks; walk++) {
		for (uint64_t i = 0; i < entries; i++)
			row[i].page = page_of(row[i].number);
		stop = 0;
		if (pthread_create(&other, NULL, change, NULL))
			die("pthread_create");
		for (uint64_t i = 0; i < entries; i++)
			visit(&row[walk % 2 ? entries - 1 - i : i]);
		stop = 1;
		pthread_join(other, NULL);
		uint64_t *to = map(pages * PAGE);
		if (mremap(memory, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
			die("mremap");
		memory = to;
	}
	printf("%lu visits\n", (unsigned long)(entries * walks));
	return 0;
}
