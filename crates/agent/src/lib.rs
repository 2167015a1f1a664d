//! The freestanding library that LD_PRELOAD puts into a target, and the protocol it speaks.
//!
//! The library itself is `src/agent/`; `build.rs` compiles it apart from this crate, and [`AGENT_SO`] is the
//! result. A supervisor writes it to a memfd, names that in LD_PRELOAD, says in the environment where it
//! listens ([`protocol::ENV_NAME`]), and answers what connects as [`protocol`] says.

pub mod call_table;
pub mod link;
pub mod pidfd;
pub mod pool;
pub mod protocol;
pub mod words;
#[path = "../../backing/src/wordwise/decode.rs"]
mod wordwise;

/// The agent: a shared object without dependencies, for the machine that this crate was built for.
pub const AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemspill_agent.so"));
