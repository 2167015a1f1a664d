//! The doorbells, by which a thread of the program calls the supervisor and waits for its answer.
//!
//! A thread claims a doorbell, writes what it wants next to it, and reads its page. The page is missing, so
//! the read is a fault that the supervisor sees. It does what is asked and fills the page, and the thread
//! goes on. Then the page is emptied for the next caller. Calls that may take long have half of the doorbells
//! and no more, so that others are never kept waiting by them.

use super::state::STATE;
use crate::common::protocol::{
    CALL_COLD, CALL_FILE_MAPPED, CALL_FILE_USED, CALL_PAGEOUT, CALL_WILLNEED, Control, DOORBELL_ANSWERED,
    DOORBELLS, Doorbell,
};
use crate::common::sync::{Ordering, fence};
use crate::machine::sys::{self, PAGE};

/// Calls that may take long have the doorbells from this one on.
const FOR_LONG: usize = DOORBELLS / 2;

/// Calls the pager, and returns when it has done its work. False: no doorbell was free, or nobody answered.
pub fn ring(control: *mut Control, addr: usize, len: usize, call: u32) -> bool {
    ring_about(control, 0, addr, len, call)
}

/// The same about memory of process `pid`; 0: of this one.
pub fn ring_about(control: *mut Control, pid: u32, addr: usize, len: usize, call: u32) -> bool {
    // The range is the kernel's answer or one that it has accepted, so rounding it up cannot overflow.
    let len = len.next_multiple_of(PAGE) as u64;
    ring_for(control, Doorbell { addr: addr as u64, len, call, answered: 0, pid, reserved: 0 })
}

/// Makes this call.
pub fn ring_for(control: *mut Control, doorbell: Doorbell) -> bool {
    /// A page that was present at the first try is emptied after it.
    const TRIES: u32 = 3;
    let is_long =
        matches!(doorbell.call, CALL_PAGEOUT | CALL_COLD | CALL_WILLNEED | CALL_FILE_USED | CALL_FILE_MAPPED);
    let Some(index) = claim_doorbell(if is_long { FOR_LONG } else { 0 }) else {
        return false;
    };
    let doorbells = STATE.doorbells.load(Ordering::Relaxed);
    let page = doorbells + index * PAGE;
    // SAFETY: `index` is below DOORBELLS.
    let entry = unsafe { (&raw mut (*control).doorbells).cast::<Doorbell>().add(index) };
    let (mut answered, mut emptied) = (false, false);
    for _ in 0..TRIES {
        // SAFETY: the claim makes the entry and the page this thread's alone. The pager reads the entry after
        // the fault and writes `answered` before it fills the page, hence volatile and the fences.
        unsafe {
            entry.write_volatile(doorbell);
            fence(Ordering::SeqCst);
            (page as *const u8).read_volatile();
            fence(Ordering::SeqCst);
            answered = (&raw const (*entry).answered).read_volatile() == DOORBELL_ANSWERED;
            emptied = sys::empty_own_pages(page, PAGE, true, (doorbells, DOORBELLS * PAGE)).is_ok();
        }
        if answered || !emptied {
            break;
        }
    }
    if !answered {
        // From now on a pager must not take a fault on the page for a call.
        // SAFETY: as above.
        unsafe { (&raw mut (*entry).answered).write_volatile(DOORBELL_ANSWERED) };
    }
    // A page that could not be emptied may be guarded, and must never be touched again: its doorbell stays
    // claimed.
    if emptied {
        STATE.rung.fetch_and(!(1 << index), Ordering::Release);
    }
    answered
}

/// Claims a doorbell for a call that may take long, which is made by the link.
pub fn claim_doorbell_for_long() -> Option<usize> {
    claim_doorbell(FOR_LONG)
}

pub fn give_doorbell_back(index: usize) {
    STATE.rung.fetch_and(!(1 << index), Ordering::Release);
}

/// Claims one of the doorbells from `first` on.
fn claim_doorbell(first: usize) -> Option<usize> {
    let mut rung = STATE.rung.load(Ordering::Relaxed);
    loop {
        let index = first + (rung >> first).trailing_ones() as usize;
        if index >= DOORBELLS {
            return None;
        }
        match STATE.rung.compare_exchange_weak(rung, rung | 1 << index, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => return Some(index),
            Err(now) => rung = now,
        }
    }
}
