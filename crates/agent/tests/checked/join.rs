//! The evictor, as it is.

#[path = "../../src/agent/join/confine.rs"]
pub mod confine;
#[path = "../../src/agent/join/evictor.rs"]
pub mod evictor;
