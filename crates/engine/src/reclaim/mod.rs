//! Reclaim: which pages leave.
//!
//! [`lru`] is a queue of pages, [`queues`] which of them a page is in; [`victim`] chooses a batch. When
//! reclaim starts and stops is the group's business (`group.rs`).

pub mod folio;
pub mod lru;
pub(crate) mod queues;
pub(crate) mod turn;
pub mod victim;
