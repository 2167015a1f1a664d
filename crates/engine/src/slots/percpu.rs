//! Where each CPU allocated last, for each order.
//!
//! ```text
//!   cpu 0   order 0 → slot 1088    order 4 → slot 5136   ...
//!   cpu 1   order 0 → slot 2560    order 4 → -           ...     one cache line or two per CPU
//! ```
//!
//! A hint is the slot at which the next search starts; it names the cluster too. 0 is "none", which works
//! because slot 0 is never handed out. A hint gives no ownership: the cluster stays on its list and any CPU
//! may allocate from it. So no slot is stranded when a CPU goes idle, and a stale hint costs one lock of a
//! cluster that is then found unusable. For the same reason relaxed loads and stores are enough, and a CPU
//! number beyond the table is folded into it.
//!
//! On a rotating device all CPUs share one hint, for neighbours in time should be neighbours on the disk.
//!
//! What it does not do: hold slots back (the kernel's slots cache did, and was removed for it).
//!
//! Kernel counterpart: `percpu_swap_cluster` (6.14 on).

use crate::sync::{Apart, AtomicU32, Ordering};
use crate::units::{CpuId, MAX_ORDER, Order, SlotIndex};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// One CPU's hints: they are written at every allocation.
type Hints = Apart<[AtomicU32; ORDERS]>;

pub(super) struct PerCpu {
    cpus: Box<[Hints]>,
}

impl PerCpu {
    /// Hints for `count` CPUs: others are folded into them, so with 1 they share.
    pub(super) fn new(count: u32) -> PerCpu {
        let none = || Apart::new(std::array::from_fn(|_| AtomicU32::new(0)));
        PerCpu { cpus: (0..count).map(|_| none()).collect() }
    }

    pub(super) fn hint(&self, cpu: CpuId, order: Order) -> Option<SlotIndex> {
        let slot = self.cell(cpu, order).load(Ordering::Relaxed);
        (slot != 0).then_some(SlotIndex(slot))
    }

    pub(super) fn set_hint(&self, cpu: CpuId, order: Order, slot: Option<SlotIndex>) {
        self.cell(cpu, order).store(slot.map_or(0, |slot| slot.0), Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val::<[Hints]>(&self.cpus) as u64
    }

    fn cell(&self, cpu: CpuId, order: Order) -> &AtomicU32 {
        &self.cpus[cpu.index() % self.cpus.len()].0[order.0 as usize]
    }
}
