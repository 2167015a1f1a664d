//! What agent and supervisor must agree on. Both are built from this one folder: the supervisor's crates use
//! it as a crate; the agent, which memspill-agent's build script compiles apart, has it as a module.
//!
//! ```text
//!   supervisor (crate memspill_common) ◀── this folder ──▶ agent (`mod common`)
//!
//!   protocol, link   what they say to each other
//!   words            what is known of a page where the agent pages its process
//!   pool, wordwise   how pages lie in the compressed pool
//!   call_table       which memory the kernel touches in a system call
//!   pidfd            what the kernel says of a process
//!   rules            what a test can leave out of all this
//!   running          how the agent comes into a process that runs
//!   sync             atomics, which a model checker can take the place of
//!   streams, window  which pages come with the one that is needed
//! ```
//!
//! Invariants: plain data, and code that never panics, allocates nothing and needs core alone, as
//! the agent has no more. Paths between these files begin with `super::`: in the agent this is no root.

pub mod call_table;
pub mod link;
pub mod pidfd;
pub mod pool;
pub mod protocol;
pub mod rules;
pub mod running;
pub mod streams;
pub mod sync;
pub mod window;
pub mod words;
pub mod wordwise;
