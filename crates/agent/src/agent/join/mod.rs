//! A process joins: `handshake.rs` speaks with the supervisor, `evictor.rs` is the thread that is lent to it,
//! `confine.rs` says what this thread gives up, and `above.rs` has what rooms above do for a process that
//! joins.

pub mod above;
pub mod confine;
pub mod evictor;
pub mod handshake;
