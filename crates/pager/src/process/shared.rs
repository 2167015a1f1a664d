//! Where a process has managed shared memory mapped.
//!
//! Fillers of private memory ask here first: put at such an address, a page of zeros would become a page of
//! the object, for all who have it mapped. So the list must never lack a mapping that there is:
//!
//! * A mapping is put here before it is registered, and so before its first fault. If the registering then
//!   fails, or a fork may have come before it, it is taken off again: mappings that are here when nothing is
//!   under way are registered, and joiners of an object are known by that.
//! * A change whose event is not read makes the kernel refuse fills of private memory; when it is read,
//!   nobody else is inside the gate until this list is brought up to date (`faults/shared.rs`).
//!
//! A mapping that is here and not there any more does no harm: a fault on what came after it brings a page of
//! the object that nobody has asked for, and comes again. What it does not do: know objects, other than by
//! their keys.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Page numbers are the object's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    pub first_page: u64,
    /// The object's key among those of the run.
    pub object: u64,
}

#[derive(Default)]
pub struct SharedMappings {
    any: AtomicBool,
    /// It was read while something was changing: it is read again with the next event.
    doubtful: AtomicBool,
    list: RwLock<Vec<Mapped>>,
    /// Memory that it is about to map takes all of the limit until then.
    is_to_map: AtomicBool,
    /// Objects that were registered, and taken off the list again: children may have them registered, too.
    taken_off: RwLock<Vec<u64>>,
}

const PAGE: u64 = memspill_engine::units::PAGE_SIZE as u64;

impl SharedMappings {
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    pub fn set_doubtful(&self, doubtful: bool) {
        self.doubtful.store(doubtful, Ordering::Release);
    }

    /// It is not to wait for room: there is some once it has mapped what it has open. Returns whether that is
    /// new.
    pub fn set_to_map(&self, is_to_map: bool) -> bool {
        self.is_to_map.swap(is_to_map, Ordering::Relaxed) != is_to_map
    }

    pub fn is_to_map(&self) -> bool {
        self.is_to_map.load(Ordering::Relaxed)
    }

    pub fn list(&self) -> Vec<Mapped> {
        self.list.read().expect("shared mappings").clone()
    }

    pub fn set(&self, list: Vec<Mapped>) {
        let mut there = self.list.write().expect("shared mappings");
        self.any.store(!list.is_empty(), Ordering::Release);
        *there = list;
    }

    /// Sets the mappings of one object: these and no others.
    pub fn set_of(&self, object: u64, mappings: &[Mapped]) {
        let others = self.list().into_iter().filter(|mapped| mapped.object != object);
        self.set(others.chain(mappings.iter().copied()).collect());
    }

    /// In a child: all is as in its parent.
    pub fn inherit(&self, parent: &SharedMappings) {
        self.set(parent.list());
        *self.taken_off.write().expect("shared mappings") =
            parent.taken_off.read().expect("shared mappings").clone();
    }

    /// From now on, and in children, this object may be registered and not be in the list; or it is not so
    /// any more.
    pub fn set_may_lack(&self, object: u64, may_lack: bool) {
        let mut taken_off = self.taken_off.write().expect("shared mappings");
        taken_off.retain(|other| *other != object);
        if may_lack {
            taken_off.push(object);
        }
    }

    /// May the object be mapped and registered here, though the list lacks it?
    pub fn may_lack(&self, object: u64) -> bool {
        self.taken_off.read().expect("shared mappings").contains(&object) && self.of(object).is_empty()
    }

    pub fn of(&self, object: u64) -> Vec<Mapped> {
        self.list().into_iter().filter(|mapped| mapped.object == object).collect()
    }

    /// The object's key, and the number of its page.
    pub fn find(&self, addr: u64) -> Option<(u64, u64)> {
        if !self.any() {
            return None;
        }
        let list = self.list.read().expect("shared mappings");
        let mapped = list.iter().find(|mapped| (mapped.start..mapped.end).contains(&addr))?;
        Some((mapped.object, mapped.first_page + (addr - mapped.start) / PAGE))
    }

    /// Does any of [start, end) lie in one?
    pub fn intersects(&self, start: u64, end: u64) -> bool {
        self.any()
            && self.list.read().expect("shared mappings").iter().any(|m| m.start < end && start < m.end)
    }

    /// What of objects lies in [start, end): key, first page, and the page behind the last.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64, u64)> {
        let piece = |m: &Mapped| {
            let (from, to) = (m.start.max(start), m.end.min(end));
            let page = |addr| m.first_page + (addr - m.start) / PAGE;
            (from < to).then(|| (m.object, page(from), page(to)))
        };
        self.list.read().expect("shared mappings").iter().filter_map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_may_lack_what_its_parent_has_taken_off() {
        let (parent, child) = (SharedMappings::default(), SharedMappings::default());
        let mapped = [Mapped { start: 0x5000, end: 0x8000, first_page: 0, object: 1 }];
        parent.set_may_lack(1, true);
        parent.set_of(1, &mapped);
        assert!(!parent.may_lack(1));
        parent.set_of(1, &[]);
        child.inherit(&parent);
        parent.set_of(1, &mapped);
        parent.set_may_lack(1, false);
        assert!(child.may_lack(1) && !child.may_lack(2) && !parent.may_lack(1));
        child.set_of(1, &mapped);
        assert!(!child.may_lack(1));
    }

    #[test]
    fn an_address_is_a_page_of_an_object() {
        let mappings = SharedMappings::default();
        assert!(mappings.find(0x5000).is_none() && !mappings.intersects(0, u64::MAX));
        let a = Mapped { start: 0x5000, end: 0x8000, first_page: 10, object: 1 };
        let b = Mapped { start: 0x9000, end: 0xa000, first_page: 0, object: 2 };
        mappings.set(vec![a, b]);
        assert_eq!((mappings.find(0x6abc), mappings.find(0x8000)), (Some((1, 11)), None));
        assert!(mappings.intersects(0x7fff, 0x9000) && !mappings.intersects(0x8000, 0x9000));
        assert_eq!(mappings.within(0x6000, 0x9fff + 1), [(1, 11, 13), (2, 0, 1)]);
        mappings.set_of(1, &[]);
        assert_eq!((mappings.of(1), mappings.of(2)), (vec![], vec![b]));
    }
}
