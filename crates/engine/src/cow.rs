//! Writes to pages that a fork has left shared (copy on write).
//!
//! Such a page becomes two when one of its owners writes to it. The kernel makes the copy by itself, and
//! where nothing is said of it a process grows without a fault, as fast as it can write. So a front end may
//! protect shared pages against writes, and ask here:
//!
//! ```text
//!   a write to a protected page ─▶ may_write ─┬─ room for it and what follows, or a part: it is written
//!                                             └─ none: it waits, as a fault without room does
//! ```
//!
//! The pages of both spaces are charged since the fork; that they are one page is the discount of a space
//! (`Space::set_discount`), which is measured now and then. So what is charged here is a smaller discount.
//! Room there must be in any case: a discount that was measured a while ago may be too small.
//!
//! What it does not do: protect, or know what is protected; look at page-table words (a page that has left
//! meanwhile comes back as the writer's own).

use crate::space::Space;
use crate::spaces::Spaces;
use crate::stats::add;
use crate::swap::Swap;
use crate::units::CpuId;

/// How many pages may be written now: as many as are wanted, or the part of them that there is room for; one
/// where it is `urgent`. 0: there is no room.
pub(crate) fn may_write(
    swap: &Swap,
    spaces: &Spaces,
    cpu: CpuId,
    space: &Space,
    wanted_pages: u64,
    urgent: bool,
) -> u64 {
    add(&swap.stats.on(cpu).cow_faults, 1);
    if urgent {
        note_own(swap, spaces, space, 1);
        return 1;
    }
    let group = space.group(swap);
    let mut pages = wanted_pages;
    while pages > 0 {
        // The last of the room is for pages that faults wait for.
        let reserve_bytes = if pages > 1 { group.gap_bytes() / 2 } else { 0 };
        if group.try_charge(cpu, pages, reserve_bytes) {
            note_own(swap, spaces, space, pages);
            group.uncharge(cpu, pages);
            return pages;
        }
        pages /= 2;
    }
    add(&swap.stats.on(cpu).allocstall, 1);
    0
}

/// `pages` pages that this space had in common with others are its own from now on: there is one more of
/// each. The rest, beyond its own part of the discount, is in the parts of those others. (If three spaces
/// have a page in common, each has two thirds of it.)
pub(crate) fn note_own(swap: &Swap, spaces: &Spaces, space: &Space, pages: u64) {
    let mut left = pages - space.drop_discount(swap, pages);
    if left == 0 {
        return;
    }
    for other in spaces.list().iter() {
        left -= other.drop_discount(swap, left);
        if left == 0 {
            return;
        }
    }
}

/// A space goes that had so much discounted. The pages it had in common with others are discounted there too,
/// and they are one fewer: as if all had the same in common, until that is measured.
pub(crate) fn note_gone(swap: &Swap, spaces: &Spaces, discount_pages: u64) {
    let list = spaces.list();
    let others: Vec<_> = list.iter().filter(|space| space.discount_pages() > 0).collect();
    let each = discount_pages / (others.len().max(1) as u64).pow(2);
    others.iter().for_each(|space| _ = space.drop_discount(swap, each));
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::sync::Arc;
    use crate::testing::blank::BlankMemory;
    use crate::tuning::Tuning;
    use crate::units::{PAGE_SIZE, SpaceId, Vpn};

    const CPU: CpuId = CpuId(0);

    /// A space with so many pages in memory, all of them shared, where so many fit.
    fn shared(pages: u64, fit: u64) -> (Engine, Arc<Space>) {
        let engine = Engine::new(Vec::new(), fit * PAGE_SIZE as u64, Tuning::default());
        let space = Arc::new(Space::new(SpaceId(1), Arc::new(BlankMemory)));
        engine.add_space(space.clone());
        space.adopt(engine.swap(), Vpn(0), Vpn(pages));
        space.set_discount(engine.swap(), pages);
        (engine, space)
    }

    fn engine_gap_pages() -> u64 {
        shared(0, 100).0.root().gap_bytes() / PAGE_SIZE as u64
    }

    fn used_pages(engine: &Engine) -> u64 {
        engine.root().usage_bytes() / PAGE_SIZE as u64
    }

    #[test]
    fn what_is_written_is_charged_and_no_more_than_there_is_room_for() {
        let reserve = engine_gap_pages() / 2;
        let (engine, space) = shared(200, 45 + reserve);
        assert_eq!(used_pages(&engine), 0);
        let may_write = |pages, urgent| engine.may_write(CPU, &space, pages, urgent);
        assert_eq!(may_write(32, false), 32);
        assert_eq!(used_pages(&engine), 32);
        assert_eq!(may_write(32, false), 8, "eight of 13 fit");
        assert_eq!(may_write(32, false), 4);
        for _ in 0..1 + reserve {
            assert_eq!(may_write(2, false), 1);
        }
        assert_eq!(used_pages(&engine), 45 + reserve);
        assert_eq!(may_write(1, false), 0);
        assert_eq!(engine.stats().sum(|c| &c.allocstall), 1);
        assert_eq!(may_write(32, true), 1, "whoever makes room");
        assert_eq!(engine.stats().sum(|c| &c.cow_faults), 6 + reserve);
    }

    #[test]
    fn of_several_who_share_all_count_less_in_the_end() {
        let (engine, space) = shared(96, 1000);
        let others: Vec<Arc<Space>> = (2..4)
            .map(|id| {
                let other = Arc::new(Space::new(SpaceId(id), Arc::new(BlankMemory)));
                engine.add_space(other.clone());
                other.adopt(engine.swap(), Vpn(0), Vpn(96));
                other
            })
            .collect();
        // As it is measured: each of three has two thirds of 96 pages discounted.
        let all = || std::iter::once(&space).chain(&others);
        all().for_each(|space| space.set_discount(engine.swap(), 64));
        assert_eq!(used_pages(&engine), 96);
        for _ in 0..3 {
            assert_eq!(engine.may_write(CPU, &space, 32, false), 32);
        }
        assert_eq!(used_pages(&engine), 2 * 96, "its own, and what the others have in common");
        all().for_each(|space| space.set_discount(engine.swap(), 64));
        space.release(engine.swap(), CPU);
        engine.remove_space(&space);
        engine.note_gone(64);
        assert_eq!(used_pages(&engine), 96, "two who share");
        others[0].release(engine.swap(), CPU);
        engine.remove_space(&others[0]);
        engine.note_gone(48);
        assert_eq!((used_pages(&engine), others[1].discount_pages()), (96, 0));
    }

    #[test]
    fn what_is_not_shared_any_more_needs_room_and_takes_none() {
        let reserve = engine_gap_pages() / 2;
        let (engine, space) = shared(64, 64 + 32 + reserve);
        space.set_discount(engine.swap(), 3);
        assert_eq!(used_pages(&engine), 61);
        for _ in 0..3 {
            assert_eq!(engine.may_write(CPU, &space, 32, false), 32);
            assert_eq!(used_pages(&engine), 64);
        }
    }
}
