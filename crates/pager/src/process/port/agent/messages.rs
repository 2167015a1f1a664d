//! The ring of messages that the agent writes: faults, and changes of the address space.
//!
//! ```text
//!   changes ≠ changes_read   a change is under way, or not all of it has been read: nothing is delivered,
//!                            nothing is taken out
//!   END                      the last message of a change
//! ```

use super::AgentPort;
use super::link::silence;
use crate::process::control::Forbidden;
use crate::process::futex;
use crate::times::{CHANGE_STEP, CHANGES_HELD};
use memspill_common::link::{END, FAULT, Message, READ_FAULT, REMAP, REMOVE, RING, UNMAP, WRITE};
use memspill_common::rules::{Rule, holds};
use memspill_common::sync::Ordering;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::userfaultfd::Event;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// While this lives the process begins no further change of its mappings.
pub struct ChangesHeld<'a>(&'a AgentPort);

impl Drop for ChangesHeld<'_> {
    fn drop(&mut self) {
        self.0.link.held().store(0, Ordering::SeqCst);
        self.0.let_write();
    }
}

impl AgentPort {
    /// A batch has been taken out, as far as changes let it.
    pub fn note_batch(&self, has_met_change: bool) {
        self.has_met_change.store(has_met_change, Ordering::Relaxed);
    }

    /// Where the last batch met a change, keeps the next one from meeting any: no more changes begin, and
    /// others read and follow those that have begun, before this returns. The caller does not hold the batch
    /// lock.
    ///
    /// A change that was about to begin may still pass. Without this a process that changes its mappings all
    /// the time (three threads of `memspill-workload mutate`) would keep nearly all of its memory: of 64
    /// pages that were to leave, 50 stayed.
    pub fn hold_changes(&self) -> Option<ChangesHeld<'_>> {
        if !self.has_met_change.load(Ordering::Relaxed) {
            return None;
        }
        self.link.held().store(1, Ordering::SeqCst);
        let held = ChangesHeld(self);
        let begun = Instant::now();
        while (self.is_changing() || self.link.control.is_forbidden(Forbidden::Event))
            && begun.elapsed() < CHANGES_HELD
        {
            std::thread::sleep(CHANGE_STEP);
        }
        Some(held)
    }

    pub fn is_changing(&self) -> bool {
        self.link.changes().load(Ordering::SeqCst) != self.link.changes_read().load(Ordering::SeqCst)
    }

    /// Are there messages that nobody has read, whether the bell says so or not?
    pub fn has_messages(&self) -> bool {
        self.link.head().load(Ordering::SeqCst) != self.link.tail().load(Ordering::SeqCst)
    }

    /// Reads all messages.
    ///
    /// The bell is silenced first: an agent that writes a message later rings again. It is never rung from
    /// here, because the other side can make that wait.
    pub fn read(&self, out: &mut Vec<Event>) -> io::Result<usize> {
        silence(self.bell.as_fd());
        self.read_some(out, RING)
    }

    /// Reads all messages, if they are faults only, while pages may be taken out. None: changes may be among
    /// them.
    ///
    /// A change is counted before its first message is written. If none is under way here, none is among the
    /// messages that were there before.
    pub fn read_faults(&self, out: &mut Vec<Event>) -> io::Result<Option<usize>> {
        silence(self.bell.as_fd());
        let (head, tail) = (self.link.head(), self.link.tail());
        let count = head.load(Ordering::SeqCst).wrapping_sub(tail.load(Ordering::SeqCst));
        if self.is_changing() || count > RING as u64 {
            return Ok(None);
        }
        let read = self.read_some(out, count as usize)?;
        if out.iter().any(|message| !matches!(message, Event::Fault { .. })) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(read))
    }

    /// Reads at most `most` messages. The bell stays as it is.
    pub fn read_some(&self, out: &mut Vec<Event>, most: usize) -> io::Result<usize> {
        let tail = self.link.tail();
        let (end, mut at) = (self.link.head().load(Ordering::SeqCst), tail.load(Ordering::SeqCst));
        if end.wrapping_sub(at) > RING as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut count = 0;
        while at != end && count < most {
            let message = self.link.message(at);
            at += 1;
            count += 1;
            tail.store(at, Ordering::SeqCst);
            if message.kind == END {
                self.link.changes_read().fetch_add(1, Ordering::SeqCst);
                continue;
            }
            out.push(event_of(&message)?);
        }
        if count > 0 {
            self.let_write();
        }
        Ok(count)
    }

    /// Lets agents' threads go on that wait for room in the ring, or to begin a change.
    pub fn let_write(&self) {
        if self.link.waits_for_room().load(Ordering::SeqCst) != 0 && holds(Rule::LetWrite) {
            self.link.room().fetch_add(1, Ordering::SeqCst);
            futex::wake(self.link.room(), i32::MAX);
        }
    }
}

/// An error: its numbers cannot be true.
fn event_of(message: &Message) -> io::Result<Event> {
    let (start, end) = (message.addr, message.end);
    let in_pages = [start, end, message.to].iter().all(|at| at % PAGE_SIZE as u64 == 0);
    if !in_pages || start >= end || end > crate::USER_END {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(match message.kind {
        kind @ (FAULT | READ_FAULT) => {
            Event::Fault { addr: start, write: kind == FAULT, protected: false, tid: message.tid }
        }
        WRITE => Event::Fault { addr: start, write: true, protected: true, tid: message.tid },
        UNMAP => Event::Unmap { start, end },
        REMOVE => Event::Remove { start, end },
        REMAP if message.to <= crate::USER_END - (end - start) => {
            Event::Remap { from: start, to: message.to, len: end - start }
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::testing::{AT, new_port, write};
    use super::*;

    #[test]
    fn faults_are_read_by_themselves_where_nothing_changes() {
        let (port, mut events, end) = (new_port(), Vec::new(), AT + PAGE_SIZE as u64);
        write(&port, FAULT, AT, end);
        assert_eq!(port.read_faults(&mut events).unwrap(), Some(1));
        port.link.changes().fetch_add(1, Ordering::SeqCst);
        write(&port, FAULT, AT, end);
        assert_eq!(port.read_faults(&mut events).unwrap(), None);
        write(&port, UNMAP, AT, end);
        write(&port, END, 0, 0);
        assert_eq!(port.read_faults(&mut events).unwrap(), None);
        assert_eq!(port.read(&mut events).unwrap(), 3);
        events.clear();
        assert_eq!(port.read_faults(&mut events).unwrap(), Some(0));
        // A change that was not announced.
        write(&port, UNMAP, AT, end);
        assert!(port.read_faults(&mut Vec::new()).is_err());
    }

    #[test]
    fn numbers_that_cannot_be_true_are_refused() {
        let page = PAGE_SIZE as u64;
        for (kind, addr, end) in
            [(UNMAP, AT + 1, AT + page), (FAULT, AT, AT), (REMOVE, AT, !(page - 1)), (9, AT, AT + page)]
        {
            let port = new_port();
            write(&port, kind, addr, end);
            assert!(port.read(&mut Vec::new()).is_err(), "{kind} {addr:#x} {end:#x}");
        }
        let port = new_port();
        port.link.head().store(RING as u64 + 1, Ordering::SeqCst);
        assert!(port.read(&mut Vec::new()).is_err());
    }
}
