//! Policies as they were published, one page at a time.
//!
//! Their work at a hit is done when the page is considered, if it is known by then to have been used: that is
//! all that a bit or a soft fault tells, here and in a kernel.
//!
//! ```text
//!   FIFO      who came first leaves; as good as any page where uses are independent
//!   CLOCK     the same, with another round for what was used
//!   SFIFO     segmented FIFO (Turner and Levy 1981): the last quarter's used pages go to the front
//!   2Q        (Johnson and Shasha 1994) in a short queue first; who comes back soon is kept longer
//!   S3-FIFO   (Yang and others 2023) the same with FIFO queues, a tenth, and a ghost as long as memory
//!   LIRS      (Jiang and Zhang 2002) pages by the distance of their last two uses
//! ```

use super::machine::{Page, Policy, Seen};
use memspill_vcpu::random::Random;
use std::collections::VecDeque;

/// FIFO, and CLOCK where uses are known: the two differ by the signal alone.
#[derive(Default)]
pub struct Clock(VecDeque<Page>);

impl Policy for Clock {
    fn came(&mut self, page: Page, _: &mut Seen) {
        self.0.push_back(page);
    }
    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>) {
        loop {
            let page = self.0.pop_front().expect("memory is full");
            if !seen.take_used(page) {
                return victims.push(page);
            }
            self.0.push_back(page);
        }
    }
}

/// Any page.
pub struct AnyPage {
    pages: Vec<Page>,
    random: Random,
}

impl AnyPage {
    pub fn new(seed: u64) -> AnyPage {
        AnyPage { pages: Vec::new(), random: Random::new(seed) }
    }
}

impl Policy for AnyPage {
    fn came(&mut self, page: Page, _: &mut Seen) {
        self.pages.push(page);
    }
    fn evict(&mut self, _: &mut Seen, victims: &mut Vec<Page>) {
        let at = self.random.below(self.pages.len() as u64);
        victims.push(self.pages.swap_remove(at as usize));
    }
}

/// Two queues: who is used while it is in the last quarter begins anew.
#[derive(Default)]
pub struct SegmentedFifo {
    first: VecDeque<Page>,
    last: VecDeque<Page>,
}

impl Policy for SegmentedFifo {
    fn came(&mut self, page: Page, seen: &mut Seen) {
        self.first.push_back(page);
        while self.first.len() > seen.memory as usize * 3 / 4 {
            let page = self.first.pop_front().expect("it is long");
            // An earlier use is not asked for.
            seen.take_used(page);
            self.last.push_back(page);
        }
    }
    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>) {
        loop {
            let Some(page) = self.last.pop_front().or_else(|| self.first.pop_front()) else {
                unreachable!("memory is full")
            };
            if !seen.take_used(page) {
                return victims.push(page);
            }
            self.first.push_back(page);
        }
    }
}

/// A short queue for what is new, and a long one for what has come back, or was used.
pub struct TwoQueues {
    short: VecDeque<Page>,
    long: VecDeque<Page>,
    /// The share of memory that the short one has, and how long it is remembered who left, in parts of 100.
    share: u32,
    ghost: u32,
    /// A page that is used in the short queue goes to the long one when it leaves (S3-FIFO).
    promotes: bool,
}

impl TwoQueues {
    pub fn two_q() -> TwoQueues {
        TwoQueues::of(25, 50, false)
    }
    pub fn s3_fifo() -> TwoQueues {
        TwoQueues::of(10, 100, true)
    }
    fn of(share: u32, ghost: u32, promotes: bool) -> TwoQueues {
        TwoQueues { short: VecDeque::new(), long: VecDeque::new(), share, ghost, promotes }
    }
}

impl Policy for TwoQueues {
    fn came(&mut self, page: Page, seen: &mut Seen) {
        let is_remembered = seen.distance(page).is_some_and(|d| d <= seen.memory / 100 * self.ghost);
        if is_remembered { &mut self.long } else { &mut self.short }.push_back(page);
    }
    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>) {
        loop {
            let is_short =
                self.short.len() > (seen.memory / 100 * self.share) as usize || self.long.is_empty();
            let queue = if is_short { &mut self.short } else { &mut self.long };
            let page = queue.pop_front().expect("memory is full");
            let was_used = seen.take_used(page);
            if !was_used || is_short && !self.promotes {
                return victims.push(page);
            }
            self.long.push_back(page);
        }
    }
}

/// LIRS, its stack as a queue of records of which the newest for a page counts.
#[derive(Default)]
pub struct Lirs {
    /// The stack, its bottom first, and the queue of resident pages that are not protected.
    stack: VecDeque<(Page, u32)>,
    queue: VecDeque<Page>,
    /// By page: its newest record (0: it is not in the stack), and if it is protected.
    newest: Vec<u32>,
    protected: Vec<bool>,
    protected_pages: u32,
    next_record: u32,
}

/// The part of memory that is left to pages that are not protected: the paper has a hundredth.
const UNPROTECTED_PART: u32 = 100;

impl Lirs {
    pub fn new(pages: u32) -> Lirs {
        let n = pages as usize;
        Lirs { newest: vec![0; n], protected: vec![false; n], ..Lirs::default() }
    }
    fn protected_max(seen: &Seen) -> u32 {
        seen.memory - (seen.memory / UNPROTECTED_PART).max(1)
    }
    fn push(&mut self, page: Page) {
        self.next_record += 1;
        self.newest[page as usize] = self.next_record;
        self.stack.push_back((page, self.next_record));
    }
    fn protect(&mut self, page: Page, seen: &mut Seen) {
        self.protected[page as usize] = true;
        self.protected_pages += 1;
        while self.protected_pages > Lirs::protected_max(seen) {
            self.give_up_bottom(seen);
        }
    }
    /// The protected page at the bottom is not protected any more, unless it was used; what is below the
    /// next one is forgotten.
    fn give_up_bottom(&mut self, seen: &mut Seen) {
        while let Some((page, record)) = self.stack.pop_front() {
            let at = page as usize;
            if self.newest[at] != record {
                continue;
            }
            if !self.protected[at] {
                self.newest[at] = 0;
            } else if seen.take_used(page) {
                self.push(page);
            } else {
                (self.newest[at], self.protected[at]) = (0, false);
                self.protected_pages -= 1;
                self.queue.push_back(page);
                return;
            }
        }
    }
    /// As a use of a page that is not protected.
    fn used(&mut self, page: Page, seen: &mut Seen) {
        let was_in_stack = self.newest[page as usize] > 0;
        self.push(page);
        if was_in_stack || self.protected_pages < Lirs::protected_max(seen) {
            self.protect(page, seen);
        } else {
            self.queue.push_back(page);
        }
    }
    /// Forget records that are not the newest of their pages, where they are many.
    fn sweep(&mut self) {
        if self.stack.len() > 4 * self.newest.len() {
            self.stack.retain(|(page, record)| self.newest[*page as usize] == *record);
        }
    }
}

impl Policy for Lirs {
    fn came(&mut self, page: Page, seen: &mut Seen) {
        self.used(page, seen);
        self.sweep();
    }
    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>) {
        loop {
            if self.queue.is_empty() {
                self.give_up_bottom(seen);
            }
            let Some(page) = self.queue.pop_front() else { continue };
            if !seen.take_used(page) {
                return victims.push(page);
            }
            self.used(page, seen);
        }
    }
}
