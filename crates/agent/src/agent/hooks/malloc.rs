//! Memory that the C library's malloc gets: the system calls in its `brk` and in its `mmap` are rewritten
//! (`site.rs`), so that memory that they add is registered before it is used, like that which the program
//! maps (`mmap.rs`). Malloc calls both inside the library, past the agent's `mmap`.
//!
//! ```text
//!   brk:  mov $12, %eax ; syscall ; ...          mmap:  ... mov $9, %eax ; syscall ; ...
//!         jmp memspill_brk_site                             jmp memspill_mmap_site
//!           all registers kept, below the red zone
//!           grow: brk ─ is memory tight? a doorbell for what is new       map: as the agent's own mmap
//!           back behind the syscall, with its result
//! ```
//!
//! So malloc can be left as it is. While the monitor had to find new memory before it was filled, malloc was
//! told to grow its heap by large steps (GLIBC_TUNABLES). From a large step it takes arrays that it would map
//! by themselves else: when they are freed their holes stay in the heap, and take memory. And whoever sets
//! the step also has it map each array of more than 128 KiB by itself, again and again, where it would keep
//! arrays of a size once one of them was freed: a program that makes and frees arrays of 2 MB took 48 times
//! as long, one that computes with arrays of numpy 1.5 times, with all the memory that they wanted. (There
//! are programs that gain by that: Python's dicts in 88M took 15.3 s with a step of 1 MiB, and take 18.7.)
//!
//! The heap of a further thread is reserved (PROT_NONE), and opened by mprotect, often by a page at a time:
//! what is reserved is announced as a whole, so that it is registered when it is opened. For heaps that were
//! there before memory was tight, the monitor registers the reserve behind them (`MappingKind::Reserve` in
//! pager/src/proc.rs).
//!
//! If this cannot be installed the monitor finds new memory, some ms later.
//!
//! What it does not do: other processors, where the monitor finds all of it.

use super::mmap;
use crate::common::sync::{AtomicUsize, Ordering};
use crate::machine::sys::{self, nr};
use crate::programs::site::{self, Place};
use crate::supervisor::control;
use crate::supervisor::state::STATE;
use crate::thread::fork_lock;

/// Behind the site in `brk`.
#[unsafe(link_section = ".data")]
static BEHIND_BRK: AtomicUsize = AtomicUsize::new(0);
/// Behind the site in `mmap`.
#[unsafe(link_section = ".data")]
static BEHIND_MMAP: AtomicUsize = AtomicUsize::new(0);

site::place!(memspill_brk_site, grow, BEHIND_BRK);
site::place!(memspill_mmap_site, map, BEHIND_MMAP);

/// The call as it was asked for, and its result.
extern "C" fn grow(&[wanted, ..]: &[usize; 6]) -> usize {
    if is_confined() {
        return brk(wanted);
    }
    let _reader = fork_lock::read();
    let control = control::announcing_control();
    let before = control.map(|_| brk(0));
    let now = brk(wanted);
    if let (Some(control), Some(before)) = (control, before) {
        mmap::announce_heap(control, before, now);
    }
    now
}

/// Trapped, where the calls of the process are: it may be one before which the process joins.
fn brk(wanted: usize) -> usize {
    // SAFETY: the C library's own call; 0 changes nothing.
    unsafe { sys::syscall_raw(nr::BRK, [wanted, 0, 0, 0, 0, 0]) }
}

/// The call as it was asked for, by its arguments in their order, and the kernel's result. The C library maps
/// only two other things by this: files, which are none that are managed, and stacks.
extern "C" fn map(args: &[usize; 6]) -> usize {
    let [_, len, prot, flags, ..] = *args;
    if is_confined() || flags & sys::MAP_ANONYMOUS == 0 {
        // SAFETY: the C library's own call, trapped where the calls of the process are.
        return unsafe { sys::syscall_raw(nr::MMAP, *args) };
    }
    let is_reserve = prot == sys::PROT_NONE && RESERVE_BYTES.contains(&len) && mmap::is_ordinary(flags);
    match mmap::map_anonymous(*args, is_reserve || mmap::is_managed(len, prot, flags)) {
        Ok(at) => at,
        Err(errno) => (errno as usize).wrapping_neg(),
    }
}

/// For a heap of 64 MiB that is to begin at a multiple of that; the rest is unmapped at once. (Stacks, which
/// are reserved too, are mostly smaller.)
const RESERVE_BYTES: core::ops::RangeInclusive<usize> = 64 << 20..=128 << 20;

/// A filter of the program's own may end it for any further call.
fn is_confined() -> bool {
    STATE.confined.load(Ordering::SeqCst) != 0
}

/// If one cannot be rewritten the monitor finds new memory.
pub fn places() -> [Place; 2] {
    let (brk, mmap) = (memspill_brk_site as *const () as usize, memspill_mmap_site as *const () as usize);
    [
        Place { function: sys::weak!("brk"), number: nr::BRK, target: brk, behind: &BEHIND_BRK },
        Place { function: sys::weak!("__mmap"), number: nr::MMAP, target: mmap, behind: &BEHIND_MMAP },
    ]
}
