//! Memory of so many pages under a trace: what a policy is told, and what that takes.
//!
//! ```text
//!   access ─┬─ resident, mapped     the policy is told nothing; an accessed bit, where the signal has such
//!           ├─ resident, standby    a soft fault: known to have been used
//!           └─ away                 a fault: victims, if memory is full; the page has come
//! ```
//!
//! Invariants: a victim is resident; at no time are more pages resident than memory holds; of a resident
//! page's uses a policy sees no more than its signal tells.
//!
//! What it does not do: devices, readahead, several CPUs (`sim scale`), batches of victims.

use memspill_vcpu::cost;
use memspill_vcpu::random::Random;

/// A page of a trace, and its index in tables.
pub type Page = u32;
/// An aligned block of so many pages is told by one sample, and leaves together where a policy does so.
pub const BLOCK_PAGES: u32 = 16;

/// The knowledge about pages that are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Nothing: when a page came, and when it left.
    Faults,
    /// One page of each block stands by for the last quarter of its stay: it is unmapped and kept, and a
    /// touch is a soft fault, which tells of its block.
    Sampled,
    /// The same for each page, which tells of itself.
    Standby,
    /// Each page has a bit that a touch sets, at no cost: the kernel's.
    Bits,
}

impl Signal {
    pub const ALL: [Signal; 4] = [Signal::Faults, Signal::Sampled, Signal::Standby, Signal::Bits];

    pub fn name(self) -> &'static str {
        match self {
            Signal::Faults => "faults alone",
            Signal::Sampled => "standby, 1 in 16",
            Signal::Standby => "standby, all",
            Signal::Bits => "accessed bits",
        }
    }
}

/// A replacement policy.
pub trait Policy {
    /// The page is resident from now on.
    fn came(&mut self, page: Page, seen: &mut Seen);
    /// Memory is full: name one victim or more.
    fn evict(&mut self, seen: &mut Seen, victims: &mut Vec<Page>);
}

/// What a swap in user space can know of pages.
pub struct Seen {
    pub memory: u32,
    signal: Signal,
    /// Pages that have left so far.
    clock: u32,
    /// The clock after a page left; 0: it never did.
    left_at: Vec<u32>,
    resident: Vec<bool>,
    used: Vec<bool>,
    stands_by: Vec<bool>,
}

impl Seen {
    pub fn is_resident(&self, page: Page) -> bool {
        self.resident.get(page as usize).is_some_and(|resident| *resident)
    }
    /// How many pages have left since this one did; None: it never did.
    pub fn distance(&self, page: Page) -> Option<u32> {
        let left_at = self.left_at[page as usize];
        (left_at > 0).then(|| self.clock - left_at)
    }
    /// Is it known to have been used since it was asked last?
    pub fn take_used(&mut self, page: Page) -> bool {
        let place = self.place(page);
        std::mem::take(&mut self.used[place])
    }
    fn place(&self, page: Page) -> usize {
        match self.signal {
            Signal::Sampled => (page / BLOCK_PAGES) as usize,
            _ => page as usize,
        }
    }
    fn samples(&self, page: Page) -> bool {
        match self.signal {
            Signal::Standby => true,
            // The sampled page of a block differs from block to block.
            Signal::Sampled => {
                u64::from(page % BLOCK_PAGES)
                    == Random::new((page / BLOCK_PAGES).into()).below(BLOCK_PAGES.into())
            }
            Signal::Faults | Signal::Bits => false,
        }
    }
}

/// What a trace took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Touches of pages that never were in memory: the same for all policies.
    pub fresh: u64,
    /// Faults on pages that had left.
    pub faults: u64,
    pub soft_faults: u64,
    pub virtual_ns: u64,
}

impl Outcome {
    pub fn with_time(self, accesses: usize) -> Outcome {
        let virtual_ns = accesses as u64 * cost::ACCESS_NS
            + self.fresh * FRESH_NS
            + self.faults * FAULT_NS
            + self.soft_faults * SOFT_FAULT_NS;
        Outcome { virtual_ns, ..self }
    }
}

/// A fault, with the page that leaves for the one that comes. The runs are short where pages come at random.
const FAULT_NS: u64 = cost::FAULT_NS
    + cost::READ_MESSAGE_NS
    + cost::DECOMPRESS_PAGE_NS
    + cost::COPY_PAGE_NS
    + LEAVE_NS
    + cost::COMPRESS_PAGE_NS;
/// A page is moved to staging, in a run of two, and copied out of it.
const LEAVE_NS: u64 = cost::MOVE_PAGE_NS + cost::MOVE_RUN_NS / 2 + cost::STAGE_PAGE_NS;
/// A page is moved out, kept as it is, and moved back when it is touched.
const SOFT_FAULT_NS: u64 = cost::FAULT_NS + cost::READ_MESSAGE_NS + cost::COPY_PAGE_NS + LEAVE_NS;
const FRESH_NS: u64 = cost::FAULT_NS + cost::READ_MESSAGE_NS + cost::ZERO_PAGE_NS;

/// Run a trace of pages below `pages` in memory of so many.
pub fn replay(
    accesses: &[Page],
    pages: u32,
    memory: u32,
    signal: Signal,
    policy: &mut dyn Policy,
) -> Outcome {
    let n = pages as usize;
    let mut seen = Seen {
        memory,
        signal,
        clock: 0,
        left_at: vec![0; n],
        resident: vec![false; n],
        used: vec![false; n],
        stands_by: vec![false; n],
    };
    // Who came three quarters of a memory ago stands by from now on.
    let mut arrivals = vec![Page::MAX; (memory as usize * 3 / 4).max(1)];
    let (mut next_arrival, mut resident) = (0, 0);
    let (mut victims, mut outcome) = (Vec::new(), Outcome::default());
    for page in accesses.iter().copied() {
        let at = page as usize;
        if seen.resident[at] {
            let place = seen.place(page);
            if signal == Signal::Bits || std::mem::take(&mut seen.stands_by[at]) {
                seen.used[place] = true;
                outcome.soft_faults += u64::from(signal != Signal::Bits);
            }
            continue;
        }
        match seen.left_at[at] {
            0 => outcome.fresh += 1,
            _ => outcome.faults += 1,
        }
        if resident == memory {
            policy.evict(&mut seen, &mut victims);
            assert!(!victims.is_empty(), "memory is full, and a policy has named no victim");
            resident -= victims.len() as u32;
            for victim in victims.drain(..) {
                assert!(seen.resident[victim as usize], "page {victim} is no victim: it is away");
                seen.clock += 1;
                seen.left_at[victim as usize] = seen.clock;
                seen.resident[victim as usize] = false;
                seen.stands_by[victim as usize] = false;
            }
        }
        seen.resident[at] = true;
        resident += 1;
        if signal != Signal::Sampled {
            seen.used[at] = false;
        }
        policy.came(page, &mut seen);
        let stands_by = std::mem::replace(&mut arrivals[next_arrival], page);
        next_arrival = (next_arrival + 1) % arrivals.len();
        if seen.is_resident(stands_by) && seen.samples(stands_by) {
            seen.stands_by[stands_by as usize] = true;
        }
    }
    outcome.with_time(accesses.len())
}
