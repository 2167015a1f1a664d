//! The memory that a process shares with the supervisor while it runs, and the agent's few globals.
//!
//! | file          | what is in it                                                             |
//! |---------------|---------------------------------------------------------------------------|
//! | `state.rs`    | the globals                                                               |
//! | `address.rs`  | where the supervisor listens, and what kind of run it is                  |
//! | `control.rs`  | the control page                                                          |
//! | `doorbell.rs` | how a thread calls the supervisor                                         |

pub mod address;
pub mod control;
pub mod doorbell;
pub mod state;
