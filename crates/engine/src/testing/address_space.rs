//! An address space made of a map: what is present, what each page must read as, and the events of its
//! changes.
//!
//! A page is one stamp (stamp.rs). The stamp that a page must read as is kept beside the one it holds, so
//! that every touch checks it. As the kernel does, it refuses fills and moves while an event is unread, moves
//! from the read of an event to the end of its processing, and fills over a page that is present.
//!
//! What it does not do: lock, wait, wake. Its owner does.

use crate::memory::{Fill, Stop, Take};
use std::collections::{BTreeMap, VecDeque};

/// A change of the address space, as a userfaultfd tells it.
pub enum Event<Child> {
    Unmap {
        from: u64,
        to: u64,
    },
    /// The pages are dropped after the event was read.
    Remove {
        from: u64,
        to: u64,
    },
    Remap {
        from: u64,
        to: u64,
        pages: u64,
    },
    Fork {
        child: Child,
    },
}

/// What an access met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Done,
    /// The caller waits now, until a fill or a wake.
    Missing,
    /// SIGBUS, and rightly so: the page's only copy could not be read.
    Lost,
    /// SIGSEGV, or a range that is just being dropped.
    NotMapped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Absent,
    Stamp(u64),
    Poisoned,
}

/// A page that is mapped.
#[derive(Clone, Copy)]
struct PageState {
    content: Content,
    /// What it must read as.
    truth: u64,
}

pub struct AddressSpace<Child> {
    pages: BTreeMap<u64, PageState>,
    events: VecDeque<Event<Child>>,
    /// From the read of an event to the end of its processing: no page may be taken.
    abort: bool,
    dead: bool,
}

impl<Child> Default for AddressSpace<Child> {
    /// Nothing is mapped.
    fn default() -> AddressSpace<Child> {
        AddressSpace { pages: BTreeMap::new(), events: VecDeque::new(), abort: false, dead: false }
    }
}

impl<Child> AddressSpace<Child> {
    // ---- what the process does ----

    /// Access a page: check what it reads as, and store `write` if given. `was_lost`: has a read of this
    /// stamp failed?
    pub fn touch(&mut self, page: u64, write: Option<u64>, was_lost: impl Fn(u64) -> bool) -> Touch {
        let Some(state) = self.pages.get_mut(&page) else { return Touch::NotMapped };
        match state.content {
            Content::Stamp(stamp) => {
                assert_eq!(stamp, state.truth, "page {page:#x} reads as another one, or an older one");
                if let Some(stamp) = write {
                    *state = PageState { content: Content::Stamp(stamp), truth: stamp };
                }
                Touch::Done
            }
            Content::Poisoned => {
                assert!(was_lost(state.truth), "page {page:#x} is poisoned, but no read of it has failed");
                Touch::Lost
            }
            Content::Absent => Touch::Missing,
        }
    }

    /// Map what is not mapped yet of the range, as zero.
    pub fn map(&mut self, from: u64, to: u64) {
        for page in from..to {
            self.pages.entry(page).or_insert(PageState { content: Content::Absent, truth: 0 });
        }
    }

    pub fn is_mapped(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// A page that is mapped and not in memory is there, before anybody manages it.
    pub fn make_present(&mut self, page: u64, stamp: impl FnOnce() -> u64) {
        if let Some(state) = self.pages.get_mut(&page).filter(|state| state.content == Content::Absent) {
            let truth = stamp();
            *state = PageState { content: Content::Stamp(truth), truth };
        }
    }

    /// A page that was there before anybody managed it, unless one is mapped there.
    pub fn map_present(&mut self, page: u64, stamp: impl FnOnce() -> u64) {
        self.pages.entry(page).or_insert_with(|| {
            let truth = stamp();
            PageState { content: Content::Stamp(truth), truth }
        });
    }

    pub fn unmap(&mut self, from: u64, to: u64) {
        self.drop_range(from, to);
        self.events.push_back(Event::Unmap { from, to });
    }

    /// MADV_DONTNEED. The pages go by `zero`, after the event was read.
    pub fn remove(&mut self, from: u64, to: u64) {
        self.events.push_back(Event::Remove { from, to });
    }

    /// The mapped part of the range is gone, and reads as zero.
    pub fn zero(&mut self, from: u64, to: u64) {
        let zero = PageState { content: Content::Absent, truth: 0 };
        self.pages.range_mut(from..to).for_each(|(_, state)| *state = zero);
    }

    /// The kernel drops a page without an event (a lazily freed one): it reads as zero.
    pub fn vanish(&mut self, page: u64) {
        if self.pages.get(&page).is_some_and(|state| matches!(state.content, Content::Stamp(_))) {
            self.zero(page, page + 1);
        }
    }

    /// mremap to a fixed place that does not overlap. `early`, `late`: the events of the unmapped target and
    /// source ranges come too.
    pub fn remap(&mut self, from: u64, to: u64, pages: u64, early: bool, late: bool) {
        self.drop_range(to, to + pages);
        for i in 0..pages {
            if let Some(state) = self.pages.remove(&(from + i)) {
                self.pages.insert(to + i, state);
            }
        }
        if early {
            self.events.push_back(Event::Unmap { from: to, to: to + pages });
        }
        self.events.push_back(Event::Remap { from, to, pages });
        if late {
            self.events.push_back(Event::Unmap { from, to: from + pages });
        }
    }

    /// The memory that a child has from the start.
    pub fn copy(&self) -> AddressSpace<Child> {
        AddressSpace { pages: self.pages.clone(), ..AddressSpace::default() }
    }
    pub fn tell_fork(&mut self, child: Child) {
        self.events.push_back(Event::Fork { child });
    }

    /// The process ends.
    pub fn exit(&mut self) {
        *self = AddressSpace { dead: true, ..AddressSpace::default() };
    }

    fn drop_range(&mut self, from: u64, to: u64) {
        (from..to).for_each(|page| _ = self.pages.remove(&page));
    }

    // ---- what the pager reads ----

    /// Read all events; no page is given until `end_events` if there was one.
    pub fn read_events(&mut self) -> Vec<Event<Child>> {
        let events: Vec<Event<Child>> = self.events.drain(..).collect();
        self.abort |= !events.is_empty();
        events
    }
    pub fn end_events(&mut self) {
        self.abort = false;
    }
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }
    pub fn has_remove(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Remove { .. }))
    }
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    // ---- what the engine does ----

    /// Take a page out, unless `refusal` says why not.
    pub fn take(&mut self, page: u64, refusal: impl FnOnce() -> Option<Take>) -> Result<u64, Take> {
        if self.dead {
            return Err(Take::Gone);
        }
        if self.abort || !self.events.is_empty() {
            return Err(Take::Retry);
        }
        let Some(state) = self.pages.get_mut(&page) else { return Err(Take::Hole) };
        match state.content {
            Content::Absent => Err(Take::Hole),
            Content::Poisoned => Err(Take::Unevictable),
            Content::Stamp(stamp) => match refusal() {
                Some(refusal) => Err(refusal),
                None => {
                    state.content = Content::Absent;
                    Ok(stamp)
                }
            },
        }
    }

    /// Fill pages in a row. `stop`: end with this after so many pages.
    pub fn fill(
        &mut self,
        from: u64,
        stamps: impl ExactSizeIterator<Item = u64>,
        stop: Option<(usize, Stop)>,
    ) -> Fill {
        let pages = stamps.len();
        for (i, stamp) in stamps.enumerate() {
            let state = self.pages.get_mut(&(from + i as u64));
            let stop = match (stop, &state) {
                _ if self.dead => Some(Stop::Gone),
                _ if !self.events.is_empty() => Some(Stop::Again),
                (Some((after, stop)), _) if i == after => Some(stop),
                (_, None) => Some(Stop::NotMapped),
                (_, Some(PageState { content: Content::Absent, .. })) => None,
                _ => Some(Stop::Exists),
            };
            match (stop, state) {
                (None, Some(state)) => state.content = Content::Stamp(stamp),
                (stop, _) => return Fill { pages: i, stop: stop.unwrap_or(Stop::NotMapped) },
            }
        }
        Fill { pages, stop: Stop::Done }
    }

    pub fn poison(&mut self, page: u64) {
        if !self.dead
            && self.events.is_empty()
            && let Some(state) = self.pages.get_mut(&page)
            && state.content == Content::Absent
        {
            state.content = Content::Poisoned;
        }
    }

    // ---- what a test looks at ----

    pub fn mapped(&self) -> Vec<u64> {
        self.pages.keys().copied().collect()
    }
    /// What the page must read as.
    pub fn truth(&self, page: u64) -> Option<u64> {
        self.pages.get(&page).map(|state| state.truth)
    }
    /// Pages of the range that a scan of the page table would find.
    pub fn present(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        let pages = self.pages.range(from..to);
        pages.filter(|(_, state)| matches!(state.content, Content::Stamp(_))).map(|(page, _)| *page)
    }
}
