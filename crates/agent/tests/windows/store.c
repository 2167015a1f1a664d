/* The store of store.h. The agent calls it while pages come and go, so it touches nothing that can be
 * taken out: shared memory, and variables in .data, which is a file's. */
#include "store.h"

/* Without a lock: a process may end, or begin another program, while a thread of it is in here, and others
 * that have forked from each other go on. */
struct store {
    _Atomic uint32_t turn;
    uint32_t size;
    _Atomic uint32_t *references;
    unsigned char *bytes;
};

__attribute__((section(".data"))) static struct store *store = (struct store *)0;

/* A slot that nobody refers to; 0: there is none. */
static uint32_t take_slot(void)
{
    for (uint32_t i = 0; i < 2 * store->size; i++) {
        uint32_t slot = 1 + atomic_fetch_add(&store->turn, 1) % (store->size - 1), none = 0;
        if (atomic_compare_exchange_strong(&store->references[slot], &none, 1))
            return slot;
    }
    return 0;
}

static void copy(void *to, const void *from, size_t len)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len)::"memory");
}

static uint32_t keep(const unsigned char *bytes, uint32_t pages, uint64_t *slots)
{
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t slot = take_slot();
        if (!slot)
            return i;
        copy(store->bytes + slot * PAGE, bytes + i * PAGE, PAGE);
        slots[i] = slot;
    }
    return pages;
}

static int load(uint64_t slot, unsigned char *to)
{
    if (slot == 0 || slot >= store->size || !store->references[slot])
        return 1;
    copy(to, store->bytes + slot * PAGE, PAGE);
    return 0;
}

static void share(uint64_t slot)
{
    atomic_fetch_add(&store->references[slot], 1);
}

/* Bytes that are given back are spoiled, so that a late reader is seen. */
static void release(uint64_t slot)
{
    if (store->references[slot] == 1)
        *(uint64_t *)(store->bytes + slot * PAGE) ^= 0x5a5a5a5a5a5a5a5a;
    atomic_fetch_sub(&store->references[slot], 1);
}

__attribute__((section(".data"))) static struct {
    uint32_t (*store)(const unsigned char *, uint32_t, uint64_t *);
    int (*load)(uint64_t, unsigned char *);
    void (*share)(uint64_t);
    void (*release)(uint64_t);
} source = {keep, load, share, release};

static void *map(size_t len)
{
    void *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : at;
}

int store_start(size_t pages)
{
    struct store *new = map(sizeof *new);
    if (!new || !(new->references = map(pages * 4)) || !(new->bytes = map(pages * PAGE)))
        return 1;
    new->size = pages;
    store = new;
    return syscall(USE_SOURCE, &source) != 0;
}

size_t take_out(void *at, size_t count)
{
    long taken = syscall(TAKE_OUT, at, count, ~0ul);
    return taken < 0 ? 0 : taken;
}

size_t store_used(void)
{
    size_t used = 0;
    for (uint32_t slot = 1; slot < store->size; slot++)
        used += store->references[slot] != 0;
    return used;
}

unsigned long counted(int which)
{
    return syscall(WINDOW_COUNTS, which);
}
