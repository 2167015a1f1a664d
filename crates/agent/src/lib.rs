//! The freestanding library that LD_PRELOAD puts into a target.
//!
//! The library itself is `src/agent/`; `build.rs` compiles it apart from this crate, and [`AGENT_SO`] is the
//! result. A supervisor writes it to a memfd, names that in LD_PRELOAD, says in the environment where it
//! listens, and answers what connects, as common/src/protocol.rs says.

/// The agent: a shared object without dependencies, for the machine that this crate was built for.
pub const AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemspill_agent.so"));
