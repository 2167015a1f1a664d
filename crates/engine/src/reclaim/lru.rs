//! A queue of resident pages: records, oldest first, with lazy deletion.
//!
//! ```text
//!   record: 63      28 27  16 15       0       push ─▶ [ young … old ] ─▶ pop
//!          ┌──────────┬──────┬──────────┐
//!          │ vpn (36) │ 0    │ stamp    │
//!          └──────────┴──────┴──────────┘
//! ```
//!
//! A record is live while its page is resident with the same stamp; the reader of the queue checks that under
//! the chunk's lock. So a page that is unmapped, moved or evicted needs no removal, and 8 bytes a page are
//! enough (linked lists would need 8 more and a lock taken by every fault). Stale records are dropped when
//! they come to the end, and swept when they outnumber the live ones.
//!
//! The queue is in segments of a page each. (One growing array took up to twice the size of its records,
//! which is 8 bytes more for each resident page, and a fault that made it grow waited while megabytes were
//! copied.)
//!
//! What it does not do: know about hotness; a page with heat left is pushed again by the caller. The kinds of
//! queues are in queues.rs.

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

/// Records in a segment of the queue: 4 KiB.
const SEGMENT: usize = 512;

#[derive(Default)]
pub struct Lru {
    /// No segment is empty. All but the first and the last one are full; records are added at the outer ends
    /// of those two, and removed from the first.
    segments: VecDeque<VecDeque<Record>>,
    len: usize,
}

impl Lru {
    pub fn push(&mut self, record: Record) {
        match self.segments.back_mut().filter(|segment| segment.len() < SEGMENT) {
            Some(segment) => segment.push_back(record),
            None => self.segments.push_back(segment_of(record)),
        }
        self.len += 1;
    }
    /// To the old end: it will be the next victim.
    pub fn push_oldest(&mut self, record: Record) {
        match self.segments.front_mut().filter(|segment| segment.len() < SEGMENT) {
            Some(segment) => segment.push_front(record),
            None => self.segments.push_front(segment_of(record)),
        }
        self.len += 1;
    }
    pub fn pop(&mut self) -> Option<Record> {
        let segment = self.segments.front_mut()?;
        let record = segment.pop_front();
        if segment.is_empty() {
            self.segments.pop_front();
        }
        self.len -= 1;
        record
    }
    /// Any record, as `draw` has it: of any segment, all of which is given before the next one is begun.
    pub fn pop_any(&mut self, draw: u64) -> Option<Record> {
        let full = self.segments.len().saturating_sub(1) as u64;
        if full > 1 && self.segments[0].len() == SEGMENT {
            self.segments.swap(0, (draw % full) as usize);
        }
        let segment = self.segments.front_mut()?;
        let record = segment.swap_remove_front((draw >> 32) as usize % segment.len());
        if segment.is_empty() {
            self.segments.pop_front();
        }
        self.len -= 1;
        record
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Keep only what `live` says; called when stale records are the majority.
    pub fn sweep(&mut self, live: impl Fn(Record) -> bool) {
        let mut kept = Lru::default();
        while let Some(record) = self.pop() {
            if live(record) {
                kept.push(record);
            }
        }
        *self = kept;
    }
    /// Put older records back before those that came meanwhile.
    pub fn put_before(&mut self, mut older: Lru) {
        while let Some(record) = self.pop() {
            older.push(record);
        }
        *self = older;
    }
    pub fn bytes(&self) -> u64 {
        let segments = self.segments.len() * SEGMENT * size_of::<Record>();
        (segments + self.segments.capacity() * size_of::<VecDeque<Record>>()) as u64
    }
}

fn segment_of(record: Record) -> VecDeque<Record> {
    let mut segment = VecDeque::with_capacity(SEGMENT);
    segment.push_back(record);
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_queue_of_bounded_size() {
        let mut records = (0..).map(|n| Record::new(Vpn(n), n));
        let (mut lru, mut model) = (Lru::default(), VecDeque::new());
        let mut draw = 1usize;
        for _ in 0..3000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, n) = (draw >> 60, (draw >> 40) % (3 * SEGMENT));
            match what {
                0..5 => records.by_ref().take(n).for_each(|r| {
                    lru.push(r);
                    model.push_back(r);
                }),
                5..7 => records.by_ref().take(n).for_each(|r| {
                    lru.push_oldest(r);
                    model.push_front(r);
                }),
                7..14 => (0..n).for_each(|_| assert_eq!(lru.pop(), model.pop_front())),
                14 => {
                    lru.sweep(|r| r.vpn().0 % 3 == 0);
                    model.retain(|r| r.vpn().0 % 3 == 0);
                }
                _ => {
                    let (mut older, from): (Lru, Vec<Record>) =
                        (Lru::default(), records.by_ref().take(n).collect());
                    from.iter().for_each(|r| older.push(*r));
                    lru.put_before(older);
                    from.into_iter().rev().for_each(|r| model.push_front(r));
                }
            }
            assert_eq!((lru.len(), lru.is_empty()), (model.len(), model.is_empty()));
            // Two segments may be partly used, and the queue of segments has room for more of them.
            let bound =
                8 * (model.len() + 2 * SEGMENT) + size_of::<VecDeque<Record>>() * (16 + model.len() / 128);
            assert!(lru.bytes() <= bound as u64, "{} bytes for {} records", lru.bytes(), model.len());
        }
        while let Some(record) = lru.pop() {
            assert_eq!(Some(record), model.pop_front());
        }
        assert!(model.is_empty());
    }

    #[test]
    fn any_record_is_given_once_and_none_is_kept_for_long() {
        const RECORDS: u64 = 20 * SEGMENT as u64;
        let mut lru = Lru::default();
        (0..RECORDS).for_each(|n| lru.push(Record::new(Vpn(n), 0)));
        let mut draw = 1u64;
        let mut next = || {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            draw
        };
        // As in use: one comes for each that goes.
        let mut given = Vec::new();
        for n in RECORDS..10 * RECORDS {
            given.push(lru.pop_any(next()).expect("there are records").vpn().0);
            lru.push(Record::new(Vpn(n), 0));
            assert!(lru.bytes() < 8 * (RECORDS + 3 * SEGMENT as u64) + 2048);
        }
        let ages: Vec<u64> = given.iter().enumerate().map(|(i, vpn)| RECORDS + i as u64 - vpn).collect();
        let young = ages[RECORDS as usize..].iter().filter(|age| **age < RECORDS).count();
        // By arrival none would be.
        assert!(young > ages.len() / 3, "{young} of {}", ages.len());
        while let Some(record) = lru.pop_any(next()) {
            given.push(record.vpn().0);
        }
        given.sort_unstable();
        assert!(given.into_iter().eq(0..10 * RECORDS));
    }
}
