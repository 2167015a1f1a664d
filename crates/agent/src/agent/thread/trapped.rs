//! Are the calls of this process trapped, and can they be?

use super::block;
use crate::common::sync::{AtomicU32, Ordering};
use crate::machine::gadget;
use crate::machine::sys::{self, EBUSY, ENOSYS, Result};

const ARCH_PRCTL: usize = 158;
const ARCH_GET_GS: usize = 0x1004;

/// Not 0: this process has not joined yet, though it will; as `trap/late.rs` says.
#[unsafe(link_section = ".data.hot")]
pub static IS_LATE: AtomicU32 = AtomicU32::new(0);

/// Not 0: the agent comes into a process that runs already, and may have many threads (`trap/running.rs`).
#[unsafe(link_section = ".data.hot")]
static IS_RUNNING: AtomicU32 = AtomicU32::new(0);

/// Not 0: the loader has put this library into the program.
#[unsafe(link_section = ".data.hot")]
static IS_LOADED: AtomicU32 = AtomicU32::new(0);

pub fn set_loaded() {
    IS_LOADED.store(1, Ordering::Relaxed);
}

pub fn is_loaded() -> bool {
    IS_LOADED.load(Ordering::Relaxed) != 0
}

/// The program runs already, and all but one of its threads stand still.
pub fn set_running() {
    IS_RUNNING.store(1, Ordering::Relaxed);
}

/// The process has joined.
pub fn has_joined() {
    IS_RUNNING.store(0, Ordering::Relaxed);
}

/// Does the agent come into a program that runs already? Then it goes on as it was where that fails.
pub fn was_running() -> bool {
    IS_RUNNING.load(Ordering::Relaxed) != 0
}

/// Are calls trapped in this process?
pub fn is_armed() -> bool {
    block::is_armed()
}

/// Has this process not joined yet, though it will?
pub fn is_late() -> bool {
    IS_LATE.load(Ordering::Relaxed) != 0
}

/// Are calls trapped, or will they be until this process has joined?
pub fn traps() -> bool {
    is_armed() || is_late()
}

/// Whether calls can be trapped here, and where is kept what that needs: (address, bytes). Nothing that the
/// program sees has changed. `own_threads`: the agent's.
///
/// Err, which is told to the supervisor (`Ready::errno`): EBUSY, the program has more than one thread
/// already, or has set %gs where only the kernel can set it; ENOSYS, the kernel cannot
/// (CONFIG_GENERIC_ENTRY) or must not (kernel.syscall_user_dispatch), or a sandbox forbids it.
pub fn prepare(own_threads: u32) -> Result<(usize, usize)> {
    if is_armed() {
        // The child of a fork.
        return block::reserve();
    }
    gadget::find_fsgsbase();
    if !gadget::has_fsgsbase() && kernels_gs()? != 0
        || !was_running() && sys::thread_count().is_some_and(|threads| threads > 1 + own_threads)
    {
        return Err(EBUSY);
    }
    if !gadget::can_arm() {
        return Err(ENOSYS);
    }
    block::reserve()
}

/// The address in %gs.
fn kernels_gs() -> Result<usize> {
    let mut gs = 0usize;
    // SAFETY: the kernel writes a word.
    unsafe { gadget::call(ARCH_PRCTL, [ARCH_GET_GS, &raw mut gs as usize, 0, 0, 0, 0]) }?;
    Ok(gs)
}
