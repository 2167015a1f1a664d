// soft_dirty.c: a program that asks the kernel which of its pages were written since it last asked, by
// /proc/self/clear_refs and the soft-dirty bits of /proc/self/pagemap, as collectors do. Each page that was
// written must be known as written, also after it was swapped out. If the kernel cannot say, or the file may
// not be written, a collector goes by other means: that is as right.
#include "press.h"
#include <fcntl.h>
#include <stdlib.h>

enum { PAGES = 256 };
static unsigned char *memory;

static int is_soft_dirty(int pagemap, int page) {
    uint64_t entry = 0;
    off_t at = ((uintptr_t)memory / PAGE + page) * sizeof entry;
    MUST(pread(pagemap, &entry, sizeof entry, at) == sizeof entry);
    return entry >> 55 & 1;
}

static int clear(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY), done = file >= 0 && write(file, "4", 1) == 1;
    if (file >= 0) close(file);
    return done;
}

int main(void) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY), missed = 0;
    memory = anonymous(PAGES * PAGE);
    press_begin(16);
    for (int round = 0; round < 3; round++) {
        for (int page = 0; page < PAGES; page++) memory[page * PAGE] = 1;
        int can = clear();
        // Without the bits each page is always said to be clean, and nobody goes by that.
        memory[0] = 1;
        can = can && !is_soft_dirty(pagemap, 1) && is_soft_dirty(pagemap, 0);
        for (int page = 0; page < PAGES; page += 2) memory[page * PAGE] = 2;
        press(), press();
        for (int page = 0; page < PAGES && can; page += 2) missed += !is_soft_dirty(pagemap, page);
        for (int page = 0; page < PAGES; page++) MUST(memory[page * PAGE] == 2 - page % 2);
        for (int page = 0; page < PAGES && can; page += 2) missed += !is_soft_dirty(pagemap, page);
    }
    printf("written pages that were said to be clean: %d\n", missed);
    return missed != 0;
}
