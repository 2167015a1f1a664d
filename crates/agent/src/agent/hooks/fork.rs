//! How the child of a fork joins in `kernel` mode. (In `agent` mode: `programs/forks.rs`.)
//!
//! The child has a copy of its parent's memory, but none of the agent's region, no evictor, and a userfaultfd
//! that only the supervisor holds (it came with the fork event). The supervisor cannot tell from that event
//! which process it belongs to. So the child first reads the ident page, which is missing in every child: the
//! fault arrives on the new userfaultfd, the supervisor fills the page with random bytes, and the process
//! that shows them is the child. Then the child joins as a fresh program does.
//!
//! A child that is to run a program, or to end, need not have an evictor for that: where something of its
//! parent is managed it is known, and served, once it has read the ident page. So it joins late, unless
//! memory is tight (`trap/late.rs`).
//!
//! The handler runs for the C library's fork(), with its locks in order again, in the only thread. vfork and
//! posix_spawn share their parent's memory until they exec: nothing to do. In a static program the
//! calls are trapped (`trap/`). The child of another raw clone is served by
//! the pager but has no evictor: nothing of it is swapped out. The same goes for the child of a program that
//! has a seccomp filter.

use crate::common::sync::{AtomicU32, Ordering};
use core::ffi::c_int;
use core::ptr::null_mut;

use super::c_library;
use crate::common::protocol::KIND_FORK;
use crate::join::handshake;
use crate::machine::sys;
use crate::supervisor::control;
use crate::supervisor::state::STATE;
use crate::trap;

type Handler = extern "C" fn();
type RegisterAtfork =
    extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, dso: *mut core::ffi::c_void) -> c_int;
type PthreadAtfork = extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>) -> c_int;

/// Not 0: memory was tight when the fork that is under way began.
#[unsafe(link_section = ".data.hot")]
static WAS_TIGHT: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".data.hot")]
static IS_INSTALLED: AtomicU32 = AtomicU32::new(0);

/// Registers the handlers, once. Without them the children of forks would not be managed, and that is all.
/// Not to be called first in a signal handler.
pub fn install() {
    if IS_INSTALLED.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let glibc = sys::weak!("__register_atfork");
    if glibc != 0 {
        // SAFETY: glibc's function behind pthread_atfork. No DSO is named, so the handler is never taken out.
        unsafe {
            let register: RegisterAtfork = core::mem::transmute(glibc);
            register(Some(prepare), Some(parent), Some(child), null_mut());
        }
        return;
    }
    let posix = sys::weak!("pthread_atfork");
    if posix != 0 {
        // SAFETY: the signature that POSIX gives it.
        unsafe {
            let register: PthreadAtfork = core::mem::transmute(posix);
            register(Some(prepare), Some(parent), Some(child));
        }
    }
}

/// Tells the supervisor, by a count, that a fork is under way: the event of another thread's munmap may come
/// before the fork's own.
extern "C" fn prepare() {
    // `parent` counts down what is counted here.
    c_library::be_joined();
    WAS_TIGHT.store(control::announcing_control().is_some().into(), Ordering::Relaxed);
    change_forking(|forking| forking.fetch_add(1, Ordering::SeqCst));
}

extern "C" fn parent() {
    change_forking(|forking| forking.fetch_sub(1, Ordering::SeqCst));
}

fn change_forking(change: impl Fn(&AtomicU32) -> u32) {
    if let Some(control) = control::own_control() {
        // SAFETY: this process owns the page, and keeps it mapped until it ends; the field is accessed as an
        // atomic only.
        change(unsafe { AtomicU32::from_ptr(&raw mut (*control).forking) });
    }
}

extern "C" fn child() {
    // From here on no hook follows the parent's pointer.
    let forget_parent = || {
        STATE.owner.store(0, Ordering::Relaxed);
        !STATE.control.swap(null_mut(), Ordering::AcqRel).is_null()
    };
    // SAFETY: the page was inherited, and is readable.
    let be_known = || unsafe { (STATE.ident.load(Ordering::Relaxed) as *const u8).read_volatile() };
    if STATE.confined.load(Ordering::SeqCst) != 0 {
        // A seccomp filter of the program may end the process for any of the calls that joining makes. So
        // this child gets no evictor: the pager serves its faults, and nothing of it is swapped out.
        if forget_parent() {
            be_known();
        }
        return;
    }
    // No handler of the program may find it half made.
    let blocked = sys::SignalsBlocked::new();
    if !forget_parent() {
        // The parent was not managed, so this child is not.
        return;
    }
    be_known();
    if WAS_TIGHT.load(Ordering::Relaxed) == 0 && trap::child_begins(blocked.before()) {
        return blocked.forget();
    }
    handshake::join(KIND_FORK);
}
