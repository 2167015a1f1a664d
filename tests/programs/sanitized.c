/* More memory than the budget, all of it still pointed to at the end, when a sanitizer looks for leaks: a
 * tracer stops all threads, and the evictor with them, and reads every page of the heap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 160, BYTES = 1 << 20, PAGE = 4096 };
static unsigned char *blocks[BLOCKS];

int main(void)
{
	unsigned long wrong = 0;

	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = malloc(BYTES);
		memset(blocks[i], i + 1, BYTES);
	}
	for (int i = 0; i < BLOCKS; i++)
		for (int at = 0; at < BYTES; at += PAGE)
			wrong += blocks[i][at] != i + 1;
	printf("%lu wrong\n", wrong);
	return wrong != 0;
}
