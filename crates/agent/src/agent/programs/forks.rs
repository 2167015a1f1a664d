//! Forks of which the kernel tells nobody: userfaultfd's EVENT_FORK needs CAP_SYS_PTRACE. Without it the
//! child's memory is registered nowhere, and reads as zero where the parent's is away. So the agent tells the
//! supervisor before it forks, and the child joins before it runs one instruction of the program.
//!
//! ```text
//!  thread that forks                     supervisor                       child
//!  KIND_FORK_ROOM, where writes to what is shared are not seen: is there room for copies?
//!  signals blocked; fork_lock::write
//!  Hello KIND_FORKS ───────────────────▶ takes the evictor's turn: nothing leaves; copies the page table,
//!    prepare                             with a reference to each slot
//!            ◀────────────────────────── Prepared: `fork`
//!  clone ────────────────────────────────────────────────────────────────▶ on a stack that is never managed
//!                              parent_done            child_joins
//!  Forked ─────────────────────────────▶ gives the turn back               Hello KIND_CHILD, with `fork`
//!  fork_lock::done ◀──────────── Go ──── registers, and looks what is      ...
//!  waits         settle                  in the child's memory ──────────▶ Go; fork_lock::done
//!  goes on ◀───────── a word that both share: it has joined, or why not ── goes on, or ends
//! ```
//!
//! The trapped clone leads here (`trap/clone.rs`). It calls, with all signals blocked and `fork_lock::write`
//! held, on a stack that is never managed and that the child inherits:
//!
//! ```text
//!   prepare  ─ Err: the fork has failed so ─ Ok(false): this process may not ─ Ok(true): fork, then
//!   parent_done(result), fork_lock::done,  or, in the child, child_joins(), before anything else is touched
//!   settle
//! ```
//!
//! The system calls here are made as the program makes them: with the dispatch armed, its caller disarms it.
//!
//! If nothing is managed or away none of this is done (`trap/late.rs`).
//!
//! *A child that cannot join* (there may be no more threads, descriptors or memory) ends without a word, and
//! the fork has failed: its parent takes its exit away, and tells the program so. All that a program may see
//! is a SIGCHLD for which it has no child. So a fork ends when the child has joined.
//!
//! What is not here: forks of a child of vfork, which has its parent's memory; it is not known, and its child
//! has nothing that is managed.

use crate::common::sync::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use core::cell::UnsafeCell;

use crate::common::protocol::{Forked, Go, KIND_CHILD, KIND_FORK_ROOM, KIND_FORKS, MAGIC, Prepared};
use crate::join::handshake::{self, write_stderr_line};
use crate::machine::sys::{self, EAGAIN, EINTR, ENOMEM, EPROTO, Fd, PAGE, Result, nr};
use crate::supervisor::control::own_control;
use crate::supervisor::state::STATE;

/// How often it is asked for, a ms apart: the supervisor may have much to do, or wait for other children.
const TRIES: u32 = 10_000;
const NO_SOCKET: i32 = -1;

/// A child says: nothing yet; that it has joined; or else an errno.
const JOINING: u32 = 0;
const JOINED: u32 = 1 << 16;
/// Its parent says this when it waits no longer.
const LEFT: u32 = 2 << 16;
/// So often it is looked whether the child still lives,
const LOOKS_MS: u32 = 10;
/// and so long it is waited for: a child may be stopped.
const LOOKS: u32 = 1000;

/// The fork that is under way; there is one at a time (`fork_lock`).
struct Fork {
    socket: AtomicI32,
    /// Address of the word that parent and child share.
    outcome: AtomicUsize,
    id: UnsafeCell<[u8; 16]>,
}

// SAFETY: whoever uses it holds the lock.
unsafe impl Sync for Fork {}

// Not in .bss, which may be away.
#[unsafe(link_section = ".data")]
static FORK: Fork =
    Fork { socket: AtomicI32::new(NO_SOCKET), outcome: AtomicUsize::new(0), id: UnsafeCell::new([0; 16]) };

/// Readies this process for a fork. `child_tid`: where the kernel writes the child's id in the child, or 0.
pub fn prepare(child_tid: usize) -> Result<bool> {
    if STATE.forks.load(Ordering::Relaxed) == 0 || own_control().is_none() {
        return Ok(false);
    }
    let mut tries = 0;
    loop {
        match ask() {
            Err(EAGAIN) if tries < TRIES => {
                // It is a matter of µs at first, and of other programs later.
                if tries < 20 {
                    sys::yield_now()
                } else {
                    sys::pause(1)
                }
                tries += 1;
            }
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    if let Err(errno) = Outcome::map() {
        finish(Err(errno));
        return Err(errno);
    }
    // From here on nothing is taken out. Memory that the kernel writes to in the child by itself must be
    // there.
    touch(child_tid);
    let thread = sys::thread_pointer();
    touch(thread);
    let rseq = sys::weak!("__rseq_offset");
    if rseq != 0 {
        // SAFETY: a constant of the C library.
        let at = thread.wrapping_add_signed(unsafe { (rseq as *const isize).read() });
        touch(at);
        touch(at + 31);
    }
    Ok(true)
}

/// Waits until there is room for copies of what a fork would leave shared, as far as there will be any.
/// Before `fork_lock::write`: meanwhile memory is to leave, and other threads go on.
pub fn wait_for_room() {
    if STATE.forks.load(Ordering::Relaxed) == 0 || own_control().is_none() {
        return;
    }
    for _ in 0..TRIES {
        let Some(socket) = handshake::hello(KIND_FORK_ROOM, [0; 16]) else { return };
        match handshake::receive::<Prepared>(&socket) {
            Some((prepared, _)) if prepared.errno == EAGAIN => sys::pause(1),
            _ => return,
        }
    }
}

fn touch(addr: usize) {
    if addr != 0 {
        // SAFETY: memory of the calling thread that the C library has set up for the kernel to write to.
        unsafe { (addr as *const u8).read_volatile() };
    }
}

/// The parent, after the fork. `result`: the kernel's. `Child::settle` says what it is in the end.
pub fn parent_done(result: isize) -> Child {
    let outcome = Outcome(FORK.outcome.swap(0, Ordering::Relaxed));
    finish(if result < 0 { Err(-result as i32) } else { Ok(()) });
    Child { result, outcome }
}

/// A child that joins, as its parent sees it.
pub struct Child {
    result: isize,
    outcome: Outcome,
}

impl Child {
    /// Waits until the child has joined. Else the fork has failed, and there is no such child.
    pub fn settle(self) -> isize {
        if self.result < 0 {
            return self.result;
        }
        let word = self.outcome.word();
        for _ in 0..LOOKS {
            match word.load(Ordering::Acquire) {
                JOINING if self.has_ended(WNOHANG | WNOWAIT) => return self.failed(EAGAIN),
                JOINING => _ = sys::futex_wait(word, JOINING, LOOKS_MS),
                _ => break,
            }
        }
        match word.compare_exchange(JOINING, LEFT, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(JOINED) => self.result,
            Err(errno) => self.failed(errno as i32),
        }
    }

    fn failed(&self, errno: i32) -> isize {
        self.has_ended(0);
        // The others are none that a fork fails with.
        -(if errno == ENOMEM { ENOMEM } else { EAGAIN } as isize)
    }

    fn has_ended(&self, how: usize) -> bool {
        const P_PID: usize = 1;
        const WEXITED: usize = 4;
        const WALL: usize = 0x4000_0000;
        // `struct siginfo`, whose first word is the signal.
        let mut info = [0u32; 32];
        let args = [P_PID, self.result as usize, info.as_mut_ptr() as usize, how | WEXITED | WALL, 0, 0];
        // SAFETY: the kernel writes a struct of that size.
        while unsafe { sys::syscall(nr::WAITID, args) } == Err(EINTR) {}
        info[0] != 0
    }
}

const WNOHANG: usize = 1;
const WNOWAIT: usize = 0x0100_0000;

/// The word that parent and child share, in a page of its own, by its address; 0: there is none.
struct Outcome(usize);

impl Outcome {
    fn map() -> Result<()> {
        let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS | sys::MAP_POPULATE;
        let args = [0, PAGE, sys::PROT_READ | sys::PROT_WRITE, flags, usize::MAX, 0];
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
        let at = unsafe { sys::syscall(nr::MMAP, args) }?;
        FORK.outcome.store(at, Ordering::Relaxed);
        Ok(())
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: it is mapped until drop, and used as an atomic only.
        unsafe { AtomicU32::from_ptr(self.0 as *mut u32) }
    }

    /// The child's word. False: its parent does not wait for it any longer.
    fn say(&self, what: u32) -> bool {
        let word = self.word();
        let is_said = word.compare_exchange(JOINING, what, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        sys::futex_wake(word);
        is_said
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: the mapping of `map`, which nobody uses any more.
            let _ = unsafe { sys::syscall(nr::MUNMAP, [self.0, PAGE, 0, 0, 0, 0]) };
        }
    }
}

fn finish(forked: Result<()>) {
    let socket = Fd(FORK.socket.swap(NO_SOCKET, Ordering::Relaxed));
    handshake::send(&socket, &Forked { magic: MAGIC, errno: forked.err().unwrap_or(0) }, None);
    if forked.is_ok() {
        // What changes from here on is no matter of this fork's any more.
        let _ = handshake::receive::<Go>(&socket);
    }
    drop(socket);
}

/// In the child: from here on no hook follows the parent's pointer.
pub fn forget_parent() {
    STATE.control.store(core::ptr::null_mut(), Ordering::Release);
    STATE.owner.store(0, Ordering::Relaxed);
}

/// The child: joins, or ends.
pub fn child_joins() {
    forget_parent();
    // SAFETY: written by `prepare`, and the child has one thread.
    let id = unsafe { *FORK.id.get() };
    let outcome = Outcome(FORK.outcome.swap(0, Ordering::Relaxed));
    if let Err(errno) = handshake::try_join(KIND_CHILD, id) {
        if outcome.say(errno as u32) {
            sys::exit_process(0);
        }
        write_stderr_line("is ended: as the child of a fork it could not join memspill");
        sys::die();
    }
    outcome.say(JOINED);
    drop(Fd(FORK.socket.swap(NO_SOCKET, Ordering::Relaxed)));
}

/// Asks the supervisor to hold everything for a fork.
fn ask() -> Result<()> {
    // None: a socket is forbidden here.
    let socket = handshake::hello(KIND_FORKS, [0; 16]).ok_or(sys::EPERM)?;
    let (prepared, _) = handshake::receive::<Prepared>(&socket).ok_or(EPROTO)?;
    if prepared.errno != 0 {
        return Err(prepared.errno);
    }
    // SAFETY: whoever forks is alone.
    unsafe { *FORK.id.get() = prepared.fork };
    FORK.socket.store(socket.0, Ordering::Relaxed);
    core::mem::forget(socket);
    Ok(())
}
