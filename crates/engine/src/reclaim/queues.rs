//! The queues of one address space: which resident page reclaim looks at next.
//!
//! ```text
//!                      new, or back very soon                 by arrival: the oldest
//!   a page comes ──────────────────────────────▶ main ──────▶ bimodal:    any
//!        └─ bimodal: back later; but for one ──▶ trial ─────▶ bimodal:    the oldest, beyond a 16th
//!           block in 32                                       by arrival: the oldest, before main
//!   the next victims by somebody's word ───────▶ next ──────▶ before all others
//! ```
//!
//! By arrival a loop that is larger than memory has no hit: each page leaves just before it is wanted.
//! Bimodal insertion keeps most of what there is, and turns a 16th of memory over. Where programs work on one
//! set of pages and then on another, it takes twice as many faults. So the two are in a *duel* (Qureshi and
//! others, "Adaptive insertion policies for high performance caching", ISCA 2007): of 64 blocks in a row one
//! always goes by arrival, one is always bimodal, and all others follow the one of which fewer pages come
//! back. With a small budget it is one of 24: else a leader is a handful of blocks, and it is chance what of
//! the program lies in them.
//!
//! # Invariants
//!
//! * A block of 64 KiB has one role, by its address alone. Each leader has queues and a part of memory (a
//!   64th, or a 24th) of its own; in one memory for all the bimodal one would be pushed out by the others.
//! * What is counted here is how many pages a queue has; those that went with a neighbour are counted off
//!   when they go, those that were unmapped when their record is met or swept.
//!
//! Why each part of this is there, by numbers: docs/policy.md. What it does not do: look at words, know if a
//! record is live, or what leaves together (victim.rs).

use crate::reclaim::lru::{Lru, Record};
use crate::tuning::AUTO_ORDER_MIN;
use crate::units::{PAGE_SIZE, Vpn};
use std::ops::Range;

/// Of a bimodal part of memory: for pages on trial.
const TRIAL_PART: usize = 16;
/// Back before so many pages left, in parts of what is resident: very soon.
const NEAR_PART: u64 = 8;
/// One block in so many is kept although others are on trial; which, changes after so many stamps.
const KEPT_ONE_IN: u64 = 32;
const KEPT_FOR_STAMPS: u64 = 64;
/// Of so many blocks in a row one leads by arrival, and one as bimodal; and of so many with a small budget.
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

/// How a page comes that is put into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// It was not swapped out.
    New,
    /// It was not even written by the time that it was wanted.
    Unwritten,
    /// So many pages have left since it did.
    After(u64),
}

/// What decides where a page goes; taken once for all that come together.
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

    /// Is this page to be on trial?
    pub fn puts_on_trial(&self, vpn: Vpn, coming: Coming, stamp: u64) -> bool {
        let Coming::After(distance) = coming else { return false };
        let is_bimodal = match self.role(vpn) {
            Role::Follows => self.follows_bimodal,
            Role::LeadsArrival => false,
            Role::LeadsBimodal => true,
        };
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

/// Of the blocks of one role.
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

#[derive(Default)]
pub(crate) struct Queues {
    next: Lru,
    parts: [Part; 3],
    leads_one_in: Option<u64>,
    /// Above 0: more pages of the bimodal leader came back.
    score: i32,
    follows_bimodal: bool,
    drawn: u64,
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

    /// Pages of these roles have come back.
    pub fn keep_score(&mut self, came_back: impl Iterator<Item = Role>) {
        for role in came_back {
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
        let is_bimodal = match role {
            Role::Follows => self.follows_bimodal,
            Role::LeadsArrival => false,
            Role::LeadsBimodal => true,
        };
        let part = &mut self.parts[role as usize];
        let trial_max = if is_bimodal { part.pages() / TRIAL_PART } else { 0 };
        let is_trial = part.trial.pages() > trial_max || part.main.lru.is_empty();
        let queue = part.queue(is_trial);
        let record = if is_bimodal && !is_trial {
            self.drawn = self.drawn.wrapping_add(1);
            queue.lru.pop_any(mix(self.drawn))
        } else {
            queue.lru.pop()
        };
        // Those that were put back after they had been counted off.
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

    /// So many pages of the block of `vpn` have gone, and their records are still there.
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

/// Of `blocks` in a row, of which this is one, two lead.
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
            queues.keep_score(std::iter::repeat_n(role, times));
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
