//! Processes that the program makes: forks, and programs that it runs.
//!
//! | file           | what is in it                                                              |
//! |----------------|----------------------------------------------------------------------------|
//! | `forks.rs`     | forks of which the kernel tells nobody: the agent tells, before it forks   |
//! | `site.rs`      | where the C library makes a call, and how that comes to the agent          |
//! | `exec.rs`      | before a static program takes this one's place                             |
//! | `inherited.rs` | filters that would end the programs that inherit them                        |
//! | `preload.rs`   | the agent's name in an LD_PRELOAD that the program has replaced            |
//! | `readable.rs`  | the agent's name for programs of another user                              |

pub mod exec;
pub mod forks;
pub mod inherited;
pub mod preload;
pub mod readable;
pub mod site;
