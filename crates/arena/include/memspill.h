/* Memory with a budget inside a program: what does not fit is swapped out by memspill.
 *
 * A call that fails returns NULL or -1 and sets errno; memspill_last_error() says why. Any thread may use an
 * arena. Made of crates/arena/src/c.rs. */

#ifndef MEMSPILL_H
#define MEMSPILL_H

#include <stddef.h>
#include <stdint.h>

// Its pages are not needed soon: they leave first.
#define MEMSPILL_COLD 0

// Its pages are needed soon: they are brought, at most half of the budget.
#define MEMSPILL_WILLNEED 1

// Memory with a budget. The first arena of a process starts the supervisor; all of them share the sum of
// their budgets.
struct memspill_arena;

// How much there is of what, in bytes.
struct memspill_stats {
  // The budget of all arenas of the process.
  uint64_t limit_bytes;
  // Memory that counts against it: pages in memory, the compressed pool, what memspill itself takes.
  uint64_t used_bytes;
  // Pages that are away, as they are in memory.
  uint64_t swapped_bytes;
  // This arena's blocks, wherever their pages are.
  uint64_t allocated_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread failed: one line, valid until the next one that fails.
const char *memspill_last_error(void);

// Name the memspill command, before the first arena. $MEMSPILL goes before it; without both, it is beside
// the library, in ../bin from there, or in PATH.
void memspill_use_command(const char *path);

// An arena of which at most `budget_bytes` are in memory. The first one of a process starts the supervisor;
// all of them share the sum of their budgets.
struct memspill_arena *memspill_arena_create(uint64_t budget_bytes);

// End an arena. Its blocks are freed.
void memspill_arena_destroy(struct memspill_arena *arena);

// A block of `bytes`, aligned to 64; from 8 KiB on to a page. Its contents are not defined.
void *memspill_arena_alloc(const struct memspill_arena *arena, size_t bytes);

// A block of zeros for `count` values of `bytes` each.
void *memspill_arena_calloc(const struct memspill_arena *arena, size_t count, size_t bytes);

// Make a block `bytes` long, where it is or elsewhere; NULL leaves it as it was. A NULL block is a new one.
void *memspill_arena_realloc(const struct memspill_arena *arena,
                             void *block,
                             size_t bytes);

// Free a block; a NULL one is left alone. Anything but a block of this arena is an error (EINVAL).
int memspill_arena_free(const struct memspill_arena *arena, void *block);

// Say how a part of a block will be used: MEMSPILL_COLD, MEMSPILL_WILLNEED.
int memspill_arena_advise(const struct memspill_arena *arena,
                          const void *start,
                          size_t bytes,
                          int advice);

// Keep a block of more than 8 KiB in memory.
int memspill_arena_pin(const struct memspill_arena *arena, const void *block);

// Let it be swapped out again.
int memspill_arena_unpin(const struct memspill_arena *arena, const void *block);

// Change the budget. Returns once what is over it is swapped out.
int memspill_arena_limit(const struct memspill_arena *arena, uint64_t budget_bytes);

// How much there is of what.
int memspill_arena_stats(const struct memspill_arena *arena, struct memspill_stats *stats);

// Give all of the process a budget, in place of arenas. It stays until the process ends.
int memspill_budget_process(uint64_t budget_bytes);

// Change the budget that all of the process has.
int memspill_limit_process(uint64_t budget_bytes);

// The statistics of `memspill ctl stats --json`, valid until this thread asks again.
const char *memspill_statistics(void);

// The supervisor's process id, for `memspill ctl --pid`; 0 where there is none.
int memspill_supervisor(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEMSPILL_H */
