//! The agent: what memspill puts into every program of a target tree, by LD_PRELOAD.
//!
//! A pager in another process can fill the pages of this one, but only a thread of this one can take pages
//! out of it (UFFDIO_MOVE works on the caller's own memory alone). So the agent hands its process's
//! userfaultfd to the supervisor (`agent` mode: keeps it) and then lends it one thread, the *evictor*, which
//! moves pages when told to. Beside that it makes growth visible while memory is tight: it stands before
//! `mmap` and `mremap`.
//!
//! Its storeys; each uses only those below it (`tests/tidy/modules.py` finds a circle):
//!
//! | folder        | what is in it                                                               |
//! |---------------|-----------------------------------------------------------------------------|
//! | `main.rs`     | declares all of this; the panic handler                                     |
//! | `planted.rs`  | where a program without a loader begins                                     |
//! | `running.rs`  | what is done in a process that runs already                                 |
//! | `start.rs`    | the constructor: a program joins; hands functions down to `join/`           |
//! | `hooks/`      | in place of functions of the C library, and of calls of static programs     |
//! | `trap/`       | system calls are trapped; threads, forks, signals; processes that join late |
//! | `programs/`   | forks that the agent makes, and programs that the program runs              |
//! | `join/`       | how a process joins: the handshake, and the evictor                         |
//! | `calls/`      | what system calls use is brought before, and stays while they are under way |
//! | `pages/`      | pages leave and come back without a userfaultfd of the supervisor's         |
//! | `thread/`     | what is kept for a thread of the program, and how it waits                  |
//! | `supervisor/` | what is shared with the supervisor, and how it is called; the few globals   |
//! | `machine/`    | system calls, all that depends on the processor, memory that is our own     |
//!
//! These must hold here, because each breach was once a hang or lost data:
//!
//! - The evictor touches nothing that can be swapped out, or it would wait for itself. Its stack and its
//!   block lie in the private region, which is never managed; globals lie in `.data`, which is backed by the
//!   agent's file, never in `.bss`, which is anonymous memory like any heap; and nothing is called through a
//!   lazily bound symbol.
//! - The program's descriptors, signal mask and errno are as they would be without the agent.
//! - A process whose supervisor is gone must die: its swapped-out pages are gone too, and would read as
//!   zeros.
//! - Everything that runs in the program's threads is async-signal-safe and allocates nothing.
//!
//! What it does not do: it decides nothing (but which pages come along), it does not talk to the kernel about
//! userfaultfd features (the supervisor issues UFFDIO_API and all registrations), and it does not follow
//! programs that it is not loaded into: set-user-id ones, those started with LD_PRELOAD taken away, static
//! ones that a program starts by its own instructions where these are neither trapped nor found.
#![no_std]
#![allow(
    unsafe_code,
    reason = "system calls, a raw clone, and pages shared with the supervisor are all that it is"
)]
#![deny(unsafe_op_in_unsafe_fn)]

mod calls;
#[allow(dead_code, reason = "the other side uses the rest")]
#[path = "../../../common/src/lib.rs"]
mod common;
#[cfg(memspill_test)]
#[path = "../doors.rs"]
mod doors;
mod hooks;
mod join;
mod machine;
mod pages;
mod planted;
mod programs;
mod running;
mod start;
mod supervisor;
mod thread;
mod trap;

/// Nothing here is meant to panic. If it does, the memory is in doubt: end at once.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    machine::sys::die()
}
