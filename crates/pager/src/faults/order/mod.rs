//! In which order changes of an address space were made, where they may have been told in another one.
//!
//! The kernel queues an event after it has let go of the locks under which the change was made, so of two
//! changes by two threads the second may be told first. All events of which that can be true are here at
//! once: whoever reads them reads on until no change is under way (`events.rs`). Until then nothing is filled
//! and nothing is taken out either, so that what the page table says of a page moves with the page, and the
//! only question is when.
//!
//! ```text
//!   change.rs    one change, and which changes touch the same addresses
//!   moves.rs     did memory come to a place before or after that was freed?  What is registered now tells.
//!   forks.rs     which changes has the child of a fork seen?  What is registered in the child tells.
//!      └─ cluster.rs    where memory must be after so many changes, and where it cannot be
//! ```
//!
//! What is here only thinks: it changes no page table and asks the kernel nothing.

pub mod change;
pub mod cluster;
pub mod forks;
pub mod moves;
