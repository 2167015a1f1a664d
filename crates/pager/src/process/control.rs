//! The page shared with an agent, and the lock in it.
//!
//! The other side is the target, which may write anything at any time: every field is read once, as an
//! atomic, and checked. Layout and meaning are in `common/src/protocol.rs`.
#![allow(unsafe_code, reason = "a mapping that another process writes: atomics through raw pointers")]

use crate::process::futex;
use crate::times::{MOVE_LOCK, MOVE_LOCK_STEP};
use memspill_common::link::FILE_BYTES;
use memspill_common::protocol::{
    Control, DOORBELL_ANSWERED, DOORBELL_IN_VAIN, DOORBELL_TAKEN, DOORBELLS, Doorbell, FILTER_WORDS, MoveRun,
    RUNS_MAX, WANTS_ASKED, WANTS_REFUSED,
};
use memspill_common::sync::{AtomicU32, Ordering, spin_hint};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{addr_of, addr_of_mut, null_mut};

pub struct ControlPage {
    page: *mut Control,
    len: usize,
}

/// The lock is looked at so often before it is slept on: 3 to 5 µs. A MOVE of pages that lie apart takes 1 to
/// 3. If the evictor waits for this very CPU, each look is one too many.
const MOVE_LOCK_SPINS: u32 = 200;

/// Why no MOVE may start. The agent looks at whether there is any reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// An event is being read or processed.
    Event = 1,
    /// The evictor did not answer in time, and what it was told is not to be done any more.
    CutOff = 2,
}

// SAFETY: the page is only accessed through atomics and volatile copies, by any thread.
unsafe impl Send for ControlPage {}
// SAFETY: as above.
unsafe impl Sync for ControlPage {}

impl ControlPage {
    /// A memfd of one page, to be handed to an agent, and our mapping of it.
    pub fn new() -> io::Result<(ControlPage, OwnedFd)> {
        ControlPage::of_len(4096)
    }

    /// The same with what takes the place of a userfaultfd behind it (`link.rs`).
    pub fn with_link() -> io::Result<(ControlPage, OwnedFd)> {
        ControlPage::of_len(FILE_BYTES)
    }

    /// The whole file, where there is more than the page.
    pub(super) fn file(&self) -> *mut u8 {
        assert!(self.len == FILE_BYTES, "a control page without a link");
        self.page.cast()
    }

    fn of_len(len: usize) -> io::Result<(ControlPage, OwnedFd)> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let fd =
            rustix::fs::memfd_create("memspill-control", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        // Else the target could cut off the page under us: a SIGBUS here.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok((ControlPage { page: page.cast(), len }, fd))
    }

    fn word(&self, field: *mut u32) -> &AtomicU32 {
        // SAFETY: field points into our live mapping, is aligned, and is accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(field) }
    }
    fn lock_word(&self) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).lock) })
    }
    fn abort_word(&self) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).abort) })
    }

    /// Tell the agent whether new mappings must be announced before they are used.
    pub fn set_announces(&self, announces: bool) {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).announces) }).store(announces as u32, Ordering::Release);
    }

    /// Tell the agent that its calls are answered.
    pub fn set_answers(&self) {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).answers) }).store(1, Ordering::Release);
    }

    /// Does a thread of the process wait for its calls to be answered?
    pub fn wants_answers(&self) -> bool {
        self.wants_word().load(Ordering::Acquire) == WANTS_ASKED
    }

    /// They are from now on, or cannot be.
    pub fn grant_answers(&self, granted: bool) {
        self.wants_word().store(if granted { 0 } else { WANTS_REFUSED }, Ordering::Release);
    }

    fn wants_word(&self) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).wants_answers) })
    }

    /// Was the evictor let go by the thread that has joined?
    pub fn takes_commands(&self) -> bool {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).takes_commands) }).load(Ordering::Acquire) != 0
    }

    /// Has the process marked memory that its children are not to have?
    pub fn fork_advice(&self) -> bool {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).fork_advice) }).load(Ordering::Acquire) != 0
    }

    /// Has the process put guards over some of its memory?
    pub fn has_guards(&self) -> bool {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).guards) }).load(Ordering::Acquire) != 0
    }

    /// Is the C library's fork under way in some thread?
    pub fn is_forking(&self) -> bool {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).forking) }).load(Ordering::Acquire) != 0
    }

    /// How often a thread of the process was about to open a file that is read past the page cache, and how
    /// often it has.
    pub fn direct_opens(&self) -> (u32, u32) {
        // SAFETY: only the addresses are taken.
        let (begun, ended) =
            unsafe { (addr_of_mut!((*self.page).direct_begun), addr_of_mut!((*self.page).direct_ended)) };
        (self.word(begun).load(Ordering::SeqCst), self.word(ended).load(Ordering::SeqCst))
    }

    /// From here to `end_taking_shared` no thread of the process opens such a file, unless it began before:
    /// that shows in the count.
    pub fn begin_taking_shared(&self) {
        self.takes_shared_word().fetch_add(1, Ordering::SeqCst);
    }

    pub fn end_taking_shared(&self) {
        self.takes_shared_word().fetch_sub(1, Ordering::SeqCst);
    }

    fn takes_shared_word(&self) -> &AtomicU32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).takes_shared) })
    }

    /// Files of shared memory are managed in this run: calls on them are to be told.
    pub fn set_files(&self) {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).files) }).store(1, Ordering::SeqCst);
    }

    /// The kernel tells nobody of forks: the agent is to make them itself.
    pub fn set_forks(&self) {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).forks) }).store(1, Ordering::SeqCst);
    }

    /// Which of them.
    pub fn set_file_filter(&self, filter: &[u32; FILTER_WORDS]) {
        for (n, bits) in filter.iter().enumerate() {
            // SAFETY: in bounds; only the address is taken.
            self.word(unsafe { addr_of_mut!((*self.page).file_filter[n]) }).store(*bits, Ordering::SeqCst);
        }
    }

    /// Threads that are in a call on a file that may be one.
    pub fn file_calls(&self) -> u32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).file_calls) }).load(Ordering::SeqCst)
    }

    /// The calls among these on a file of the filter.
    pub fn held_calls(&self) -> u32 {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).held_file_calls) }).load(Ordering::SeqCst)
    }

    /// Has the program a seccomp filter, so that its calls are not told?
    pub fn is_confined(&self) -> bool {
        // SAFETY: only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).confined) }).load(Ordering::SeqCst) != 0
    }

    /// No MOVE may start for this reason. To be said before what follows from it, and to be taken back
    /// afterwards.
    pub fn forbid(&self, reason: Forbidden) {
        self.abort_word().fetch_or(reason as u32, Ordering::SeqCst);
    }

    pub fn allow(&self, reason: Forbidden) {
        self.abort_word().fetch_and(!(reason as u32), Ordering::SeqCst);
    }

    pub fn is_forbidden(&self, reason: Forbidden) -> bool {
        self.abort_word().load(Ordering::SeqCst) & reason as u32 != 0
    }

    /// Take the lock that excludes MOVEs. False if it cannot be had for far longer than a MOVE takes.
    pub fn lock(&self) -> bool {
        let word = self.lock_word();
        for _ in 0..MOVE_LOCK_SPINS {
            if word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            spin_hint();
        }
        for _ in 0..MOVE_LOCK.as_millis() / MOVE_LOCK_STEP.as_millis() {
            if word.swap(2, Ordering::Acquire) == 0 {
                return true;
            }
            futex::wait(word, 2, MOVE_LOCK_STEP);
        }
        false
    }

    pub fn unlock(&self) {
        if self.lock_word().swap(0, Ordering::Release) == 2 {
            futex::wake(self.lock_word(), 1);
        }
    }

    pub fn write_runs(&self, runs: &[MoveRun]) {
        assert!(runs.len() <= RUNS_MAX);
        for (i, run) in runs.iter().enumerate() {
            // SAFETY: i is in bounds; MoveRun is plain data; the agent reads it only after the command that
            // follows.
            unsafe { addr_of_mut!((*self.page).runs[i]).write_volatile(*run) };
        }
    }

    pub fn read_run(&self, i: usize) -> MoveRun {
        assert!(i < RUNS_MAX);
        // SAFETY: in bounds, plain data, any bit pattern is valid.
        unsafe { addr_of!((*self.page).runs[i]).read_volatile() }
    }

    fn doorbell_answered(&self, i: usize) -> &AtomicU32 {
        assert!(i < DOORBELLS);
        // SAFETY: in bounds; only the address is taken.
        self.word(unsafe { addr_of_mut!((*self.page).doorbells[i].answered) })
    }

    /// The call at this doorbell, for the one who carries it out. None: nobody calls, or somebody has taken
    /// it already.
    pub fn take_call(&self, i: usize) -> Option<Doorbell> {
        let answered = self.doorbell_answered(i);
        answered.compare_exchange(0, DOORBELL_TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: in bounds, plain data, any bit pattern is valid.
        Some(unsafe { addr_of!((*self.page).doorbells[i]).read_volatile() })
    }

    /// Is somebody at work for this doorbell, who will fill its page?
    pub fn call_is_taken(&self, i: usize) -> bool {
        self.doorbell_answered(i).load(Ordering::Acquire) == DOORBELL_TAKEN
    }

    /// The call could not be carried out now: whoever comes next may take it.
    pub fn put_call_back(&self, i: usize) {
        self.doorbell_answered(i).store(0, Ordering::Release);
    }

    /// Before the doorbell's page is filled, by which its caller goes on.
    pub fn answer_call(&self, i: usize) {
        self.answer_with(i, DOORBELL_ANSWERED);
    }

    /// The call asks for what is not there.
    pub fn refuse_call(&self, i: usize) {
        self.answer_with(i, DOORBELL_IN_VAIN);
    }

    fn answer_with(&self, i: usize, answer: u32) {
        let answered = self.doorbell_answered(i);
        answered.store(answer, Ordering::SeqCst);
        futex::wake(answered, i32::MAX);
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: our mapping, of this length, not used after this.
        unsafe { libc::munmap(self.page.cast(), self.len) };
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_carried_out_once() {
        let (control, _fd) = ControlPage::new().unwrap();
        // Pages are zeros at first: a call of no length.
        assert_eq!(control.take_call(3).map(|call| call.len), Some(0));
        assert!(control.take_call(3).is_none() && control.call_is_taken(3));
        control.answer_call(3);
        assert!(control.take_call(3).is_none() && !control.call_is_taken(3));
    }
}
