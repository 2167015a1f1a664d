//! A process joins: `handshake.rs` speaks with the supervisor, `evictor.rs` is the thread that is lent to it,
//! and `confine.rs` says what this thread gives up.

pub mod confine;
pub mod evictor;
pub mod handshake;
