//! Where the C library's malloc makes the heap larger: the system call in its `brk` is rewritten as
//! `site.rs` does it with that of a fork, so that what the heap grows by is registered before it is used,
//! as what `mmap` maps is (`hooks.rs`).
//!
//! ```text
//!   brk:  mov $12, %eax ; syscall ; ...
//!         jmp memspill_brk_site             all registers kept, below the red zone
//!           grow: brk ─ is memory tight? a doorbell for what is new
//!           back behind the syscall, with its result
//! ```
//!
//! So the heap can grow by small steps. Where the monitor has to find what is new before it is filled, steps
//! must be large, and from a large step malloc takes arrays that it would map by themselves else: when they
//! are freed their holes stay in the heap, and take memory (`TOP_PAD_BYTES` in pager/src/limits.rs).
//!
//! Where this cannot be installed the monitor finds what is new, some ms later.
//!
//! What it does not do: the heaps of further threads, which malloc opens by mprotect, and what else it maps:
//! the monitor finds these; other processors.

use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::STATE;
use crate::hooks;
use crate::sys::{self, nr};
use crate::{fork_lock, site};

/// Behind the site.
#[unsafe(link_section = ".data")]
static BACK: AtomicUsize = AtomicUsize::new(0);

global_asm!(
    ".pushsection .text.memspill_brk_site, \"ax\", @progbits",
    ".hidden memspill_brk_site",
    ".globl memspill_brk_site",
    "memspill_brk_site:",
    site::keep_registers!(),
    "call {grow}",
    site::restore_registers!(),
    "mov rcx, qword ptr [rip + {back}]",
    "jmp rcx",
    ".popsection",
    grow = sym grow,
    back = sym BACK,
);

unsafe extern "C" {
    fn memspill_brk_site();
}

/// The call as it was asked for, and its result.
extern "C" fn grow(wanted: usize) -> usize {
    // A filter of the program's own may end it for any further call.
    if STATE.confined.load(Ordering::SeqCst) != 0 {
        return call(wanted);
    }
    let _reader = fork_lock::read();
    let control = hooks::announcing_control();
    let before = control.map(|_| call(0));
    let now = call(wanted);
    if let (Some(control), Some(before)) = (control, before) {
        hooks::announce_heap(control, before, now);
    }
    now
}

/// Trapped, where the calls of the process are: it may be one before which the process joins.
fn call(wanted: usize) -> usize {
    // SAFETY: the C library's own call; 0 changes nothing.
    unsafe { sys::syscall_raw(nr::BRK, [wanted, 0, 0, 0, 0, 0]) }
}

/// Rewrites the site, if there is one, and nobody else can be in it.
pub fn install() {
    if BACK.load(Ordering::Relaxed) != 0 || sys::thread_count() != Some(1) {
        return;
    }
    if let Some((at, _)) = site::find(&[sys::weak!("brk")], &[nr::BRK]) {
        // Else the monitor finds what the heap grows by.
        let _ = site::rewrite(at, memspill_brk_site as *const () as usize, &BACK);
    }
}
