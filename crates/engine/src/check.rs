//! The checker: walks page tables, slots, staging and the account, and panics with the first thing that does not agree.
//!
//! For quiet points: no thread is inside the engine. Reads may be in flight and fills put off: their pages are FILLING,
//! charged, and hold the references to their slots. A swapoff may be between two steps: it says what it holds. A batch is complete before its thread leaves, so nothing is EVICTING.

use crate::engine::Engine;
use crate::space::Space;
use crate::swapoff::Swapoff;
use crate::sync::{Arc, lock};
use crate::units::GroupId;
use crate::word::{CANCELLED, State, SwapEntry, Word};
use std::collections::HashMap;

/// References to each slot, by the page tables.
type References = HashMap<SwapEntry, u32>;

impl Engine {
    /// See the module's header.
    pub fn check(&self) {
        let mut references = References::new();
        let charged: Vec<(Arc<Space>, u64)> = self
            .all_spaces()
            .into_iter()
            .map(|space| {
                let pages = check_space(&space, &mut references);
                (space, pages)
            })
            .collect();
        for group in self.groups.all() {
            let within = charged.iter().filter(|(space, _)| space.group(self).is_within(group));
            let pages: u64 = within.map(|(_, pages)| pages).sum();
            let name = &group.name;
            assert_eq!(pages, self.groups.charged_pages(group), "group {name}: pages in page tables, and pages charged");
        }
        self.check_swap_charges();
        for entry in lock(&self.swapoff).iter().flat_map(Swapoff::held) {
            *references.entry(entry).or_default() += 1;
        }
        self.check_references(&references);
        for device in self.devices.iter() {
            device.slots.check();
        }
    }

    /// Each group has the slots that the cgroup map says are its, and of the groups below it.
    fn check_swap_charges(&self) {
        let mut owned: HashMap<GroupId, u64> = HashMap::new();
        for device in self.devices.iter() {
            for (group, slots) in device.slots.slots_by_group() {
                *owned.entry(group).or_default() += slots;
            }
        }
        for group in self.groups.all() {
            let below = self.groups.all().iter().filter(|other| other.is_within(group));
            let slots: u64 = below.filter_map(|other| owned.get(&other.id)).sum();
            let Some(charged) = group.swap_pages() else { continue };
            assert_eq!(slots, charged, "group {}: slots that it owns, and slots charged", group.name);
        }
    }

    /// Each slot has the references that the page tables and a swapoff hold, and no slot is in use without one; except those
    /// whose page went while it waited in the swap cache to be written again.
    fn check_references(&self, references: &References) {
        for (entry, held) in references {
            let counted = self.devices[entry.device as usize].slots.count(entry.slot);
            assert_eq!(*held, counted, "{entry:?}: references that are known, and its count");
        }
        let unwritten: Vec<SwapEntry> = lock(&self.unwritten).iter().map(|(entry, _)| *entry).collect();
        let orphans = unwritten.iter().filter(|entry| !references.contains_key(entry)).count();
        let used = self.used_slots();
        assert_eq!((references.len() + orphans) as u64, used, "slots that are referred to, and slots in use");
        assert_eq!(unwritten.len(), self.staging.frames(), "pages that wait to be written, and frames in staging");
    }
}

/// Returns the pages of the space that are charged.
fn check_space(space: &Space, references: &mut References) -> u64 {
    let (mut resident, mut swapped) = (0, 0);
    space.each_word(|vpn, word: Word| {
        match word.state() {
            State::None | State::Poisoned => {}
            State::Resident | State::Filling => resident += 1,
            State::Swapped => swapped += 1,
            State::Evicting => panic!("space {:?}: page {vpn:?} is EVICTING, and no batch is under way", space.id),
        }
        if let Some(entry) = word.held_entry() {
            *references.entry(entry).or_default() += 1;
        }
    });
    let displaced: Vec<_> = lock(&space.displaced).keys().copied().collect();
    for vpn in displaced {
        let word = space.word(vpn);
        let waits = word.state() == State::Filling && word.has(CANCELLED);
        assert!(waits, "space {:?}: a page waits to be put at {vpn:?}, for a filler that is not there: {word:?}", space.id);
    }
    assert_eq!(resident, space.resident_pages(), "space {:?}: resident pages, and their count", space.id);
    assert_eq!(swapped, space.swapped_pages(), "space {:?}: swapped pages, and their count", space.id);
    resident
}

/// For tests that look at no bytes.
#[cfg(all(test, not(any(loom, simulated))))]
pub(crate) fn test_backing() -> crate::sync::Arc<dyn crate::backing::Backing> {
    crate::sync::Arc::new(tests::memory_backing::InMemory)
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use crate::backing::QueueId;
    use crate::engine::{Device, Engine};
    use crate::memory::{Fill, Memory, Run, Stop, Take};
    use crate::slots::SwapDevice;
    use crate::space::Space;
    use crate::swap_in::{Fault, Scratch};
    use crate::sync::Arc;
    use crate::tuning::Tuning;
    use crate::units::{CpuId, Order, Page, SpaceId, Vpn};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Pages that all hold the same bytes.
    struct Sevens;
    impl Memory for Sevens {
        fn take(&self, runs: &[Run], frames: &mut [Page], outcome: &mut Vec<Take>) {
            let pages = runs.iter().map(|r| r.pages as usize).sum();
            frames[..pages].iter_mut().for_each(|frame| frame.0.fill(7));
            outcome.resize(outcome.len() + pages, Take::Moved);
        }
        fn put(&self, _vpn: Vpn, pages: &[Page]) -> Fill {
            Fill { pages: pages.len(), stop: Stop::Done }
        }
        fn put_zero(&self, _vpn: Vpn, pages: usize, _write: bool) -> Fill {
            Fill { pages, stop: Stop::Done }
        }
        fn poison(&self, _vpn: Vpn) {}
        fn wake(&self, _vpn: Vpn, _pages: usize) {}
    }

    /// An engine with one space, some of whose pages are out and forked.
    fn engine() -> (Engine, Arc<Space>) {
        let tuning = Tuning::default();
        let slots = SwapDevice::new(4096, 1, false, &tuning);
        let device = Device::new("test".into(), 0, slots, Arc::new(memory_backing::InMemory));
        let engine = Engine::new(vec![device], 64 << 20, tuning);
        let space = |id| Arc::new(Space::new(SpaceId(id), Arc::new(Sevens)));
        let (parent, child) = (space(1), space(2));
        engine.add_space(parent.clone());
        let mut scratch = Scratch::default();
        for page in 0..100 {
            let fault = Fault { vpn: Vpn(page), write: true, urgent: false, favoured: false };
            engine.fault(CpuId(0), QueueId(0), &parent, fault, &mut scratch);
        }
        let (_, batch) = engine.shrink(CpuId(0), &parent, 40);
        engine.write_out(CpuId(0), QueueId(0), batch.expect("pages were taken"));
        parent.fork_into(&engine, CpuId(0), &child);
        engine.add_space(child);
        (engine, parent)
    }

    fn broken(engine: &Engine) -> bool {
        catch_unwind(AssertUnwindSafe(|| engine.check())).is_err()
    }

    #[test]
    fn a_sound_engine_passes() {
        let (engine, parent) = engine();
        engine.check();
        parent.release(&engine, CpuId(0));
        engine.remove_space(&parent);
        engine.check();
    }

    #[test]
    fn what_does_not_agree_is_found() {
        let (engine, _) = engine();
        engine.group.force_charge(CpuId(0), 1);
        assert!(broken(&engine), "a page too many is charged");
        engine.group.uncharge(CpuId(0), 1);
        engine.check();
        let mut out = Vec::new();
        engine.alloc_slots(CpuId(0), &engine.group, Order::ZERO, 1, &mut out);
        assert!(broken(&engine), "a slot is in use that nobody refers to");
        engine.free_entries(CpuId(0), &out);
        engine.check();
        let entry = engine.spaces()[0].word(Vpn(0)).held_entry().expect("the oldest page is out");
        engine.dup_entries(&[entry]);
        assert!(broken(&engine), "a slot has a reference too many");
    }

    pub(super) mod memory_backing {
        use crate::backing::*;
        use crate::units::SlotIndex;

        /// Takes everything; nothing is read back here.
        #[derive(Default)]
        pub struct InMemory;
        impl Backing for InMemory {
            fn properties(&self) -> Properties {
                Properties { slots: 4096, synchronous: true, rotational: false, discard: false }
            }
            fn write(&self, _: QueueId, pages: &[PageWrite<'_>], results: &mut Vec<Result<(), BackingError>>) {
                results.resize(results.len() + pages.len(), Ok(()));
            }
            fn read(&self, _: QueueId, _: ReadRequest) -> ReadStart {
                unreachable!("these tests read nothing back")
            }
            fn reap(&self, _: QueueId, _: &mut Vec<ReadDone>) {}
            fn poll_fd(&self, _: QueueId) -> Option<i32> {
                None
            }
            fn discard(&self, _: &[SlotIndex]) {}
            fn maintain(&self, _: QueueId) -> bool {
                false
            }
            fn set_ram_limit_bytes(&self, _: u64) {}
            fn usage(&self) -> Usage {
                Usage::default()
            }
        }
    }
}
