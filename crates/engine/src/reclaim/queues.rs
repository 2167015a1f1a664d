//! The queues of one address space: which resident page reclaim looks at next.
//!
//! ```text
//!                      new, or back very soon                 by arrival: the oldest
//!   a page comes ──────────────────────────────▶ main ──────▶ bimodal:    any
//!        └─ bimodal: back later; but for one ──▶ trial ─────▶ bimodal:    the oldest, if too many
//!           block in 32                                       by arrival: the oldest, before main
//!   the next victims by somebody's word ───────▶ next ──────▶ before all others
//! ```
//!
//! By arrival a loop that is larger than memory has no hit: each page leaves just before it is wanted.
//! Bimodal insertion keeps most of what there is, and turns the rest over: a 32nd to an 8th of memory. A page
//! that comes back soon after its trial has cost a fault that a longer one would have saved, so the trial
//! becomes longer; and shorter with pages that come back later, for that leaves more to what is kept.
//! (So ARC weighs its two lists: Megiddo and Modha, FAST 2003.) Where programs work on one set of pages and
//! then on another, bimodal insertion takes twice as many faults. So it and arrival are in a *duel* (Qureshi
//! and others, "Adaptive insertion policies for high performance caching", ISCA 2007): of 64 blocks in a row
//! one always goes by arrival, one is always bimodal, and all others follow the one of which fewer pages come
//! back. With a small budget it is one of 24: else a leader is a handful of blocks, and it is chance what of
//! the program lies in them.
//!
//! # Invariants
//!
//! * A block of 64 KiB has one role, by its address alone. Each leader has queues and a part of memory (a
//!   64th, or a 24th) of its own; in one memory for all the bimodal one would be pushed out by the others.
//! * The count here is how many pages a queue has; those that went with a neighbour are counted off when they
//!   go, those that were unmapped when their record is met or swept.
//!
//! Why each part of this is there, by numbers: docs/policy.md. What it does not do: look at words, know if a
//! record is live, or what leaves together (victim.rs).

use crate::reclaim::lru::{Lru, Record};
use crate::tuning::AUTO_ORDER_MIN;
use crate::units::{PAGE_SIZE, Vpn};
use std::ops::Range;

/// The share of a bimodal part of memory for pages on trial, in parts of `TRIAL_UNIT`: at first, at least, at
/// most.
const TRIAL_UNIT: u32 = 1 << 20;
const TRIAL_AT_FIRST: u32 = TRIAL_UNIT / 16;
const TRIAL_LEAST: u32 = TRIAL_UNIT / 32;
const TRIAL_MOST: u32 = TRIAL_UNIT / 8;
/// Back before so many pages left, in parts of what is resident: a longer trial would have kept it. A trial
/// becomes longer with each such page, and shorter with each other one that comes back. If one in nine is
/// such a page, the trial stays as it is.
const MISSED_PART: u64 = 16;
const TRIAL_LONGER: u32 = 8 * TRIAL_SHORTER;
const TRIAL_SHORTER: u32 = 8;
/// Back before so many pages left, in parts of what is resident: very soon.
const NEAR_PART: u64 = 8;
/// One block in so many is kept although others are on trial; which, changes after so many stamps.
const KEPT_ONE_IN: u64 = 32;
const KEPT_FOR_STAMPS: u64 = 64;
/// One block of this many in a row leads by arrival, and one as bimodal; the second number is for a small
/// budget.
const LEADS_ONE_IN: u64 = 64;
const LEADS_ONE_IN_OF_SMALL: u64 = 24;
/// With less than the least of these nothing is ever on trial.
const SMALL_BUDGET_BYTES: Range<u64> = DUEL_LEAST_PAGES * PAGE_SIZE as u64..48 << 20;
/// How many more pages of one leader have come back than of the other: more does not count, so many decide.
const SCORE_MAX: i32 = 256;
const SCORE_DECIDES: i32 = 64;
/// Below this a leader would be a block or two, and tell nothing.
const DUEL_LEAST_PAGES: u64 = 2048;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Follows = 0,
    LeadsArrival = 1,
    LeadsBimodal = 2,
}

impl Role {
    fn is_bimodal(self, follows_bimodal: bool) -> bool {
        match self {
            Role::Follows => follows_bimodal,
            Role::LeadsArrival => false,
            Role::LeadsBimodal => true,
        }
    }
}

/// How a page comes that is put into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// It was not swapped out.
    New,
    /// It was not even written by the time that it was wanted; or it was read ahead into the swap cache.
    Unwritten,
    /// The number of pages that have left since it did.
    After(u64),
}

/// A page that was swapped out has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Return {
    pub role: Role,
    /// Would a longer trial have kept it? None: nobody knows, or there are no trials.
    pub is_near: Option<bool>,
}

/// The state that decides where a page goes; taken once for all that come together.
#[derive(Clone, Copy)]
pub(crate) struct Ways {
    /// None: there is no duel.
    leads_one_in: Option<u64>,
    follows_bimodal: bool,
    resident_pages: u64,
}

impl Ways {
    pub fn role(&self, vpn: Vpn) -> Role {
        self.leads_one_in.map_or(Role::Follows, |blocks| role_of(vpn, blocks))
    }

    /// How a swapped-out page returns.
    pub fn returned(&self, vpn: Vpn, coming: Coming) -> Return {
        let is_near = match coming {
            Coming::After(distance) if self.resident_pages >= DUEL_LEAST_PAGES => {
                Some(distance <= self.resident_pages / MISSED_PART)
            }
            _ => None,
        };
        Return { role: self.role(vpn), is_near }
    }

    /// Is this page to be on trial?
    pub fn puts_on_trial(&self, vpn: Vpn, coming: Coming, stamp: u64) -> bool {
        let Coming::After(distance) = coming else { return false };
        let is_bimodal = self.role(vpn).is_bimodal(self.follows_bimodal);
        let is_kept = || mix(block_of(vpn) ^ (stamp / KEPT_FOR_STAMPS) << 48).is_multiple_of(KEPT_ONE_IN);
        is_bimodal
            && self.resident_pages >= DUEL_LEAST_PAGES
            && distance > self.resident_pages / NEAR_PART
            && !is_kept()
    }
}

/// A queue, and how many of its records are known to be stale.
#[derive(Default)]
struct Counted {
    lru: Lru,
    stale: usize,
}

impl Counted {
    fn pages(&self) -> usize {
        self.lru.len().saturating_sub(self.stale)
    }
}

/// The queues of the blocks of one role.
#[derive(Default)]
struct Part {
    main: Counted,
    trial: Counted,
}

impl Part {
    fn pages(&self) -> usize {
        self.main.pages() + self.trial.pages()
    }
    fn queue(&mut self, on_trial: bool) -> &mut Counted {
        if on_trial { &mut self.trial } else { &mut self.main }
    }
}

/// Where a record was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Next,
    Part(Role, bool),
}

pub(crate) struct Queues {
    next: Lru,
    parts: [Part; 3],
    leads_one_in: Option<u64>,
    /// Above 0: more pages of the bimodal leader came back.
    score: i32,
    follows_bimodal: bool,
    /// The share of a bimodal part for pages on trial.
    trial: u32,
    drawn: u64,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues {
            next: Lru::default(),
            parts: Default::default(),
            leads_one_in: None,
            score: 0,
            follows_bimodal: false,
            trial: TRIAL_AT_FIRST,
            drawn: 0,
        }
    }
}

impl Queues {
    /// From now on blocks have roles; before, all follow, by arrival.
    pub fn let_duel(&mut self, budget_bytes: u64) {
        let is_small = SMALL_BUDGET_BYTES.contains(&budget_bytes);
        self.leads_one_in = Some(if is_small { LEADS_ONE_IN_OF_SMALL } else { LEADS_ONE_IN });
    }

    pub fn ways(&self, resident_pages: u64) -> Ways {
        Ways { leads_one_in: self.leads_one_in, follows_bimodal: self.follows_bimodal, resident_pages }
    }

    /// A page that came is the youngest of its queue.
    pub fn push(&mut self, record: Record, on_trial: bool) {
        let role = self.ways(0).role(record.vpn());
        self.parts[role as usize].queue(on_trial).lru.push(record);
    }

    /// It will be the next victim.
    pub fn push_next(&mut self, record: Record) {
        self.next.push_oldest(record);
    }

    /// Pages have come back.
    pub fn keep_score(&mut self, came_back: impl Iterator<Item = Return>) {
        for Return { role, is_near } in came_back {
            if let Some(is_near) = is_near.filter(|_| role.is_bimodal(self.follows_bimodal)) {
                self.adapt_trial(is_near);
            }
            self.score += match role {
                Role::Follows => continue,
                Role::LeadsArrival => -1,
                Role::LeadsBimodal => 1,
            };
            self.score = self.score.clamp(-SCORE_MAX, SCORE_MAX);
            if self.score.abs() >= SCORE_DECIDES {
                self.follows_bimodal = self.score < 0;
            }
        }
    }

    fn adapt_trial(&mut self, is_near: bool) {
        let trial = if is_near { self.trial + TRIAL_LONGER } else { self.trial - TRIAL_SHORTER };
        self.trial = trial.clamp(TRIAL_LEAST, TRIAL_MOST);
    }

    /// Who gives the next page: a leader that has more than its part, else who follows.
    fn giver(&self) -> Role {
        let leads_one_in = self.leads_one_in.unwrap_or(LEADS_ONE_IN) as usize;
        let most = self.parts.iter().map(Part::pages).sum::<usize>() / leads_one_in;
        let has = |role: &Role| self.parts[*role as usize].pages();
        let leader = [Role::LeadsArrival, Role::LeadsBimodal].into_iter().find(|role| has(role) > most);
        let any = [Role::Follows, Role::LeadsArrival, Role::LeadsBimodal];
        let has_record = |role: &Role| {
            let part = &self.parts[*role as usize];
            !part.main.lru.is_empty() || !part.trial.lru.is_empty()
        };
        leader.or(any.into_iter().find(has_record)).unwrap_or(Role::Follows)
    }

    /// The record to be looked at next. Its page may be away, or another one by now.
    pub fn pop(&mut self) -> Option<(Record, Source)> {
        if let Some(record) = self.next.pop() {
            return Some((record, Source::Next));
        }
        let role = self.giver();
        let (is_bimodal, trial) = (role.is_bimodal(self.follows_bimodal), self.trial as usize);
        let part = &mut self.parts[role as usize];
        let trial_max = if is_bimodal { part.pages() * trial / TRIAL_UNIT as usize } else { 0 };
        let is_trial = part.trial.pages() > trial_max || part.main.lru.is_empty();
        let queue = part.queue(is_trial);
        let record = if is_bimodal && !is_trial {
            self.drawn = self.drawn.wrapping_add(1);
            queue.lru.pop_any(mix(self.drawn))
        } else {
            queue.lru.pop()
        };
        // Some were put back after they had been counted off.
        queue.stale = queue.stale.min(queue.lru.len());
        Some((record?, Source::Part(role, is_trial)))
    }

    /// A record from there was stale.
    pub fn was_stale(&mut self, source: Source) {
        if let Source::Part(role, on_trial) = source {
            let queue = self.parts[role as usize].queue(on_trial);
            queue.stale = queue.stale.saturating_sub(1);
        }
    }

    /// `pages` pages of the block of `vpn` have gone, and their records are still there.
    pub fn gone_with(&mut self, vpn: Vpn, on_trial: bool, pages: usize) {
        let role = self.ways(0).role(vpn);
        let queue = self.parts[role as usize].queue(on_trial);
        // The child of a fork has its records where all follow, whoever leads.
        queue.stale = (queue.stale + pages).min(queue.lru.len());
    }

    /// Records, stale ones too.
    pub fn len(&self) -> usize {
        self.next.len() + self.parts.iter().map(|p| p.main.lru.len() + p.trial.lru.len()).sum::<usize>()
    }

    pub fn bytes(&self) -> u64 {
        self.next.bytes() + self.parts.iter().map(|p| p.main.lru.bytes() + p.trial.lru.bytes()).sum::<u64>()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Lru> {
        let of_parts = self.parts.iter_mut().flat_map(|part| {
            (part.main.stale, part.trial.stale) = (0, 0);
            [&mut part.main.lru, &mut part.trial.lru]
        });
        std::iter::once(&mut self.next).chain(of_parts)
    }

    /// All records, to be swept without the lock; what comes meanwhile is the younger.
    pub fn take_records(&mut self) -> Vec<Lru> {
        self.all().map(std::mem::take).collect()
    }

    /// What `take_records` took, without what was stale.
    pub fn put_back_records(&mut self, older: Vec<Lru>) {
        self.all().zip(older).for_each(|(queue, older)| queue.put_before(older));
    }

    pub fn clear(&mut self) {
        self.all().for_each(|queue| *queue = Lru::default());
    }
}

fn block_of(vpn: Vpn) -> u64 {
    vpn.0 >> AUTO_ORDER_MIN.0
}

/// Two of every `blocks` blocks in a row lead; this returns the role of one of them.
fn role_of(vpn: Vpn, blocks: u64) -> Role {
    let block = block_of(vpn);
    let draw = mix(block / blocks);
    // Two different places.
    let arrival = draw % blocks;
    let bimodal = (arrival + 1 + (draw >> 32) % (blocks - 1)) % blocks;
    match block % blocks {
        place if place == arrival => Role::LeadsArrival,
        place if place == bimodal => Role::LeadsBimodal,
        _ => Role::Follows,
    }
}

/// SplitMix64's finisher.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn of_so_many_blocks_one_leads_each_way() {
        for blocks in [LEADS_ONE_IN_OF_SMALL, LEADS_ONE_IN] {
            for group in [0u64, 1, 77, (1 << 30) / 1024] {
                let pages = blocks * 16;
                let role = |page| role_of(Vpn(group * pages + page), blocks);
                let roles: Vec<Role> = (0..pages).map(role).collect();
                for role in [Role::LeadsArrival, Role::LeadsBimodal] {
                    let first = roles.iter().position(|r| *r == role).expect("a leader");
                    assert_eq!(roles.iter().filter(|r| **r == role).count(), 16, "{role:?}");
                    assert!(first % 16 == 0 && roles[first..first + 16].iter().all(|r| *r == role));
                }
            }
        }
    }

    #[test]
    fn with_a_small_budget_there_are_more_leaders() {
        let leaders = |budget_bytes| {
            let mut queues = Queues::default();
            queues.let_duel(budget_bytes);
            let ways = queues.ways(1 << 20);
            (0..24 * 64).filter(|block| ways.role(Vpn(block * 16)) != Role::Follows).count()
        };
        let budgets_mib: [u64; 5] = [7, 8, 47, 48, 1 << 20];
        assert_eq!(budgets_mib.map(|mib| leaders(mib << 20)), [48, 128, 128, 48, 48]);
    }

    #[test]
    fn without_a_duel_it_is_one_queue() {
        let mut queues = Queues::default();
        (0..5000).for_each(|n| queues.push(Record::new(Vpn(n), 1), false));
        queues.push_next(Record::new(Vpn(9999), 2));
        let order: Vec<u64> = std::iter::from_fn(|| queues.pop()).map(|(record, _)| record.vpn().0).collect();
        assert!(order.into_iter().eq(std::iter::once(9999).chain(0..5000)));
    }

    #[test]
    fn a_leader_gives_what_it_has_beyond_its_part() {
        let mut queues = Queues::default();
        queues.let_duel(u64::MAX);
        let is_leader = |vpn: &u64| role_of(Vpn(*vpn), LEADS_ONE_IN) == Role::LeadsArrival;
        (0..64 << 10).filter(|vpn| !is_leader(vpn)).for_each(|n| queues.push(Record::new(Vpn(n), 1), false));
        let leaders: Vec<u64> = (0..256 << 10).filter(is_leader).collect();
        leaders.iter().for_each(|n| queues.push(Record::new(Vpn(*n), 1), false));
        // It has 4096 of 68608 that are there; then 1024 of 65536.
        let mut given = 0;
        while let Some((_, Source::Part(Role::LeadsArrival, false))) = queues.pop() {
            given += 1;
        }
        assert_eq!(given, 3072);
    }

    /// How many of 16 Ki pages on trial stay, beside three times as many that are not.
    fn on_trial(queues: &mut Queues) -> usize {
        (0..16u64 << 10).for_each(|n| queues.push(Record::new(Vpn(n), 1), true));
        (0..48u64 << 10).for_each(|n| queues.push(Record::new(Vpn(1 << 20 | n), 1), false));
        while let Some((_, Source::Part(Role::Follows, true))) = queues.pop() {}
        queues.parts[Role::Follows as usize].trial.pages()
    }

    #[test]
    fn a_trial_is_longer_where_pages_come_back_just_after_it() {
        let near_in_100 = |near: usize| {
            let mut queues = Queues { follows_bimodal: true, ..Queues::default() };
            let come = (0..100_000).map(|n| Return { role: Role::Follows, is_near: Some(n % 100 < near) });
            queues.keep_score(come);
            on_trial(&mut queues)
        };
        let part = |pages: usize, of: f64| (pages as f64 * of / 49152.0 - 1.0).abs() < 0.2;
        let [none, few, many] = [0, 8, 16].map(near_in_100);
        assert!(part(none, 32.0) && part(few, 32.0) && part(many, 8.0), "{none} {few} {many}");
        let mut by_arrival = Queues::default();
        by_arrival
            .keep_score(std::iter::repeat_n(Return { role: Role::Follows, is_near: Some(true) }, 100_000));
        by_arrival.follows_bimodal = true;
        let pages = on_trial(&mut by_arrival);
        assert!(part(pages, 16.0), "nothing was on trial: {pages}");
    }

    #[test]
    fn who_comes_back_soon_is_near() {
        let is_near = |coming, resident| Queues::default().ways(resident).returned(Vpn(1), coming).is_near;
        let after = |distance| is_near(Coming::After(distance), 3200);
        assert_eq!([after(200), after(201)], [Some(true), Some(false)]);
        assert_eq!([Coming::Unwritten, Coming::New].map(|coming| is_near(coming, 3200)), [None; 2]);
        assert_eq!(is_near(Coming::After(1), DUEL_LEAST_PAGES - 1), None, "nothing is on trial");
    }

    #[test]
    fn the_score_decides_and_is_bounded() {
        let mut queues = Queues::default();
        queues.let_duel(u64::MAX);
        let came = Coming::After(u64::MAX);
        let vpn = (0..).map(Vpn).find(|vpn| {
            role_of(*vpn, LEADS_ONE_IN) == Role::Follows && {
                let ways = queues.ways(1 << 20);
                Ways { follows_bimodal: true, ..ways }.puts_on_trial(*vpn, came, 1)
            }
        });
        let vpn = vpn.expect("a page that is not kept");
        let mut on_trial = |role, times| {
            queues.keep_score(std::iter::repeat_n(Return { role, is_near: Some(false) }, times));
            queues.ways(1 << 20).puts_on_trial(vpn, came, 1)
        };
        assert!(!on_trial(Role::Follows, 1000));
        assert!(!on_trial(Role::LeadsArrival, 63));
        assert!(on_trial(Role::LeadsArrival, 1));
        assert!(on_trial(Role::LeadsArrival, 100_000));
        assert!(on_trial(Role::LeadsBimodal, 256 + 63));
        assert!(!on_trial(Role::LeadsBimodal, 1));
        let ways = queues.ways(1 << 20);
        for coming in [Coming::New, Coming::Unwritten, Coming::After(1 << 17)] {
            let leads = (0..).map(Vpn).find(|vpn| ways.role(*vpn) == Role::LeadsBimodal).unwrap();
            assert!(!ways.puts_on_trial(leads, coming, 1), "{coming:?}");
        }
    }
}
