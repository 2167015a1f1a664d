//! Reclaim: which pages leave.
//!
//! [`lru`] is the order in which pages came; [`victim`] chooses a batch from it. When reclaim starts and
//! stops is the group's business (`group.rs`).

pub mod folio;
pub mod lru;
pub(crate) mod turn;
pub mod victim;
