//! The address spaces of a run, and which of them gives the next batch.
//!
//! Spaces give pages in proportion to what they have resident (reclaim/turn.rs). So reclaim presses all
//! alike, and idle spaces become empty, because their pages do not come back.
//!
//! What it does not do: choose pages (reclaim/victim.rs), or say when reclaim works (group.rs).

use crate::group::Group;
use crate::space::Space;
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, RwLock, lock};

/// Where there are at least twice as many spaces, a search looks at this many of them.
const PICKED_FROM: usize = 8;

pub(crate) struct Spaces {
    /// Replaced as a whole, so that a batch can walk the list without a reference to each space.
    list: RwLock<Arc<Vec<Arc<Space>>>>,
    /// Removed, with fills still under way, whose pages are charged until they end.
    leaving: Mutex<Vec<Arc<Space>>>,
    /// Where the next search for a space to take pages from begins.
    next_pick: AtomicU32,
}

impl Spaces {
    pub fn new() -> Spaces {
        Spaces {
            list: RwLock::new(Arc::new(Vec::new())),
            leaving: Mutex::new(Vec::new()),
            next_pick: AtomicU32::new(0),
        }
    }

    pub fn add(&self, space: Arc<Space>) {
        let mut list = self.list.write().expect("spaces");
        let with = list.iter().cloned().chain(std::iter::once(space)).collect();
        *list = Arc::new(with);
    }

    pub fn remove(&self, space: &Arc<Space>) {
        let mut list = self.list.write().expect("spaces");
        let without = list.iter().filter(|s| !Arc::ptr_eq(s, space)).cloned().collect();
        *list = Arc::new(without);
        drop(list);
        let mut leaving = lock(&self.leaving);
        leaving.push(space.clone());
        leaving.retain(|s| s.resident_pages() > 0);
    }

    /// As they are now, without a reference to each.
    pub fn list(&self) -> Arc<Vec<Arc<Space>>> {
        self.list.read().expect("spaces").clone()
    }

    /// The same, a reference to each.
    pub fn to_vec(&self) -> Vec<Arc<Space>> {
        self.list().to_vec()
    }

    /// Those too that were removed and have fills under way.
    pub fn with_leaving(&self) -> Vec<Arc<Space>> {
        let mut all = self.to_vec();
        all.extend(lock(&self.leaving).iter().cloned());
        all
    }

    /// The bytes of page tables, and of queues.
    pub fn table_bytes(&self) -> (u64, u64) {
        let list = self.list.read().expect("spaces");
        list.iter().map(|s| s.table_bytes()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    // ---- which of them gives the next batch ---------------------------------------------------------------

    /// The space that gives the next batch, of the deepest group that is pressed and has one.
    pub fn pick(&self, swap: &Swap) -> Option<Arc<Space>> {
        let spaces = self.list();
        // Spaces of groups that may have no more swap come last. When one of them is picked, its batch notes
        // that swap is full, and that is right only if no other space can give a page; one that gave nothing
        // just now may a moment later.
        let may_later = |s: &Arc<Space>| {
            s.rests() && s.may_be_asked() && swap.gives_swap(s.group(swap)) && s.evictable() > 0
        };
        let picked = self.pick_for_pressed(swap, &spaces, true).or_else(|| {
            if spaces.iter().any(may_later) { None } else { self.pick_for_pressed(swap, &spaces, false) }
        });
        if picked.is_none() {
            swap.groups.drain_stocks();
        }
        let (group, picked) = picked?;
        if group.high_bytes() < group.limit_bytes() {
            add(&group.events.high, 1);
        }
        Some(picked)
    }

    fn pick_for_pressed<'a>(
        &self,
        swap: &'a Swap,
        spaces: &[Arc<Space>],
        with_swap: bool,
    ) -> Option<(&'a Arc<Group>, Arc<Space>)> {
        let mut pressed = swap.groups.pressed();
        // If no group is pressed, the caller still wants room: then the root, that is, any space of the run.
        let first = pressed.next().unwrap_or(swap.root());
        std::iter::once(first).chain(pressed).find_map(|group| {
            let picked = match self.some_of(spaces) {
                Some(some) => {
                    pick_in(swap, group, some, with_swap).or_else(|| pick_in(swap, group, spaces, with_swap))
                }
                None => pick_in(swap, group, spaces, with_swap),
            };
            Some((group, picked?))
        })
    }

    /// A part of many spaces, and the next part at the next search: else all reclaimers would find the same
    /// space at once, and wait for each other.
    fn some_of<'a>(&self, spaces: &'a [Arc<Space>]) -> Option<&'a [Arc<Space>]> {
        let parts = spaces.len() / PICKED_FROM;
        if parts < 2 {
            return None;
        }
        let part = self.next_pick.fetch_add(1, Ordering::Relaxed) as usize % parts;
        let end = if part + 1 == parts { spaces.len() } else { (part + 1) * PICKED_FROM };
        Some(&spaces[part * PICKED_FROM..end])
    }
}

fn pick_in(swap: &Swap, group: &Group, spaces: &[Arc<Space>], with_swap: bool) -> Option<Arc<Space>> {
    let may_give = |s: &&Arc<Space>| {
        let of = s.group(swap);
        s.may_be_asked() && !s.rests() && of.is_within(group) && swap.gives_swap(of) == with_swap
    };
    let mut candidates: Vec<(f64, &Arc<Space>)> =
        spaces.iter().filter(may_give).map(|s| (s.pass(), s)).collect();
    loop {
        let (n, (_, picked)) = candidates.iter().enumerate().min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0))?;
        // Asked only of the one that was picked: it takes the lock of the LRU, and with many processes each
        // batch would take all of those.
        if picked.evictable() > 0 {
            // Charged before its victims are known, so that the next search picks another space instead of
            // waiting for this one.
            picked.charge_pick();
            return Some((*picked).clone());
        }
        candidates.swap_remove(n);
    }
}
