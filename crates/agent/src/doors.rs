// Doors of the agent that the tests load, and of no other (`cfg(memspill_test)`, see build.rs): variables
// that switch parts of it on without a supervisor, and system calls that no kernel has.

/// Set to 1: the agent traps every system call of its process.
pub const ENV_DISPATCH: &str = "MEMSPILL_DISPATCH";
/// The agent pages its process without a supervisor: "1", or a rule to leave out ("without-none",
/// "without-window", "without-in-use", "without-sites"), by which tests show that the rule is not idle;
/// "registered": pages are away in memory that is registered with a userfaultfd of the agent's own.
pub const ENV_WINDOWS: &str = "MEMSPILL_WINDOWS";

/// Returns 1 under the dispatch.
pub const ASK_DISPATCH: usize = 0x6d73;
/// The calling thread's calls are trapped no more. For a thread that takes pages out, and must not wait for
/// its own batch.
pub const LEAVE_DISPATCH: usize = 0x6d74;
/// From now on pages go to and come from this `Source`.
pub const USE_SOURCE: usize = 0x6d75;
/// Takes out of the pages from the first argument on, as many as the second says and at most `CHUNK`, those
/// whose bit the third has: how many went.
pub const TAKE_OUT: usize = 0x6d76;
/// How many pages each fault brings at most; returns what it was.
pub const FILL_AT_ONCE: usize = 0x6d77;
/// A counter: 0 pages brought, 1 by window, 2 taken out, 3 waits.
pub const WINDOW_COUNTS: usize = 0x6d78;
