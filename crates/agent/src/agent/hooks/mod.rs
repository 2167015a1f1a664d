//! Code that stands before functions of the C library, or before calls that a static program makes by itself.
//!
//! | file             | what stands there                                                       |
//! |------------------|-------------------------------------------------------------------------|
//! | `mmap.rs`        | `mmap`, `mmap64`, `mremap`, `munmap`                                    |
//! | `remap.rs`       | mremap of several mappings                                              |
//! | `madvise.rs`     | `madvise` and its kin, `prctl`, `syscall`                               |
//! | `open.rs`        | `open`, `fcntl` and their kin: files that are read past the page cache  |
//! | `files.rs`       | calls on files of tmpfs                                                 |
//! | `proc_mem.rs`    | `/proc/PID/mem`, PEEK and POKE                                          |
//! | `clear_refs.rs`  | `/proc/PID/clear_refs`                                                  |
//! | `malloc.rs`      | where malloc gets memory                                                |
//! | `threads.rs`     | `pthread_create`: where the kernel writes when a thread has ended       |
//! | `own_thread.rs`  | a program that counts its threads does not count the evictor            |
//! | `fork.rs`        | how the child of the C library's fork joins                             |
//! | `c_library.rs`   | how such a function returns; a process that is late joins before        |

pub mod c_library;
pub mod clear_refs;
pub mod files;
pub mod fork;
pub mod madvise;
pub mod malloc;
pub mod mmap;
pub mod open;
pub mod own_thread;
pub mod proc_mem;
pub mod remap;
pub mod threads;
