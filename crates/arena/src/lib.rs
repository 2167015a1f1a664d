//! Memory with a budget, inside a program: what does not fit is compressed and swapped out by memspill.
//!
//! ```text
//!   this process                                          memspill attach, a process beside it
//!   arena.rs  Arena, Slice     (c.rs: the same for C; numpy.rs)
//!     heap.rs   blocks: small ones in slabs, large ones as runs of pages
//!       range.rs  the process's one range of addresses ◀─── pages leave and come ─── the supervisor
//!   process.rs  one supervisor and one range for all arenas ─── ctl: limit, cold, statistics ──▶
//!     helper.rs   starts the supervisor             command.rs   finds the command
//! ```
//!
//! ```no_run
//! let arena = memspill::Arena::new(2 << 30)?;
//! let mut numbers = arena.alloc_slice::<u64>(1 << 30)?; // 8 GiB, zeros
//! numbers[7] = 1;
//! # Ok::<(), memspill::Error>(())
//! ```
//!
//! What holds: memory of an arena is ordinary memory: it can be read, written and given to system calls. Only
//! it counts; what the program has elsewhere is neither counted nor swapped. All arenas of a process have one
//! supervisor and share the sum of their budgets. If the supervisor dies, so does the process: a page is
//! never lost silently.
//!
//! What it does not do: swap. That is the supervisor, and it does what `memspill run` does.

mod arena;
mod c;
mod command;
mod error;
mod heap;
mod helper;
mod numpy;
mod process;
mod range;

pub use arena::{Advice, Arena, Slice, Stats};
pub use error::Error;
