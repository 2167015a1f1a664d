//! One thread of the program.
//!
//! | file           | what is in it                                                            |
//! |----------------|--------------------------------------------------------------------------|
//! | `block.rs`     | all that is kept for the thread where calls are trapped                  |
//! | `trapped.rs`   | whether calls are trapped, and can be                                    |
//! | `wait.rs`      | sleeping until a word changes                                            |
//! | `fork_lock.rs` | no mapping changes while a fork is under way                             |
//! | `endings.rs`   | memory that the kernel touches when the thread ends                      |

pub mod block;
pub mod endings;
pub mod fork_lock;
pub mod trapped;
pub mod wait;
