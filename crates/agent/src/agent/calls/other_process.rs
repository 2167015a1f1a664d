//! process_vm_readv and process_vm_writev of another process: a page that is away there makes no fault that
//! anybody hears of, so the kernel says EFAULT, or stops before it. The supervisor is asked to bring it, and
//! the rest of the call is made again.
//!
//! ```text
//!   EFAULT, or a part ─▶ doorbell (CALL_BRING), told as a fault on its page by the link
//!                        ─▶ the pages are read, delivered to the other process, and installed by its evictor
//!   answered ─▶ once more, from where it stopped
//! ```
//!
//! Invariants: the kernel has been asked first, and has let the caller look there. How often a page is asked
//! for is bounded, and so is the time that an answer is awaited: after that the kernel's own answer counts.
//! The same is true if none of the pages is away, or the other process is not managed or stands still.
//!
//! It runs in the dispatch's handler, with signals blocked. `/proc/PID/mem` and ptrace come here by way of
//! `proc_mem.rs`.

use crate::common::link::{DELIVERY_PAGES, FAULT};
use crate::common::protocol::{CALL_BRING, DOORBELL_ANSWERED, DOORBELL_IN_VAIN, Doorbell};
use crate::common::sync::{AtomicU32, Ordering, fence};
use crate::machine::gadget;
use crate::machine::sys::{EFAULT, PAGE, Result, nr};
use crate::pages::channel::{self, control, word32};
use crate::supervisor::doorbell::{claim_doorbell_for_long, give_doorbell_back};
use crate::supervisor::state::STATE;
use crate::thread::wait;

/// How often pages are asked for in a row, none of which can be used then: what was brought may be away
/// again, and what is not there at all cannot be brought.
const ASKED_MAX: u32 = 20;
/// How often the answer in a row may be that nothing is away. A page may have come after the call, and it may
/// have left again before the next one.
const IN_VAIN_MAX: u32 = 3;
/// How long an answer is awaited, in steps of so many ms. It comes within some ms, where there is room.
const ANSWER_STEP_MS: u32 = 100;
const ANSWER_STEPS: u32 = 50;
/// How long to wait for a doorbell.
const DOORBELL_MS: u32 = 1000;
/// The kernel's UIO_MAXIOV.
const VECTORS_MAX: usize = 1024;

/// Is this a call that the agent makes, for another process?
pub fn concerns(number: usize, args: &[usize; 6]) -> bool {
    matches!(number, nr::PROCESS_VM_READV | nr::PROCESS_VM_WRITEV)
        && channel::is_there()
        && args[5] == 0
        && args[0] as u32 as usize != own_process()
}

/// Makes the call. The caller's own memory that it uses is there, and stays.
pub fn make(number: usize, args: &[usize; 6]) -> Result<usize> {
    let [process, local, local_count, remote, remote_count, _] = *args;
    // SAFETY: the program's own call, on memory that is there.
    let result = unsafe { gadget::call(number, *args) };
    if !matches!(result, Ok(_) | Err(EFAULT)) {
        return result;
    }
    let mut left = result.unwrap_or(0);
    let mut done = 0;
    let (mut here, mut there) = (List::new(local, local_count), List::new(remote, remote_count));
    while let (Some((to, to_len)), Some((from, from_len))) = (here.rest(), there.rest()) {
        let len = to_len.min(from_len);
        let copied = left.min(len);
        left -= copied;
        let rest = Part { number, process, at: to.wrapping_add(copied), addr: from.wrapping_add(copied) };
        let bytes = copied + if copied < len { rest.all(len - copied) } else { 0 };
        done += bytes;
        here.done += bytes;
        there.done += bytes;
        if bytes < len {
            break;
        }
    }
    if done == 0 { result } else { Ok(done) }
}

/// A list of buffers that is gone through.
struct List {
    at: usize,
    count: usize,
    index: usize,
    done: usize,
}

impl List {
    fn new(at: usize, count: usize) -> List {
        List { at, count: count.min(VECTORS_MAX), index: 0, done: 0 }
    }

    /// The address and length of the first buffer of which something is left.
    fn rest(&mut self) -> Option<(usize, usize)> {
        while self.index < self.count {
            let place = self.at.wrapping_add(self.index * size_of::<[usize; 2]>());
            let [base, len] = gadget::read::<[usize; 2]>(place)?;
            if self.done < len {
                return Some((base.wrapping_add(self.done), len - self.done));
            }
            self.done = 0;
            self.index += 1;
        }
        None
    }
}

/// One buffer here, and one there.
struct Part {
    number: usize,
    process: usize,
    at: usize,
    addr: usize,
}

impl Part {
    /// Reads or writes so many bytes, and has pages brought that are away. Returns how many bytes it were.
    fn all(&self, len: usize) -> usize {
        let (mut done, mut asked, mut in_vain) = (0, 0, 0);
        while done < len {
            match self.call(done, len - done) {
                Ok(bytes) if bytes > 0 => {
                    done += bytes;
                    (asked, in_vain) = (0, 0);
                }
                Ok(_) | Err(EFAULT) => {
                    if asked >= ASKED_MAX || in_vain >= IN_VAIN_MAX {
                        break;
                    }
                    match self.ask(done, len - done) {
                        Some(DOORBELL_ANSWERED) => in_vain = 0,
                        Some(_) => in_vain += 1,
                        None => break,
                    }
                    // A page that is on its way, in or out, cannot be brought before it has come to its end.
                    if asked > 0 && in_vain == 0 {
                        wait::pause(asked);
                    }
                    asked += 1;
                }
                Err(_) => break,
            }
        }
        done
    }

    fn call(&self, from: usize, len: usize) -> Result<usize> {
        let here = [self.at.wrapping_add(from), len];
        let there = [self.addr.wrapping_add(from), len];
        let args = [self.process, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
        // SAFETY: a part of the program's own call.
        unsafe { gadget::call(self.number, args) }
    }

    /// Has the supervisor bring the first pages of what is left. Its answer; None: it gives none.
    fn ask(&self, from: usize, len: usize) -> Option<u32> {
        let addr = self.addr.wrapping_add(from);
        let start = addr & !(PAGE - 1);
        let bytes = (addr - start).saturating_add(len).min(DELIVERY_PAGES * PAGE).next_multiple_of(PAGE);
        ring(Doorbell {
            addr: start as u64,
            len: bytes as u64,
            call: CALL_BRING,
            answered: 0,
            pid: self.process as u32,
            reserved: 0,
        })
    }
}

fn own_process() -> usize {
    // SAFETY: no memory involved.
    unsafe { gadget::call(nr::GETPID, [0; 6]) }.unwrap_or(0)
}

/// Calls the supervisor, and waits for its answer.
fn ring(doorbell: Doorbell) -> Option<u32> {
    let index = claim()?;
    // SAFETY: the claim makes the entry this thread's alone. The supervisor reads it when it has read the
    // message, and writes `answered`, which is accessed as an atomic only.
    let answered: &AtomicU32 = unsafe {
        let entry = (&raw mut (*control()).doorbells).cast::<Doorbell>().add(index);
        entry.write_volatile(doorbell);
        fence(Ordering::SeqCst);
        word32(&raw mut (*entry).answered)
    };
    let page = STATE.doorbells.load(Ordering::Relaxed) + index * PAGE;
    channel::push(FAULT, page, page + PAGE, 0);
    for _ in 0..ANSWER_STEPS {
        let seen = answered.load(Ordering::SeqCst);
        if matches!(seen, DOORBELL_ANSWERED | DOORBELL_IN_VAIN) {
            break;
        }
        wait::sleep_for(answered, seen, ANSWER_STEP_MS);
    }
    // Nobody is to take it up from here on. If somebody has, and does not end, the doorbell stays claimed.
    match answered.compare_exchange(0, DOORBELL_ANSWERED, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            give_doorbell_back(index);
            None
        }
        Err(answer @ (DOORBELL_ANSWERED | DOORBELL_IN_VAIN)) => {
            give_doorbell_back(index);
            Some(answer)
        }
        Err(_) => None,
    }
}

fn claim() -> Option<usize> {
    for _ in 0..DOORBELL_MS {
        if let Some(index) = claim_doorbell_for_long() {
            return Some(index);
        }
        wait::pause(1);
    }
    None
}
