//! Memory groups: what is used, what may be used, and when reclaim must work. A tree; the budget is the
//! root's maximum.
//!
//! ```text
//!   0                    low_mark      high_mark       limit
//!   ├───────────────────────┼───────────────┼────────────┤
//!         usage here: idle  │  reclaim stops│ reclaim    │ faults wait (limit = memory.max)
//!                           ◀──here─────────│ starts     │
//! ```
//!
//! Tried: marks at twice and four times the distance from the limit. A program (SQLite in half of its memory)
//! had 4 and 80 % more major faults.
//!
//! usage = pages charged (resident pages of managed ranges)
//!       + other bytes (memory of the targets that is not managed; in the root also pool, frames and tables)
//!       − discount (pages counted in two address spaces that are one page, shared since a fork; managed or
//!         not).
//!
//! A page is charged to the group of its space and to all above it. A charge fits in each of them or fails;
//! nobody sleeps here. A page that must be admitted (it is there already, found by a scan) is charged by
//! force, and reclaim brings the usage down.
//!
//! *Stock*: each CPU keeps a few pages charged in advance, as the kernel's memcg does, so that most faults
//! write no line that other CPUs write. They count as used, so a stock takes no group over its limit; reclaim
//! empties the stocks when it finds nothing to take. (Emptying them whenever a charge fails was tried: from
//! 64 CPUs on, the CPUs did nothing else.)
//!
//! ```text
//!   charge:    stock of this CPU ─ not enough ─▶ this group, its parent, … the root   (and half a stock)
//!   uncharge:  stock of this CPU ─ over the cap ─▶ the same
//! ```
//!
//! *Swap* is charged slot by slot to the group that owns it, from allocation to release, so the group
//! outlives its processes until the last slot is gone. Without any limit on swap nothing is counted. A group
//! may name the devices that its pages go to, and those of the groups below it.
//!
//! Kernel counterpart: `mem_cgroup`, `page_counter`, `memcg_stock`. What it does not do: know spaces, or wake
//! anybody.

use crate::sync::{Apart, Arc, AtomicBool, AtomicU64, EventCount, Ordering};
use crate::units::{CpuId, GroupId, PAGE_SIZE};

/// Groups that a run may have, its root included.
pub const GROUPS_MAX: usize = 64;
/// The group of all groups.
pub const ROOT_GROUP: GroupId = GroupId(1);

/// CPUs that have a stock of their own; where there are more CPUs, they share. Few under a model checker,
/// where each access is a step.
const STOCKS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
/// Pages in a stock at most.
const STOCK_PAGES_MAX: u64 = 64;
/// A stock holds at most 1 / STOCK_PART of the limit: pages in stocks are charged and hold nothing.
const STOCK_PART: u64 = 1024;
/// There is plenty while this part of the limit is free.
const PLENTY_PART: u64 = 8;
const PLENTY_BYTES_MIN: u64 = 8 << 20;

/// What a group is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    pub name: String,
    /// Place of the parent in the list of groups; it comes before its children. None: the root.
    pub parent: Option<usize>,
    /// `memory.max`; u64::MAX: none of its own.
    pub max_bytes: u64,
    /// `memory.high`; u64::MAX: none.
    pub high_bytes: u64,
    /// `swap.max`; u64::MAX: none.
    pub swap_max_pages: u64,
    /// Names of the swap devices that its pages may go to, with `*` and `?`. None: all.
    pub swap_devices: Vec<String>,
}

impl GroupConfig {
    pub fn root(max_bytes: u64) -> GroupConfig {
        GroupConfig {
            name: "/".into(),
            parent: None,
            max_bytes,
            high_bytes: u64::MAX,
            swap_max_pages: u64::MAX,
            swap_devices: Vec::new(),
        }
    }
}

/// One CPU's pages charged in advance.
#[derive(Default)]
struct Stock {
    pages: AtomicU64,
    /// Pages charged and uncharged here so far.
    moved_pages: AtomicU64,
}

impl Stock {
    fn take(&self, pages: u64) -> bool {
        let less = |stock: u64| stock.checked_sub(pages);
        self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// How often a limit was met (the kernel's memory.events).
#[derive(Default)]
pub struct Events {
    /// Batches that reclaim took because of `memory.high`.
    pub high: EventCount,
    /// A charge did not fit below `memory.max`.
    pub max: EventCount,
    /// Slots were not given because of `swap.max`.
    pub swap_max: EventCount,
}

pub struct Group {
    pub id: GroupId,
    pub name: String,
    pub parent: Option<Arc<Group>>,
    pub events: Events,
    pub swap_devices: Vec<String>,
    max_bytes: AtomicU64,
    /// Lent for a while beyond that.
    lent_bytes: AtomicU64,
    high_bytes: AtomicU64,
    /// Kept free by reclaim for what may come without a charge.
    reserved_bytes: AtomicU64,
    /// Distance between the limit and the mark at which reclaim starts, and again to where it stops.
    gap_bytes: AtomicU64,
    charged_pages: AtomicU64,
    other_bytes: AtomicU64,
    discount_pages: AtomicU64,
    peak_bytes: AtomicU64,
    counts_swap: AtomicBool,
    swap_max_pages: AtomicU64,
    swap_pages: AtomicU64,
    stocks: Box<[Apart<Stock>]>,
}

impl Group {
    fn new(id: GroupId, config: &GroupConfig, parent: Option<Arc<Group>>) -> Group {
        let group = Group {
            id,
            name: config.name.clone(),
            parent,
            events: Events::default(),
            swap_devices: config.swap_devices.clone(),
            max_bytes: AtomicU64::new(0),
            lent_bytes: AtomicU64::new(0),
            high_bytes: AtomicU64::new(config.high_bytes),
            reserved_bytes: AtomicU64::new(0),
            gap_bytes: AtomicU64::new(0),
            charged_pages: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            discount_pages: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            counts_swap: AtomicBool::new(id != ROOT_GROUP),
            swap_max_pages: AtomicU64::new(u64::MAX),
            swap_pages: AtomicU64::new(0),
            stocks: (0..STOCKS).map(|_| Apart::default()).collect(),
        };
        group.set_limit_bytes(config.max_bytes);
        if config.swap_max_pages != u64::MAX {
            group.limit_swap(config.swap_max_pages);
        }
        group
    }

    /// This group, its parent, … the root.
    fn chain(&self) -> impl Iterator<Item = &Group> {
        std::iter::successors(Some(self), |group| group.parent.as_deref())
    }

    /// Is this group `other`, or below it?
    pub fn is_within(&self, other: &Group) -> bool {
        self.chain().any(|group| group.id == other.id)
    }

    // ---- limits -------------------------------------------------------------------------------------------

    /// The least maximum of this group and those above it.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.chain().map(Group::max_bytes).min().expect("the group itself")
    }
    /// What may be used: its maximum, or more while some is lent to it.
    pub fn limit_bytes(&self) -> u64 {
        self.max_bytes().max(self.target_bytes())
    }
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }
    /// Above this reclaim works: `memory.high`, or the maximum.
    pub fn bound_bytes(&self) -> u64 {
        self.max_bytes().min(self.high_bytes())
    }
    pub fn lent_bytes(&self) -> u64 {
        self.lent_bytes.load(Ordering::Relaxed)
    }
    /// Raise the bound for a while, and the maximum where that would be below it, by what some of the group's
    /// processes must have beyond it, so that the others do not pay for it. Replaces what was lent before.
    pub fn lend(&self, bytes: u64) {
        if self.lent_bytes.load(Ordering::Relaxed) != bytes {
            self.lent_bytes.store(bytes, Ordering::Relaxed);
        }
    }
    /// Have reclaim keep so much free, in place of what it was to keep before. No charge fails for it.
    pub fn reserve(&self, bytes: u64) {
        if self.reserved_bytes.load(Ordering::Relaxed) != bytes {
            self.reserved_bytes.store(bytes, Ordering::Relaxed);
        }
    }
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.max_bytes.store(limit_bytes, Ordering::Relaxed);
        // A wake of an idle CPU costs 50 µs, so a wake should free many pages. But the gap is memory that
        // nobody uses, and where the pool is inside the limit it costs twice its size. With 8 MiB in place of
        // 2, random reads of 591 MiB were a fifth slower. At least a batch of reclaim (of small
        // folios): else faults find no room.
        self.gap_bytes.store((self.bound_bytes() / 128).clamp(256 << 10, 2 << 20), Ordering::Relaxed);
    }
    /// All of its limits anew; of swap only where it had one when it was made.
    pub fn set_limits(&self, config: &GroupConfig) {
        self.high_bytes.store(config.high_bytes, Ordering::Relaxed);
        self.set_limit_bytes(config.max_bytes);
        if self.swap_max_pages() != u64::MAX {
            self.swap_max_pages.store(config.swap_max_pages, Ordering::Relaxed);
        }
    }
    pub fn high_bytes(&self) -> u64 {
        self.high_bytes.load(Ordering::Relaxed)
    }
    pub fn swap_max_pages(&self) -> u64 {
        self.swap_max_pages.load(Ordering::Relaxed)
    }
    /// To be called before the first slot is allocated: slots handed out uncounted would be uncharged later.
    pub fn limit_swap(&self, pages: u64) {
        self.counts_swap.store(true, Ordering::Relaxed);
        self.swap_max_pages.store(pages, Ordering::Relaxed);
    }

    // ---- usage --------------------------------------------------------------------------------------------

    /// Usage, pages in stocks included.
    pub fn usage_bytes(&self) -> u64 {
        self.usage_with(self.charged_pages.load(Ordering::Relaxed))
    }
    fn usage_with(&self, charged_pages: u64) -> u64 {
        // Pages that are shared since a fork count among the other bytes until they are managed.
        let counted_bytes =
            (charged_pages * PAGE_SIZE as u64).saturating_add(self.other_bytes.load(Ordering::Relaxed));
        counted_bytes.saturating_sub(self.discount_pages() * PAGE_SIZE as u64)
    }
    pub fn other_bytes(&self) -> u64 {
        self.other_bytes.load(Ordering::Relaxed)
    }
    pub fn set_other_bytes(&self, bytes: u64) {
        // A load first: each fault reads this word, and most batches would store the value it has already.
        if self.other_bytes.load(Ordering::Relaxed) != bytes {
            self.other_bytes.store(bytes, Ordering::Relaxed);
        }
        self.note_peak(self.usage_bytes());
    }
    /// A part may be taken from it a moment before it is added (`change_discount`): below 0 it is 0.
    pub fn discount_pages(&self) -> u64 {
        (self.discount_pages.load(Ordering::Relaxed) as i64).max(0) as u64
    }
    /// One space's part of the discount changes.
    pub(crate) fn change_discount(&self, from_pages: u64, to_pages: u64) {
        for group in self.chain() {
            group.discount_pages.fetch_add(to_pages.wrapping_sub(from_pages), Ordering::Relaxed);
        }
    }
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }
    fn note_peak(&self, usage_bytes: u64) {
        if usage_bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(usage_bytes, Ordering::Relaxed);
        }
    }
    /// `swap.current`, where it is counted.
    pub fn swap_pages(&self) -> Option<u64> {
        self.counts_swap.load(Ordering::Relaxed).then(|| self.swap_pages.load(Ordering::Relaxed))
    }
    /// Does it, or one above it, name the swap devices that its pages go to?
    pub(crate) fn names_devices(&self) -> bool {
        self.chain().any(|group| !group.swap_devices.is_empty())
    }
    /// May its pages go to the swap device of this name?
    pub(crate) fn may_swap_to(&self, device: &str) -> bool {
        let is_named = |pattern: &String| matches(pattern.as_bytes(), device.as_bytes());
        self.chain().all(|group| group.swap_devices.is_empty() || group.swap_devices.iter().any(is_named))
    }
    /// The limits on swap allow one more slot.
    pub fn has_swap(&self) -> bool {
        self.chain().all(|group| group.swap_pages().is_none_or(|used| used < group.swap_max_pages()))
    }
    /// Pages that it may still have in swap.
    pub(crate) fn swap_room_pages(&self) -> u64 {
        let room = |group: &Group| group.swap_pages().map(|used| group.swap_max_pages().saturating_sub(used));
        self.chain().filter_map(room).min().unwrap_or(u64::MAX)
    }
    /// More than half of what the group, or one above it, may have of swap is in use.
    pub(crate) fn swap_is_scarce(&self) -> bool {
        self.chain().any(|group| group.swap_pages().is_some_and(|used| used > group.swap_max_pages() / 2))
    }
    /// Pages charged to and uncharged from the spaces of this very group so far. While this number grows, its
    /// processes get on.
    pub fn moved_pages(&self) -> u64 {
        self.stocks.iter().map(|stock| stock.0.moved_pages.load(Ordering::Relaxed)).sum()
    }

    // ---- charges ------------------------------------------------------------------------------------------

    fn stock(&self, cpu: CpuId) -> &Stock {
        &self.stocks[cpu.index() % STOCKS].0
    }
    fn stock_cap(&self) -> u64 {
        (self.least_limit_pages() / STOCK_PART).min(STOCK_PAGES_MAX)
    }
    fn note_moved(&self, cpu: CpuId, pages: u64) {
        self.stock(cpu).moved_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Charge if it fits below `limit - reserve_bytes` here and above.
    pub fn try_charge(&self, cpu: CpuId, pages: u64, reserve_bytes: u64) -> bool {
        let charged = self.stock(cpu).take(pages)
            || self.charge_in_advance(cpu, pages, reserve_bytes)
            || self.charge_chain(pages, reserve_bytes);
        if charged {
            self.note_moved(cpu, pages);
        } else if reserve_bytes == 0 {
            self.events.max.fetch_add(1, Ordering::Relaxed);
        }
        charged
    }

    /// Charge `pages` and half a stock besides, so that the next faults of this CPU need not write the common
    /// count. Only while the gap below the limit stays free: that is for faults that need a page now.
    fn charge_in_advance(&self, cpu: CpuId, pages: u64, reserve_bytes: u64) -> bool {
        let in_advance = self.stock_cap() / 2;
        let charged =
            in_advance > 0 && self.charge_chain(pages + in_advance, reserve_bytes.max(self.gap_bytes()));
        if charged {
            self.stock(cpu).pages.fetch_add(in_advance, Ordering::Relaxed);
        }
        charged
    }

    fn charge_chain(&self, pages: u64, reserve_bytes: u64) -> bool {
        let full = self.chain().position(|group| !group.charge_one(pages, reserve_bytes));
        if let Some(full) = full {
            self.chain().take(full).for_each(|group| group.uncharge_one(pages));
        }
        full.is_none()
    }

    fn charge_one(&self, pages: u64, reserve_bytes: u64) -> bool {
        let fits = |charged: u64| {
            self.usage_with(charged + pages).saturating_add(reserve_bytes) <= self.limit_bytes()
        };
        // A load first: CPUs that all find the group full must not take the cache line from each other.
        if !fits(self.charged_pages.load(Ordering::Relaxed)) {
            return false;
        }
        // Not a compare-exchange loop, which under contention mostly fails and tries again. Two CPUs that try
        // to charge the last page at once may both be refused; their faults try again.
        let before = self.charged_pages.fetch_add(pages, Ordering::Relaxed);
        if !fits(before) {
            self.uncharge_one(pages);
            return false;
        }
        self.note_peak(self.usage_with(before + pages));
        true
    }

    pub fn force_charge(&self, cpu: CpuId, pages: u64) {
        for group in self.chain() {
            let before = group.charged_pages.fetch_add(pages, Ordering::Relaxed);
            group.note_peak(group.usage_with(before + pages));
        }
        self.note_moved(cpu, pages);
    }

    /// Pages that were counted among the other bytes until now are charged from now on.
    pub fn charge_adopted(&self, pages: u64) {
        let bytes = pages * PAGE_SIZE as u64;
        for group in self.chain() {
            let move_over = |other: u64| Some(other.saturating_sub(bytes));
            let _ = group.other_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, move_over);
            group.charged_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    pub fn uncharge(&self, cpu: CpuId, pages: u64) {
        if pages == 0 {
            return;
        }
        self.note_moved(cpu, pages);
        // Over the limit nothing goes into a stock: the next fault would take it, and the pool, which grows
        // by half of each page that leaves, would raise usage further for as long as faults come.
        let over = self.chain().any(|group| group.usage_bytes() > group.limit_bytes());
        let cap = if over { 0 } else { self.stock_cap() };
        let stock = &self.stock(cpu).pages;
        let mut surplus = 0;
        let add = |held: u64| {
            surplus = (held + pages).saturating_sub(cap);
            Some(held + pages - surplus)
        };
        let _ = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if surplus > 0 {
            self.chain().for_each(|group| group.uncharge_one(surplus));
        }
    }

    fn uncharge_one(&self, pages: u64) {
        let before = self.charged_pages.fetch_sub(pages, Ordering::Relaxed);
        assert!(before >= pages, "group {}: {pages} pages uncharged of {before} charged", self.name);
    }

    /// Give back what was charged in advance.
    fn drain_stocks(&self) {
        let mut drained = 0;
        for stock in &self.stocks {
            if stock.0.pages.load(Ordering::Relaxed) > 0 {
                drained += stock.0.pages.swap(0, Ordering::Relaxed);
            }
        }
        if drained > 0 {
            self.chain().for_each(|group| group.uncharge_one(drained));
        }
    }

    fn stocked_pages(&self) -> u64 {
        self.stocks.iter().map(|stock| stock.0.pages.load(Ordering::Relaxed)).sum()
    }

    // ---- swap ---------------------------------------------------------------------------------------------

    /// Charge up to `pages` slots, as many as fit here and above. Returns how many.
    pub(crate) fn charge_swap(&self, pages: u64) -> u64 {
        let mut granted = pages;
        for (at, group) in self.chain().enumerate() {
            let here = group.charge_swap_one(granted);
            if here < granted {
                group.events.swap_max.fetch_add(1, Ordering::Relaxed);
                self.chain().take(at).for_each(|below| below.uncharge_swap_one(granted - here));
                granted = here;
            }
        }
        granted
    }

    fn charge_swap_one(&self, pages: u64) -> u64 {
        if !self.counts_swap.load(Ordering::Relaxed) {
            return pages;
        }
        let mut granted = 0;
        let add = |used: u64| {
            granted = pages.min(self.swap_max_pages().saturating_sub(used));
            Some(used + granted)
        };
        let _ = self.swap_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        granted
    }

    /// Beyond the limits: for pages that move to another slot and give the old one back.
    pub(crate) fn force_charge_swap(&self, pages: u64) {
        self.chain().filter(|group| group.counts_swap.load(Ordering::Relaxed)).for_each(|group| {
            group.swap_pages.fetch_add(pages, Ordering::Relaxed);
        });
    }

    pub(crate) fn uncharge_swap(&self, pages: u64) {
        self.chain().for_each(|group| group.uncharge_swap_one(pages));
    }

    fn uncharge_swap_one(&self, pages: u64) {
        if self.counts_swap.load(Ordering::Relaxed) && pages > 0 {
            let before = self.swap_pages.fetch_sub(pages, Ordering::Relaxed);
            assert!(before >= pages, "group {}: {pages} slots uncharged of {before} charged", self.name);
        }
    }

    // ---- marks --------------------------------------------------------------------------------------------

    pub fn gap_bytes(&self) -> u64 {
        self.gap_bytes.load(Ordering::Relaxed)
    }
    /// The least gap, here and above.
    pub fn least_gap_bytes(&self) -> u64 {
        self.chain().map(Group::gap_bytes).min().unwrap_or(0)
    }
    /// The bound, and what is lent beyond it.
    pub fn target_bytes(&self) -> u64 {
        self.bound_bytes().saturating_add(self.lent_bytes())
    }
    fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }
    /// Reclaim should start.
    pub fn above_high_mark(&self) -> bool {
        self.usage_bytes() + self.gap_bytes() + self.reserved_bytes() > self.target_bytes()
    }
    /// Reclaim may not stop yet.
    pub fn above_low_mark(&self) -> bool {
        self.usage_bytes() + 2 * self.gap_bytes() + self.reserved_bytes() > self.target_bytes()
    }
    /// An eighth of what it may have is free, and some MiB are, here and above: some pages too many do no
    /// harm.
    pub(crate) fn has_plenty(&self) -> bool {
        self.chain().all(|group| {
            let target = group.target_bytes();
            let free = (target / PLENTY_PART).max(PLENTY_BYTES_MIN);
            group.usage_bytes() + group.gap_bytes() <= target.saturating_sub(free)
        })
    }
    /// No room for even one page, here or above, whatever lies in stocks.
    pub fn full(&self) -> bool {
        self.chain().any(|group| group.is_full_but_for(self))
    }
    /// The same for this group alone, whatever is above it.
    pub fn is_full_itself(&self) -> bool {
        self.is_full_but_for(self)
    }
    /// No room for even one page here, whatever lies in the stocks of another group.
    fn is_full_but_for(&self, other: &Group) -> bool {
        let over = (self.usage_bytes() + PAGE_SIZE as u64).saturating_sub(self.limit_bytes());
        // All stocks are looked at only where it depends on them.
        over > 0 && over > other.stocked_pages() * PAGE_SIZE as u64
    }
    /// A charge of one page has failed: the group that it failed at, or this one if there is room by now.
    pub(crate) fn full_one(&self) -> &Group {
        let is_full = |group: &&Group| group.usage_bytes() + PAGE_SIZE as u64 > group.limit_bytes();
        self.chain().find(is_full).unwrap_or(self)
    }
    /// What it may have, here and above.
    pub fn least_limit_pages(&self) -> u64 {
        let least = self.chain().map(|group| group.limit_bytes()).min().expect("the group itself");
        least / PAGE_SIZE as u64
    }
}

/// All groups of a run. Made when it begins; parents come before their children.
pub struct Groups {
    all: Vec<Arc<Group>>,
}

impl Groups {
    /// The first one is the root.
    pub fn new(configs: &[GroupConfig]) -> Groups {
        assert!((1..=GROUPS_MAX).contains(&configs.len()), "{} groups", configs.len());
        let mut all: Vec<Arc<Group>> = Vec::new();
        for (n, config) in configs.iter().enumerate() {
            assert_eq!(config.parent.is_none(), n == 0, "the first group, and no other, is the root");
            let parent = config.parent.map(|at| all[at].clone());
            all.push(Arc::new(Group::new(GroupId(ROOT_GROUP.0 + n as u16), config, parent)));
        }
        Groups { all }
    }

    pub fn root(&self) -> &Arc<Group> {
        &self.all[0]
    }
    pub fn all(&self) -> &[Arc<Group>] {
        &self.all
    }
    pub(crate) fn by_id(&self, id: GroupId) -> &Group {
        &self.all[(id.0 - ROOT_GROUP.0) as usize]
    }

    /// Give back what was charged in advance: reclaim found nothing to take, and this is room.
    pub(crate) fn drain_stocks(&self) {
        self.all.iter().for_each(|group| group.drain_stocks());
    }

    /// Reclaim should start somewhere.
    pub fn above_high_mark(&self) -> bool {
        self.all.iter().any(|group| group.above_high_mark())
    }
    /// Reclaim may not stop everywhere yet.
    pub fn above_low_mark(&self) -> bool {
        self.all.iter().any(|group| group.above_low_mark())
    }
    /// Groups that reclaim must bring down, children before their parents: a page that a child gives up is
    /// uncharged from its parents too.
    pub(crate) fn pressed(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.all.iter().rev().filter(|group| group.above_low_mark())
    }

    /// Pages charged in `group` and below, without what lies in stocks. Exact at a quiet point.
    pub fn charged_pages(&self, group: &Group) -> u64 {
        let below = self.all.iter().filter(|other| other.is_within(group));
        let stocked: u64 = below.map(|other| other.stocked_pages()).sum();
        group.charged_pages.load(Ordering::Relaxed) - stocked
    }
}

/// `*` stands for any characters, `?` for one byte.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The place of the last `*`, and the end of the part of the name for which it stands. Only the last one
    // is ever tried with more: what an earlier one could take instead, it can take too. (With all of them the
    // time grows as a power.)
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, end)) = star else { return false };
                star = Some((at, end + 1));
                (p, n) = (at + 1, end + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    const CPU: CpuId = CpuId(0);
    const PAGE: u64 = PAGE_SIZE as u64;

    fn config(name: &str, parent: Option<usize>, max_pages: u64) -> GroupConfig {
        GroupConfig { name: name.into(), parent, ..GroupConfig::root(max_pages * PAGE) }
    }

    fn tree() -> Groups {
        Groups::new(&[
            config("/", None, 10_000),
            config("a", Some(0), 4000),
            config("b", Some(1), 3000),
            config("c", Some(0), 9000),
        ])
    }

    #[test]
    fn what_is_shared_counts_once_whether_it_is_managed_or_not() {
        let groups = tree();
        let b = &groups.all()[2];
        b.set_other_bytes(500 * PAGE);
        assert!(b.try_charge(CPU, 100, 0));
        groups.drain_stocks();
        b.change_discount(0, 550);
        assert_eq!(b.usage_bytes(), 50 * PAGE);
        b.change_discount(550, 700);
        assert_eq!(b.usage_bytes(), 0, "it was measured before some of the pages went");
        // Two change the discount of a space at once: one takes away what the other is about to add.
        b.change_discount(710, 0);
        assert_eq!(b.usage_bytes(), 600 * PAGE);
        b.change_discount(0, 10);
        assert_eq!((b.usage_bytes(), b.discount_pages()), (600 * PAGE, 0));
    }

    #[test]
    fn a_charge_fits_everywhere_or_nowhere() {
        let groups = tree();
        let [root, a, b, c] = [0, 1, 2, 3].map(|n| groups.all()[n].clone());
        assert!(b.try_charge(CPU, 2950, 0) && a.try_charge(CPU, 1050, 0));
        assert!(!b.try_charge(CPU, 1, 0), "its parent is full");
        assert!(c.try_charge(CPU, 6000, 0) && !c.try_charge(CPU, 1, 0), "the root is full");
        let charged = |group: &Group| groups.charged_pages(group);
        assert_eq!([charged(&root), charged(&a), charged(&b), charged(&c)], [10_000, 4000, 2950, 6000]);
        c.uncharge(CPU, 500);
        groups.drain_stocks();
        assert!(
            !b.try_charge(CPU, 1, 0) && c.try_charge(CPU, 500, 0),
            "what it gave back is not its neighbour's"
        );
        b.uncharge(CPU, 2950);
        groups.drain_stocks();
        assert!(a.try_charge(CPU, 2950, 0));
        assert_eq!([charged(&root), charged(&a), charged(&b)], [10_000, 4000, 0]);
        assert!(b.is_within(&root) && b.is_within(&a) && !b.is_within(&c) && !a.is_within(&b));
        assert!(b.events.max.load(Ordering::Relaxed) > 0);
    }

    /// Pages in one CPU's stock can be given to the others, and the checker counts them.
    #[test]
    fn what_lies_in_stocks_is_used_until_they_are_emptied() {
        let groups = Groups::new(&[config("/", None, 100_000)]);
        let root = groups.root();
        assert!(root.try_charge(CPU, 100_000, 0));
        for cpu in 0..8 {
            root.uncharge(CpuId(cpu), 64);
        }
        assert_eq!((root.usage_bytes() / PAGE, groups.charged_pages(root)), (100_000, 100_000 - 512));
        assert!(!root.full(), "stocks are room");
        assert!(root.try_charge(CPU, 64, 0), "the CPU's own");
        assert!(!root.try_charge(CpuId(9), 1, 0), "the others'");
        groups.drain_stocks();
        assert!(root.try_charge(CpuId(9), 448, 0) && !root.try_charge(CpuId(9), 1, 0));
        assert!(root.full());
        assert_eq!(groups.charged_pages(root), 100_000);
    }

    /// Else usage would climb with the pool: a page that leaves takes half a page there, and its own room
    /// would go to the next fault.
    #[test]
    fn over_the_limit_nothing_is_put_aside() {
        let groups = Groups::new(&[config("/", None, 100_000)]);
        let root = groups.root();
        assert!(root.try_charge(CPU, 100_000, 0));
        for pool_pages in 1..=100 {
            root.set_other_bytes(pool_pages * PAGE);
            root.uncharge(CPU, 1);
            assert!(!root.try_charge(CPU, 1, 0) || root.usage_bytes() <= root.limit_bytes());
        }
        assert_eq!((root.usage_bytes(), root.stocked_pages()), (root.limit_bytes(), 0));
    }

    #[test]
    fn what_is_charged_in_advance_leaves_the_gap_alone() {
        let groups = Groups::new(&[config("/", None, 100_000)]);
        let root = groups.root();
        let used = || root.usage_bytes() / PAGE;
        assert!(root.try_charge(CPU, 1, 0));
        assert_eq!((used(), root.stocked_pages()), (33, 32));
        assert!((0..32).all(|_| root.try_charge(CPU, 1, 0)));
        assert_eq!((used(), root.stocked_pages()), (33, 0), "out of the stock");
        let gap = root.gap_bytes() / PAGE;
        assert!(root.try_charge(CPU, 100_000 - gap - used(), 0));
        assert!(root.try_charge(CPU, 1, 0));
        assert_eq!((used(), root.stocked_pages()), (100_000 - gap + 1, 0));
    }

    #[test]
    fn what_is_lent_is_room_for_a_while() {
        let groups = tree();
        let root = groups.root();
        assert!(root.try_charge(CPU, 10_000, 0) && !root.try_charge(CPU, 1, 0));
        root.lend(500 * PAGE);
        assert!(root.try_charge(CPU, 500, 0) && !root.try_charge(CPU, 1, 0));
        root.lend(0);
        assert_eq!((root.limit_bytes(), root.max_bytes()), (10_000 * PAGE, 10_000 * PAGE));
        assert!(root.above_high_mark() && !root.try_charge(CPU, 1, 0), "it is taken back by reclaim");
    }

    #[test]
    fn what_is_lent_raises_the_maximum_only_where_that_is_needed() {
        let mut config = GroupConfig::root(10_000 * PAGE);
        config.high_bytes = 6_000 * PAGE;
        let groups = Groups::new(&[config]);
        let root = groups.root();
        assert!(root.try_charge(CPU, 7_000, 0) && root.above_high_mark());
        root.lend(2_000 * PAGE);
        assert!(!root.above_high_mark() && root.limit_bytes() == 10_000 * PAGE);
        root.lend(5_000 * PAGE);
        assert_eq!(root.limit_bytes(), 11_000 * PAGE);
    }

    #[test]
    fn swap_is_granted_as_far_as_it_goes() {
        let mut configs = [config("/", None, 1000), config("a", Some(0), 1000), config("b", Some(1), 1000)];
        configs[0].swap_max_pages = 100;
        configs[2].swap_max_pages = 70;
        let groups = Groups::new(&configs);
        let [root, a, b] = [0, 1, 2].map(|n| groups.all()[n].clone());
        assert_eq!((b.charge_swap(64), b.charge_swap(64), a.charge_swap(64)), (64, 6, 30));
        assert_eq!([&root, &a, &b].map(|g| g.swap_pages()), [Some(100), Some(100), Some(70)]);
        b.uncharge_swap(70);
        a.uncharge_swap(30);
        assert_eq!([&root, &a, &b].map(|g| g.swap_pages()), [Some(0); 3]);
        assert_eq!(b.events.swap_max.load(Ordering::Relaxed), 1);
        assert_eq!(Groups::new(&[config("/", None, 10)]).root().swap_pages(), None, "nobody asked");
    }

    #[test]
    fn a_group_swaps_to_devices_that_it_and_those_above_it_name() {
        let mut configs = [config("/", None, 9), config("a", Some(0), 9), config("b", Some(1), 9)];
        configs[1].swap_devices = vec!["file:*".into(), "ram:".into()];
        configs[2].swap_devices = vec!["*/fast".into()];
        let groups = Groups::new(&configs);
        let allowed = |place: usize| {
            ["ram:", "ram:zstd", "file:/fast", "nbd://h/fast"]
                .map(|name| groups.all()[place].may_swap_to(name))
        };
        assert_eq!(allowed(0), [true; 4]);
        assert_eq!(allowed(1), [true, false, true, false]);
        assert_eq!(allowed(2), [false, false, true, false]);
        assert!(!groups.root().names_devices() && groups.all()[2].names_devices());
    }

    #[test]
    fn high_starts_reclaim_and_stops_nobody() {
        let mut configs = [config("/", None, 1 << 20), config("a", Some(0), 1 << 20)];
        configs[1].high_bytes = 4096 * PAGE;
        let groups = Groups::new(&configs);
        let a = &groups.all()[1];
        assert!(a.try_charge(CPU, 5000, 0) && a.above_high_mark() && !groups.root().above_high_mark());
        assert_eq!(groups.pressed().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(a.try_charge(CPU, 5000, 0), "only reclaim minds");
    }
}
