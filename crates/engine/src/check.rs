//! The checker: walks page tables, slots, frames and the account, and panics at the first disagreement.
//!
//! For quiet points: no thread is inside the engine. Reads may be in flight and fills put off: their pages
//! are FILLING, charged, and hold the references to their slots; so are pages that are read ahead, which no
//! word tells of. A swapoff may be between two steps: it says what it holds. A batch is complete before its
//! thread leaves, so nothing is EVICTING.

use crate::engine::Engine;
use crate::frames::CachedPage;
use crate::space::Space;
use crate::sync::Arc;
use crate::units::GroupId;
use crate::word::{CANCELLED, State, SwapEntry, Word};
use std::collections::HashMap;

/// References to each slot, by the page tables.
type References = HashMap<SwapEntry, u32>;

impl Engine {
    /// Compare all tables with each other. To be called at a quiet point (see the module's header).
    pub fn check(&self) {
        let mut references = References::new();
        let charged: Vec<(Arc<Space>, u64)> = self
            .spaces
            .with_leaving()
            .into_iter()
            .map(|space| {
                let pages = check_space(&space, &mut references);
                (space, pages)
            })
            .collect();
        let mut ahead: HashMap<GroupId, u64> = HashMap::new();
        self.swap.ahead.each(|frame, page| {
            *ahead.entry(page.owner).or_default() += 1;
            let there = self.swap.device(page.entry).slots.frame(page.entry.slot);
            assert_eq!(there, Some(frame), "{:?} was read ahead, and the swap cache has", page.entry);
        });
        let cached: u64 = self.swap.devices.iter().map(|device| device.slots.read_ahead_pages()).sum();
        assert_eq!(cached, ahead.values().sum(), "pages read ahead that the slots know, and that there are");
        self.reads.each(|job| {
            for held in &job.ahead.slots {
                *ahead.entry(held.owner).or_default() += 1;
                let entry = SwapEntry { device: job.pages[0].device(), slot: held.slot };
                *references.entry(entry).or_default() += 1;
            }
        });
        for group in self.swap.groups.all() {
            let within = charged.iter().filter(|(space, _)| space.group(&self.swap).is_within(group));
            let pages: u64 = within.map(|(_, pages)| pages).sum();
            let owns = |owner: &GroupId| self.swap.groups.by_id(*owner).is_within(group);
            let ahead: u64 = ahead.iter().filter(|(owner, _)| owns(owner)).map(|(_, pages)| pages).sum();
            let name = &group.name;
            assert_eq!(
                pages + ahead,
                self.swap.groups.charged_pages(group),
                "group {name}: pages in page tables and read ahead, and pages charged"
            );
        }
        self.check_swap_charges();
        for entry in self.swapoff.held() {
            *references.entry(entry).or_default() += 1;
        }
        self.check_references(&references);
        for device in self.swap.devices.iter() {
            device.slots.check();
        }
    }

    /// Each group is charged for the slots that it and the groups below it own.
    fn check_swap_charges(&self) {
        let mut owned: HashMap<GroupId, u64> = HashMap::new();
        for device in self.swap.devices.iter() {
            for (group, slots) in device.slots.slots_by_group() {
                *owned.entry(group).or_default() += slots;
            }
        }
        for group in self.swap.groups.all() {
            let below = self.swap.groups.all().iter().filter(|other| other.is_within(group));
            let slots: u64 = below.filter_map(|other| owned.get(&other.id)).sum();
            let Some(charged) = group.swap_pages() else { continue };
            assert_eq!(slots, charged, "group {}: slots that it owns, and slots charged", group.name);
        }
    }

    /// The count of each slot is the number of references that the page tables and a swapoff hold. A slot is
    /// in use without a reference only if its page went away while it waited in the swap cache to be written
    /// again.
    fn check_references(&self, references: &References) {
        for (entry, held) in references {
            let counted = self.swap.device(*entry).slots.count(entry.slot);
            assert_eq!(*held, counted, "{entry:?}: references that are known, and its count");
        }
        let unwritten: Vec<CachedPage> = self.swap.unwritten.pages();
        let orphans = unwritten.iter().filter(|p| !references.contains_key(&p.entry)).count();
        let used = self.used_slots();
        assert_eq!((references.len() + orphans) as u64, used, "slots that are referred to, and slots in use");
        assert_eq!(
            unwritten.len(),
            self.swap.frames.in_use(),
            "pages that wait to be written, and frames in use"
        );
    }
}

/// Returns the pages of the space that are charged.
fn check_space(space: &Space, references: &mut References) -> u64 {
    let (mut resident, mut swapped) = (0, 0);
    space.visit_all_words(|vpn, word: Word| {
        match word.state() {
            State::None | State::Poisoned => {}
            State::Resident | State::Filling => resident += 1,
            State::Swapped => swapped += 1,
            State::Evicting => {
                panic!("space {:?}: page {vpn:?} is EVICTING, and no batch is under way", space.id)
            }
        }
        if let Some(entry) = word.held_entry() {
            *references.entry(entry).or_default() += 1;
        }
    });
    for vpn in space.displaced_pages() {
        let word = space.word(vpn);
        let waits = word.state() == State::Filling && word.has(CANCELLED);
        assert!(
            waits,
            "space {:?}: a page waits to be put at {vpn:?}, for a filler that is not there: {word:?}",
            space.id
        );
    }
    assert_eq!(resident, space.resident_pages(), "space {:?}: resident pages, and their count", space.id);
    assert_eq!(swapped, space.swapped_pages(), "space {:?}: swapped pages, and their count", space.id);
    resident
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use crate::backing::QueueId;
    use crate::devices::Device;
    use crate::engine::Engine;
    use crate::fill::{Fault, Scratch};
    use crate::slots::Slots;
    use crate::space::Space;
    use crate::sync::Arc;
    use crate::testing::blank::{BlankDevice, BlankMemory};
    use crate::tuning::Tuning;
    use crate::units::{CpuId, Order, SpaceId, Vpn};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// An engine with one space, some of whose pages are out and forked.
    fn engine() -> (Engine, Arc<Space>) {
        let tuning = Tuning::default();
        let slots = Slots::new(4096, 1, false, &tuning);
        let device = Device::new("test".into(), 0, slots, Arc::new(BlankDevice::new(4096)));
        let engine = Engine::new(vec![device], 64 << 20, tuning);
        let space = |id| Arc::new(Space::new(SpaceId(id), Arc::new(BlankMemory)));
        let (parent, child) = (space(1), space(2));
        engine.add_space(parent.clone());
        let mut scratch = Scratch::default();
        for page in 0..100 {
            let fault = Fault { vpn: Vpn(page), write: true, urgent: false, favoured: false };
            engine.fault(CpuId(0), QueueId(0), &parent, fault, &mut scratch);
        }
        let (_, batch) = engine.shrink(CpuId(0), &parent, 40);
        engine.write_out(CpuId(0), QueueId(0), batch.expect("pages were taken"));
        parent.fork_into(&engine.swap, CpuId(0), &child);
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
        parent.release(&engine.swap, CpuId(0));
        engine.remove_space(&parent);
        engine.check();
    }

    #[test]
    fn what_does_not_agree_is_found() {
        let (engine, _) = engine();
        engine.root().force_charge(CpuId(0), 1);
        assert!(broken(&engine), "a page too many is charged");
        engine.root().uncharge(CpuId(0), 1);
        engine.check();
        let mut out = Vec::new();
        engine.swap.alloc(CpuId(0), engine.root(), Order::ZERO, 1, &mut out);
        assert!(broken(&engine), "a slot is in use that nobody refers to");
        engine.swap.free(CpuId(0), &out);
        engine.check();
        let entry = engine.spaces()[0].word(Vpn(0)).held_entry().expect("the oldest page is out");
        engine.swap.dup(&[entry]);
        assert!(broken(&engine), "a slot has a reference too many");
    }
}
