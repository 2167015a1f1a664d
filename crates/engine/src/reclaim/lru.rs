//! The LRU of one address space: a queue of records, oldest first, with lazy deletion.
//!
//! ```text
//!   record: 63      28 27  16 15       0       push ─▶ [ young … old ] ─▶ pop
//!          ┌──────────┬──────┬──────────┐
//!          │ vpn (36) │ 0    │ stamp    │
//!          └──────────┴──────┴──────────┘
//! ```
//!
//! A record is live while its page is resident with the same stamp; the reader of the queue checks that under the chunk's
//! lock. So a page that is unmapped, moved or evicted needs no removal, and 8 bytes a page are enough (linked lists would
//! need 8 more and a lock taken by every fault). Stale records are dropped when they come to the end, and swept when they
//! outnumber the live ones.
//!
//! What it does not do: know about hotness; a page with heat left is pushed again by the caller.

use crate::units::Vpn;
use crate::word::STAMP_MASK;
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record(u64);

const VPN_SHIFT: u32 = 28;
const _: () = assert!(STAMP_MASK < 1 << VPN_SHIFT);

impl Record {
    pub fn new(vpn: Vpn, stamp: u64) -> Record {
        debug_assert!(vpn.0 < 1 << 36);
        Record(vpn.0 << VPN_SHIFT | stamp & STAMP_MASK)
    }
    pub fn vpn(self) -> Vpn {
        Vpn(self.0 >> VPN_SHIFT)
    }
    pub fn stamp(self) -> u64 {
        self.0 & STAMP_MASK
    }
}

#[derive(Default)]
pub struct Lru {
    queue: VecDeque<Record>,
}

impl Lru {
    pub fn push(&mut self, record: Record) {
        self.queue.push_back(record);
    }
    /// To the old end: it will be the next victim.
    pub fn push_oldest(&mut self, record: Record) {
        self.queue.push_front(record);
    }
    pub fn pop(&mut self) -> Option<Record> {
        self.queue.pop_front()
    }
    pub fn len(&self) -> usize {
        self.queue.len()
    }
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// Keep only what `live` says; called when stale records are the majority.
    pub fn sweep(&mut self, live: impl Fn(Record) -> bool) {
        self.queue.retain(|r| live(*r));
        self.queue.shrink_to_fit();
    }
    /// Put older records back before those that came meanwhile.
    pub fn put_before(&mut self, older: Lru) {
        let younger = std::mem::replace(&mut self.queue, older.queue);
        self.queue.extend(younger);
    }
    pub fn bytes(&self) -> u64 {
        (self.queue.capacity() * size_of::<Record>()) as u64
    }
}
