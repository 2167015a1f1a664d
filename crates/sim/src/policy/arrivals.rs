//! The engine's reclaim (crates/engine/src/reclaim), and changes of it: pages in the order in which they
//! came, another round for who came back soon, and blocks of cold pages that leave together.
//!
//! ```text
//!   arrival   all are pushed to main, and its oldest leaves
//!   any       the same, but any page of main leaves
//!   bimodal   who comes back not very soon is on trial, but for one block in 32
//!                trial (a 32nd to an 8th of memory) ─▶ its oldest leave, else any page of main
//!   duel      one block in 64 (in 24 where memory is small) always by arrival, one always bimodal, each of
//!             the two with its part of memory; all others as the one of which fewer pages came back of late
//! ```
//!
//! What it does not do: batches, heat of more than one round, folios above 64 KiB.

use super::machine::{BLOCK_PAGES, Page, Policy, Seen};
use memspill_vcpu::random::Random;
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Arrival,
    Any,
    Bimodal,
    Duel,
}

/// The part of memory that is for pages on trial, in parts of `TRIAL_UNIT`: at first, the least and the most.
const TRIAL_UNIT: u32 = 1 << 20;
const TRIAL_AT_FIRST: u32 = TRIAL_UNIT / 16;
const TRIAL_LEAST: u32 = TRIAL_UNIT / 32;
const TRIAL_MOST: u32 = TRIAL_UNIT / 8;
/// Back before so many left, in parts of memory: a longer trial would have kept it, and it becomes longer by
/// so much; and shorter with each other page that comes back.
const MISSED_PART: u32 = 16;
const TRIAL_LONGER: u32 = 8 * TRIAL_SHORTER;
const TRIAL_SHORTER: u32 = 8;
/// Back before so many left, in parts of memory: not on trial.
const NEAR_PART: u32 = 8;
/// One block in so many comes to stay although others are on trial; which, changes after so many arrivals.
const STAYS_ONE_IN: u64 = 32;
const STAYS_FOR: u32 = 4096;
/// One block of this many in a row leads by arrival, and one as bimodal; the second number is for a small
/// memory. (In the engine: where a budget is small, of which the pool has its part.)
const LEADS_ONE_IN: u32 = 64;
const LEADS_ONE_IN_OF_SMALL: u32 = 24;
const SMALL_PAGES: u32 = 8192;
/// How many more pages of one leader have come back than of the other: no more than this counts, and so many
/// decide.
const SCORE_MAX: i32 = 256;
const SCORE_DECIDES: i32 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Follows = 0,
    LeadsArrival = 1,
    LeadsBimodal = 2,
}

#[derive(Clone, Copy, Default)]
struct Known {
    /// The stamp of the record that counts; 0: it is not resident.
    stamp: u32,
    heat: u8,
    on_trial: bool,
}

/// The queues of blocks that have a role, as records of which the newest for a page counts, and the pages
/// that have such a record.
#[derive(Default)]
struct Part {
    main: VecDeque<(Page, u32)>,
    trial: VecDeque<(Page, u32)>,
    main_pages: u32,
    trial_pages: u32,
}

impl Part {
    fn pages(&self) -> u32 {
        self.main_pages + self.trial_pages
    }
    fn count(&mut self, on_trial: bool) -> &mut u32 {
        if on_trial { &mut self.trial_pages } else { &mut self.main_pages }
    }
}

pub struct Arrivals {
    order: Order,
    pages: Vec<Known>,
    next_stamp: u32,
    parts: [Part; 3],
    random: Random,
    leads_one_in: u32,
    /// Above 0: more pages of who leads as bimodal came back.
    score: i32,
    follows_bimodal: bool,
    trial: u32,
}

impl Arrivals {
    pub fn new(order: Order, pages: u32, seed: u64) -> Arrivals {
        Arrivals {
            order,
            pages: vec![Known::default(); pages as usize],
            next_stamp: 0,
            parts: Default::default(),
            random: Random::new(seed),
            leads_one_in: LEADS_ONE_IN_OF_SMALL,
            score: 0,
            follows_bimodal: order == Order::Bimodal,
            trial: TRIAL_AT_FIRST,
        }
    }

    fn role(&self, page: Page) -> Role {
        let block = page / BLOCK_PAGES;
        let mut random = Random::new((block / self.leads_one_in).into());
        let (place, blocks) = (u64::from(block % self.leads_one_in), u64::from(self.leads_one_in));
        let arrival = random.below(blocks);
        let bimodal = (arrival + 1 + random.below(blocks - 1)) % blocks;
        match place {
            _ if self.order != Order::Duel => Role::Follows,
            _ if place == arrival => Role::LeadsArrival,
            _ if place == bimodal => Role::LeadsBimodal,
            _ => Role::Follows,
        }
    }

    fn is_bimodal(&self, role: Role) -> bool {
        match role {
            Role::Follows => self.follows_bimodal,
            Role::LeadsArrival => false,
            Role::LeadsBimodal => true,
        }
    }

    fn push(&mut self, page: Page, heat: u8, on_trial: bool) {
        self.next_stamp += 1;
        self.pages[page as usize] = Known { stamp: self.next_stamp, heat, on_trial };
        let part = &mut self.parts[self.role(page) as usize];
        *part.count(on_trial) += 1;
        if on_trial { &mut part.trial } else { &mut part.main }.push_back((page, self.next_stamp));
    }

    /// A page of the block has come back.
    fn keep_score(&mut self, role: Role) {
        self.score += match role {
            Role::Follows => return,
            Role::LeadsArrival => -1,
            Role::LeadsBimodal => 1,
        };
        self.score = self.score.clamp(-SCORE_MAX, SCORE_MAX);
        if self.score.abs() >= SCORE_DECIDES {
            self.follows_bimodal = self.score < 0;
        }
    }

    fn adapt_trial(&mut self, is_near: bool) {
        let trial = if is_near { self.trial + TRIAL_LONGER } else { self.trial - TRIAL_SHORTER };
        self.trial = trial.clamp(TRIAL_LEAST, TRIAL_MOST);
    }

    /// Whose turn it is to give: a leader that has more than its part, else who follows.
    fn giver(&self) -> Role {
        let all: u32 = self.parts.iter().map(Part::pages).sum();
        let has_more = |role: &Role| self.parts[*role as usize].pages() > all / self.leads_one_in;
        let leader = [Role::LeadsArrival, Role::LeadsBimodal].into_iter().find(has_more);
        leader.filter(|_| self.order == Order::Duel).unwrap_or(Role::Follows)
    }

    fn pop(&mut self) -> (Page, u32) {
        let role = self.giver();
        let (is_bimodal, trial) = (self.is_bimodal(role), u64::from(self.trial));
        let part = &mut self.parts[role as usize];
        let trial_part = |pages: u32| (u64::from(pages) * trial / u64::from(TRIAL_UNIT)) as u32;
        let trial_max = if is_bimodal { trial_part(part.pages()) } else { 0 };
        let record = if part.trial_pages > trial_max || part.main.is_empty() {
            part.trial.pop_front()
        } else if is_bimodal || self.order == Order::Any {
            part.main.swap_remove_back(self.random.below(part.main.len() as u64) as usize)
        } else {
            part.main.pop_front()
        };
        record.expect("memory is full, and the leaders have no more than their parts")
    }

    /// Its record does not count any more.
    fn forget(&mut self, page: Page) {
        let on_trial = self.pages[page as usize].on_trial;
        self.pages[page as usize].stamp = 0;
        *self.parts[self.role(page) as usize].count(on_trial) -= 1;
    }

    fn take(&mut self, page: Page, victims: &mut Vec<Page>) {
        self.forget(page);
        victims.push(page);
    }

    /// With a victim leave those of its block that are cold and came in the older half.
    fn take_with_neighbours(&mut self, page: Page, known: Known, victims: &mut Vec<Page>) {
        self.take(page, victims);
        let age = self.next_stamp - known.stamp;
        let first = page / BLOCK_PAGES * BLOCK_PAGES;
        for near in first..(first + BLOCK_PAGES).min(self.pages.len() as Page) {
            let other = self.pages[near as usize];
            let is_cold = other.stamp > 0 && other.heat == 0 && self.next_stamp - other.stamp >= age / 2;
            if is_cold && other.on_trial == known.on_trial {
                self.take(near, victims);
            }
        }
    }
}

impl Policy for Arrivals {
    fn came(&mut self, page: Page, seen: &mut Seen) {
        if self.next_stamp == 0 && seen.memory >= SMALL_PAGES {
            self.leads_one_in = LEADS_ONE_IN;
        }
        let (role, distance) = (self.role(page), seen.distance(page));
        if let Some(distance) = distance {
            self.keep_score(role);
            if self.is_bimodal(role) {
                self.adapt_trial(distance <= seen.memory / MISSED_PART);
            }
        }
        let is_far = distance.is_some_and(|distance| distance > seen.memory / NEAR_PART);
        let epoch = u64::from(self.next_stamp / STAYS_FOR);
        let stays = || Random::new(u64::from(page / BLOCK_PAGES) ^ epoch << 32).one_in(STAYS_ONE_IN);
        let on_trial = self.is_bimodal(role) && is_far && !stays();
        let soon = distance.is_some_and(|distance| distance <= seen.memory);
        self.push(page, u8::from(soon && !on_trial), on_trial);
    }

    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>) {
        loop {
            let (page, stamp) = self.pop();
            let known = self.pages[page as usize];
            if known.stamp != stamp {
                continue;
            }
            if known.heat == 0 && !seen.take_used(page) {
                return self.take_with_neighbours(page, known, victims);
            }
            self.forget(page);
            self.push(page, known.heat.saturating_sub(1), false);
        }
    }
}
