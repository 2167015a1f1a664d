//! Deliveries: pages on their way into the process, and its threads that wait for them.
//!
//! ```text
//!   waiters      page, run of pages that are away, futex     written by a thread that faults
//!   deliveries   0..DELIVERIES   for threads that wait, DELIVERY_PAGES each
//!                ..ALL           unasked, a page each
//!                FREE ─ here ─▶ FULL ─ a thread of the process installs it ─▶ FREE
//! ```

use super::AgentPort;
use crate::process::futex;
use memspill_common::link::{
    BYTES, DELIVERIES, DELIVERIES_ALL, DELIVERY_PAGES, Delivery, FREE, FULL, LOST, RUN_CLOSED, WAITERS,
    WRITABLE, ZERO_PAGES, ZEROS,
};
use memspill_common::rules::{Rule, holds};
use memspill_common::sync::Ordering;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::userfaultfd::{Fill, Stop};
use std::ops::Range;

/// The content of pages that are delivered.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    Bytes(&'a [u8]),
    Lost,
    Zeros,
    /// They are there, and protected no more.
    Writable,
}

impl AgentPort {
    /// Brings a page that no thread waits for, as far as is known.
    pub fn deliver_unasked(&self, addr: u64, page: &[u8]) -> Fill {
        assert_eq!(page.len(), PAGE_SIZE, "one at a time");
        let delivering = self.delivering.lock().expect("delivering");
        if self.room_for_unasked() == 0 {
            drop(delivering);
            return self.deliver(addr, 1, Content::Bytes(page));
        }
        if !self.deliver_piece(addr, 1, Content::Bytes(page), DELIVERIES..DELIVERIES_ALL) {
            return Fill { bytes: 0, stop: Stop::Again };
        }
        // A thread may have asked meanwhile.
        self.wake(addr, 1);
        Fill { bytes: PAGE_SIZE as u64, stop: Stop::Done }
    }

    /// Brings pages; their waiters are woken.
    pub fn deliver(&self, addr: u64, pages: usize, content: Content<'_>) -> Fill {
        let _delivering = self.delivering.lock().expect("delivering");
        let mut done = 0;
        while done < pages {
            let has_bytes = !matches!(content, Content::Zeros | Content::Writable);
            let most = if has_bytes { DELIVERY_PAGES } else { ZERO_PAGES };
            let count = (pages - done).min(most);
            let piece = match content {
                Content::Bytes(bytes) => Content::Bytes(&bytes[done * PAGE_SIZE..(done + count) * PAGE_SIZE]),
                without => without,
            };
            let at = addr + (done * PAGE_SIZE) as u64;
            if !self.deliver_piece(at, count, piece, 0..DELIVERIES) {
                // Nobody else may come who installs what is there.
                self.wake_if(|page| page != 0);
                return Fill { bytes: (done * PAGE_SIZE) as u64, stop: Stop::Again };
            }
            done += count;
        }
        self.wake(addr, pages);
        Fill { bytes: (pages * PAGE_SIZE) as u64, stop: Stop::Done }
    }

    /// Puts pages into one of these places, which have room for them.
    fn deliver_piece(&self, addr: u64, pages: usize, content: Content<'_>, mut places: Range<usize>) -> bool {
        let Some(index) = places.find(|index| self.state_of(*index) == FREE) else { return false };
        if let Content::Bytes(bytes) = content {
            self.link.set_bytes(index, bytes);
        }
        let content = match content {
            Content::Bytes(_) => BYTES,
            Content::Lost => LOST,
            Content::Zeros => ZEROS,
            Content::Writable => WRITABLE,
        };
        self.link.set_delivery(index, Delivery { state: FREE, pages: pages as u32, addr, content, done: 0 });
        // A change would not know of it.
        if holds(Rule::DeliverLocked) && !self.link.control.lock() {
            return false;
        }
        let may_deliver = !self.is_changing() || !holds(Rule::DeliverUnchanged);
        if may_deliver {
            self.link.delivery_state(index).store(FULL, Ordering::SeqCst);
        }
        if holds(Rule::DeliverLocked) {
            self.link.control.unlock();
        }
        may_deliver
    }

    fn state_of(&self, delivery: usize) -> u32 {
        self.link.delivery_state(delivery).load(Ordering::SeqCst)
    }

    /// There is room for so many pages that no thread waits for.
    pub fn room_for_unasked(&self) -> u64 {
        (DELIVERIES..DELIVERIES_ALL).filter(|index| self.state_of(*index) == FREE).count() as u64
    }

    /// Does a thread wait for this page? Then how many pages from it on are away, as the agent says.
    pub fn run_waited_for(&self, addr: u64) -> Option<usize> {
        let most = |run| if run & RUN_CLOSED != 0 { ZERO_PAGES } else { DELIVERY_PAGES };
        self.runs_waited_for(addr).next().map(|run| (run & !RUN_CLOSED).clamp(1, most(run)))
    }

    /// Does a thread wait for this page, in which nothing ever was, as the agent says? A thread that was
    /// woken long ago, and has not run since, may say so of what the page was then; it does not count where
    /// the page's bytes are on their way.
    pub fn is_waited_for_as_new(&self, addr: u64) -> bool {
        self.runs_waited_for(addr).any(|run| run & RUN_CLOSED != 0) && !self.is_delivered(addr)
    }

    pub fn is_all_installed(&self) -> bool {
        (0..DELIVERIES_ALL).all(|index| self.state_of(index) == FREE)
    }

    fn is_delivered(&self, addr: u64) -> bool {
        (0..DELIVERIES_ALL).filter(|index| self.state_of(*index) != FREE).any(|index| {
            let delivery = self.link.delivery(index);
            addr.checked_sub(delivery.addr)
                .is_some_and(|offset| offset / (PAGE_SIZE as u64) < delivery.pages.into())
        })
    }

    fn runs_waited_for(&self, addr: u64) -> impl Iterator<Item = usize> {
        let is_it = move |index: &usize| self.link.waiter_page(*index).load(Ordering::SeqCst) == addr;
        (0..WAITERS).filter(is_it).map(|index| self.link.waiter_run(index).load(Ordering::SeqCst) as usize)
    }

    /// Threads that wait for one of these pages look again.
    pub fn wake(&self, addr: u64, pages: usize) {
        let end = addr + (pages * PAGE_SIZE) as u64;
        self.wake_if(|page| (addr..end).contains(&page));
    }

    fn wake_if(&self, is_meant: impl Fn(u64) -> bool) {
        // Mostly nobody does, and all pages that come are told of here, those too that threads have brought.
        if self.link.waiting().load(Ordering::SeqCst) == 0 {
            return;
        }
        for index in 0..WAITERS {
            if is_meant(self.link.waiter_page(index).load(Ordering::SeqCst)) && holds(Rule::WakeWaiters) {
                let woken = self.link.waiter_woken(index);
                woken.fetch_add(1, Ordering::SeqCst);
                futex::wake(woken, i32::MAX);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::testing::{AT, new_port, write};
    use super::*;
    use memspill_common::link::{END, UNMAP};
    use memspill_uffd::userfaultfd::Event;

    #[test]
    fn nothing_is_delivered_before_all_of_a_change_was_read() {
        let (port, page, mut events) = (new_port(), vec![7; PAGE_SIZE], Vec::new());
        port.link.changes().fetch_add(1, Ordering::SeqCst);
        write(&port, UNMAP, AT, AT + PAGE_SIZE as u64);
        assert_eq!(port.read(&mut events).unwrap(), 1);
        assert!(matches!(events[..], [Event::Unmap { start: AT, .. }]));
        assert_eq!(port.deliver(AT, 1, Content::Bytes(&page)).stop, Stop::Again);
        write(&port, END, 0, 0);
        assert_eq!(port.read(&mut events).unwrap(), 1);
        assert_eq!((port.deliver(AT, 1, Content::Bytes(&page)).stop, events.len()), (Stop::Done, 1));
        assert_eq!(port.state_of(0), FULL);
    }

    #[test]
    fn what_finds_no_place_is_for_later() {
        let (port, pages) = (new_port(), vec![7; PAGE_SIZE * DELIVERY_PAGES * (DELIVERIES + 1)]);
        let fill = port.deliver(AT, DELIVERY_PAGES * (DELIVERIES + 1), Content::Bytes(&pages));
        assert_eq!(fill.stop, Stop::Again);
        assert_eq!(fill.bytes as usize, PAGE_SIZE * DELIVERY_PAGES * DELIVERIES);
    }

    #[test]
    fn pages_that_nobody_has_asked_for_leave_the_places_of_others() {
        let (port, page) = (new_port(), vec![7; PAGE_SIZE]);
        for n in 0..port.room_for_unasked() {
            assert_eq!(port.deliver_unasked(AT + n * PAGE_SIZE as u64, &page).stop, Stop::Done);
        }
        assert_eq!(port.room_for_unasked(), 0);
        let pages = vec![7; PAGE_SIZE * DELIVERY_PAGES * DELIVERIES];
        let fill = port.deliver(AT << 1, DELIVERY_PAGES * DELIVERIES, Content::Bytes(&pages));
        assert_eq!(fill.stop, Stop::Done);
        port.link.delivery_state(DELIVERIES).store(FREE, Ordering::SeqCst);
        port.link.changes().fetch_add(1, Ordering::SeqCst);
        assert_eq!(port.deliver_unasked(AT, &page).stop, Stop::Again, "a change is under way");
    }

    /// A thread that was woken and has not run since says of the page what it was before it was written.
    #[test]
    fn a_page_whose_bytes_are_on_their_way_is_not_new() {
        let (port, page) = (new_port(), vec![7; PAGE_SIZE]);
        assert!(!port.is_waited_for_as_new(AT));
        port.link.waiter_run(3).store((4 | RUN_CLOSED) as u32, Ordering::SeqCst);
        port.link.waiter_page(3).store(AT, Ordering::SeqCst);
        port.deliver_unasked(AT + PAGE_SIZE as u64, &page);
        assert!(port.is_waited_for_as_new(AT));
        port.deliver_unasked(AT, &page);
        assert!(!port.is_waited_for_as_new(AT));
        port.link.delivery_state(DELIVERIES + 1).store(FREE, Ordering::SeqCst);
        assert!(port.is_waited_for_as_new(AT));
    }
}
