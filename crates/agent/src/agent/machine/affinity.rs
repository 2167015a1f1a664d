//! On which CPU the evictor runs: where the supervisor says that the program's one busy thread runs, or
//! anywhere.
//!
//! Each page that leaves is taken out of the translation buffers of every CPU on which a thread of the
//! process runs, by an interrupt to that CPU (4 to 5 µs in a virtual machine), and mprotect and faults wait
//! for one lock of the address space. If evictor and program take turns on one CPU there is neither.
//!
//! A failure changes nothing: the evictor then runs where it did.

use super::sys::{self, nr};

/// Words of a set of CPUs: for 1024 of them. An evictor on a machine with more CPUs stays where it is.
const WORDS: usize = 16;
type CpuSet = [u64; WORDS];

pub struct Affinity {
    /// Where the thread could run at first; None: not asked yet.
    first: Option<CpuSet>,
    /// The CPU it is kept on, counted from 1; 0: none.
    cpu: u32,
}

impl Affinity {
    pub const fn new() -> Affinity {
        Affinity { first: None, cpu: 0 }
    }

    /// From now on the calling thread runs on this CPU, counted from 1, or for 0 on all that it could run on
    /// at first.
    pub fn keep_on(&mut self, cpu: u32) {
        if cpu == self.cpu {
            return;
        }
        let first = match self.first {
            Some(set) => set,
            None => {
                let mut set = [0; WORDS];
                let args = [0, size_of::<CpuSet>(), set.as_mut_ptr() as usize, 0, 0, 0];
                // SAFETY: the kernel writes at most so many bytes.
                if unsafe { sys::syscall(nr::SCHED_GETAFFINITY, args) }.is_err() {
                    return;
                }
                *self.first.insert(set)
            }
        };
        let mut set = first;
        if let Some(index) = (cpu as usize).checked_sub(1) {
            set = [0; WORDS];
            let Some(word) = set.get_mut(index / 64) else { return };
            *word = 1 << (index % 64);
        }
        let args = [0, size_of::<CpuSet>(), set.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads so many bytes; it is about the calling thread alone.
        let _ = unsafe { sys::syscall(nr::SCHED_SETAFFINITY, args) };
        // A CPU that is not allowed is not asked for again and again.
        self.cpu = cpu;
    }
}
