//! Devices that are fragmented and nearly full from the start on, as those of a machine that has been up for
//! long: slots in use by what no task touches, and single free slots between them, here and there.
//!
//! ```text
//!   all slots had ─▶ shuffled ─▶ some given back: as many as our tasks need, and what is to stay free
//! ```
//!
//! Nothing is stored in these slots, so a device may be as large as it has to be for many trunks. What it
//! does not do: free slots in a row.

use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::slots::Slots;
use memspill_engine_sim::units::{CpuId, GroupId, Order, SlotIndex};
use memspill_vcpu::random::Random;

/// Slots of 64 MiB.
const TRUNK_SLOTS: u32 = 1 << 14;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragmented {
    /// The trunks of 64 MiB in each device.
    pub trunks: u32,
    /// How full each device is, with what our tasks have swapped out.
    pub full_percent: u64,
}

impl Fragmented {
    /// Devices that hold so many pages four times, besides what is in use.
    pub fn with_room_for(pages: u64, full_percent: u64) -> Fragmented {
        let trunks = (4 * pages).div_ceil(u64::from(TRUNK_SLOTS)).max(4) as u32;
        Fragmented { trunks, full_percent }
    }

    /// The slots of each device.
    pub fn slots(self) -> u32 {
        self.trunks * TRUNK_SLOTS
    }
}

/// What is in use, of each device.
pub struct Fragments(Vec<Vec<SlotIndex>>);

impl Fragments {
    /// `pages_out`: what our tasks have swapped out, on all devices together.
    pub fn make(how: Fragmented, seed: u64, pages_out: u64, engine: &Engine) -> Fragments {
        let mut random = Random::new(seed ^ 0xf4a6);
        let to_stay_free = u64::from(how.slots()) * (100 - how.full_percent) / 100;
        let devices = engine.devices().iter().count() as u64;
        let free = pages_out / devices + to_stay_free;
        let mut of_device = |slots: &Slots| {
            let mut used = Vec::with_capacity(how.slots() as usize);
            slots.alloc(CpuId(0), Order::ZERO, slots.all_slots() as usize, GroupId(0), &mut used);
            // The last ones of a shuffled list.
            for last in (used.len().saturating_sub(free as usize)..used.len()).rev() {
                used.swap(random.below(last as u64 + 1) as usize, last);
            }
            let mut given_back = used.split_off(used.len().saturating_sub(free as usize));
            given_back.sort_unstable();
            // In turns: each CPU has its share of the counters.
            for (cpu, run) in given_back.chunks(64).enumerate() {
                give_back(slots, CpuId(cpu as u32), run);
            }
            used
        };
        Fragments(engine.devices().iter().map(|device| of_device(&device.slots)).collect())
    }

    /// Gives back the slots that nobody refers to.
    pub fn give_back(self, engine: &Engine) {
        for (device, mut used) in engine.devices().iter().zip(self.0) {
            used.sort_unstable();
            give_back(&device.slots, CpuId(0), &used);
        }
    }
}

fn give_back(slots: &Slots, cpu: CpuId, used: &[SlotIndex]) {
    let mut dying = Vec::with_capacity(used.len());
    slots.put(used, &mut dying);
    slots.release(cpu, &dying);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceKind, Faults, SimDevice};
    use memspill_engine_sim::backing::Backing;
    use memspill_engine_sim::devices::Device;
    use memspill_engine_sim::tuning::Tuning;
    use memspill_vcpu::{self as vcpu, Machine, Waiting, World};
    use std::sync::Arc;

    #[test]
    fn what_is_free_is_single_slots_and_all_is_given_back() {
        let _world =
            World::install(&Machine { cpus_per_socket: 1, preemption: None, waiting: Waiting::Spins });
        let how = Fragmented { trunks: 1, full_percent: 95 };
        let backing: Arc<dyn Backing> =
            Arc::new(SimDevice::new(DeviceKind::RamDisk, how.slots(), Faults::default(), Arc::default()));
        let slots = Slots::new(how.slots(), 4, false, &Tuning::default());
        let device = Device::new("device".into(), 0, slots, vcpu::Arc::from_std(backing));
        let engine = Engine::new(vec![device], 1 << 30, Tuning::default());
        let fragments = Fragments::make(how, 7, 1000, &engine);
        let free = || engine.devices().iter().map(|device| device.slots.free_slots()).sum::<u64>();
        assert_eq!(free(), 1000 + u64::from(TRUNK_SLOTS) * 5 / 100);
        let block = |order| {
            let slots = &engine.devices().iter().next().expect("there is one").slots;
            let mut out = Vec::new();
            let got = slots.alloc(CpuId(0), Order(order), 1, GroupId(0), &mut out);
            give_back(slots, CpuId(0), &out);
            got
        };
        assert_eq!((block(0), block(4)), (1, 0), "a page finds a slot, and 64 KiB no row of them");
        fragments.give_back(&engine);
        assert_eq!(engine.used_slots(), 0);
        engine.check();
    }
}
