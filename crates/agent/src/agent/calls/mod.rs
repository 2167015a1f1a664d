//! Memory that the program's system calls use is brought before they are made, and stays while they are under
//! way.
//!
//! | file               | what is in it                                                        |
//! |--------------------|----------------------------------------------------------------------|
//! | `walk.rs`          | finds what memory a call uses, by the table of calls                  |
//! | `in_use.rs`        | what a call uses is published (`pages/uses.rs` looks at it), and brought  |
//! | `hold.rs`          | what is done before a plain call is made                              |
//! | `pieces.rs`        | large reads and writes, a piece at a time                             |
//! | `mappings.rs`      | calls that change mappings: the words of the pages follow             |
//! | `advice.rs`        | memory that moves, and advice                                         |
//! | `other_process.rs` | process_vm_readv and process_vm_writev                                |
//! | `limits.rs`        | limits on the process's addresses                                     |
//! | `descriptors.rs`   | the agent's descriptors stay open                                     |
//! | `tasks.rs`         | stat on /proc/self/task                                               |
//! | `answers.rs`       | calls that the agent answers by itself                                |

pub mod advice;
pub mod answers;
pub mod descriptors;
#[cfg(memspill_test)]
pub mod doors;
pub mod hold;
pub mod in_use;
pub mod limits;
pub mod mappings;
pub mod other_process;
pub mod pieces;
pub mod tasks;
pub mod walk;
