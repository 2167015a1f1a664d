//! The processor and the kernel, and the memory that is the agent's own.
//!
//! | file          | what is in it                                                             |
//! |---------------|---------------------------------------------------------------------------|
//! | `sys.rs`      | system calls, and all that depends on the processor                       |
//! | `gadget.rs`   | the instructions whose calls are never trapped                            |
//! | `context.rs`  | what the kernel puts on the stack for a signal's handler                  |
//! | `uffd.rs`     | requests to a userfaultfd                                                 |
//! | `region.rs`   | the memory that the agent owns, kept apart from the program's             |
//! | `seccomp.rs`  | filters of system calls, as the kernel has them                            |
//! | `own_calls.rs` | the calls that the agent makes, which filters must let pass                 |
//! | `affinity.rs` | on which CPU the evictor runs                                             |
//! | `relocation.rs` | this library relocates itself, where no loader does                     |
//! | `robust.rs`   | the robust locks of a thread                                              |
//! | `numbers.rs`  | the kernel's numbers: errors, calls, flags                                |
//! | `environment.rs`| the program's environment                                                 |

pub mod affinity;
pub mod context;
pub mod environment;
pub mod gadget;
pub mod numbers;
pub mod own_calls;
pub mod region;
pub mod relocation;
pub mod robust;
pub mod seccomp;
pub mod sys;
pub mod uffd;
