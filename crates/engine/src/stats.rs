//! Every counter, once: its name (the kernel's vmstat word where there is one) and what it counts.
//!
//! Each CPU counts for itself, and a reader adds up: one counter written by all would be what 128 CPUs wait
//! for (`memspill-lab sim scale`).

use crate::per_cpu::PerCpu;
use crate::sync::{EventCount, Ordering};
use crate::units::{CpuId, MAX_ORDER, Order};

pub const ORDERS: usize = MAX_ORDER as usize + 1;

macro_rules! stats {
    (
        $($(#[doc = $doc:literal])+ $name:ident),* $(,)?;
        by order: $($(#[doc = $of_doc:literal])+ $of:ident),* $(,)?
    ) => {
        /// What one CPU (or several of the same place) has counted.
        #[derive(Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: EventCount,)*
            $($(#[doc = $of_doc])+ pub $of: [EventCount; ORDERS],)*
        }

        impl Stats {
            /// (name, value, help) for every counter, in the order of declaration.
            pub fn list(&self) -> Vec<(&'static str, u64, &'static str)> {
                vec![$((stringify!($name), self.sum(|c| &c.$name), concat!($($doc),+)),)*]
            }

            /// (name, value, help) of what is counted for each order.
            pub fn of_order(&self, order: Order) -> Vec<(&'static str, u64, &'static str)> {
                let at = order.0 as usize;
                vec![$((stringify!($of), self.sum(|c| &c.$of[at]), concat!($($of_doc),+)),)*]
            }
        }
    };
}

/// CPUs that count apart; more of them share.
const PLACES: usize = 256;

/// Counters since the start. All are events; gauges come from their owners.
pub struct Stats {
    places: PerCpu<Counters, PLACES>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { places: PerCpu::new() }
    }
}

impl Stats {
    /// Faults that all CPUs have served so far.
    pub fn faults(&self) -> u64 {
        self.sum(|counters| &counters.pgfault)
    }

    pub fn on(&self, cpu: CpuId) -> &Counters {
        self.places.of(cpu)
    }
    /// Where the CPU is not known: for what is rare.
    pub fn rare(&self) -> &Counters {
        self.places.of(CpuId(0))
    }
    pub fn sum(&self, counter: impl Fn(&Counters) -> &EventCount) -> u64 {
        self.places.iter().map(|place| counter(place).load(Ordering::Relaxed)).sum()
    }
}

stats! {
    /// Faults that reached the pager.
    pgfault,
    /// Faults that had to read a slot.
    pgmajfault,
    /// Pages read from slots, readahead included.
    pswpin,
    /// Pages that were brought because their addresses stood in a page of a row of reads.
    named_pages,
    /// Pages whose addresses stood there, and that were only noted.
    named_noted,
    /// Noted pages that faulted soon.
    named_right,
    /// Pages written to slots.
    pswpout,
    /// Pages of large folios that left singly, as there was no room in a row for a smaller folio either.
    swpout_split,
    /// Pages found to be all zero at swap-out: no slot, no data.
    swpout_zero,
    /// Pages that left as they had come from a slot that was kept: not written again.
    swpout_clean,
    /// Pages filled with zeros.
    zero_fill,
    /// Faults whose page was in the swap cache: on its way out, or read ahead.
    swap_cache_hit,
    /// Faults whose page was read by way of the swap cache, its neighbours with it.
    swap_cache_miss,
    /// Faults whose page was read past the swap cache.
    swap_cache_bypass,
    /// Pages read or brought in beyond the one that faulted.
    swap_ra,
    /// Pages that would have come with the one that faulted, and were only noted.
    ra_noted,
    /// Noted pages that faulted soon.
    ra_right,
    /// Pages that were read ahead into the swap cache, and were then wanted.
    swap_ra_hit,
    /// Victims looked at by reclaim.
    pgscan,
    /// Pages that reclaim took out.
    pgsteal,
    /// Victims that were given another round.
    pgrotated,
    /// Pages that came back, and were put on trial.
    pgtrial,
    /// Pages that could not be taken because they were shared or pinned.
    take_busy,
    /// Pages that could not be taken because of an event in work.
    take_retry,
    /// Pages that could not be taken as they are mapped (read-only, mlocked).
    take_unevictable,
    /// Batches taken out.
    take_batches,
    /// Faults that had to wait for room.
    allocstall,
    /// Fills put off because of an event in work.
    fill_again,
    /// Fills that found the page present.
    fill_exists,
    /// Fills dropped because their range was unmapped meanwhile.
    fill_cancelled,
    /// Pages whose read failed; the access gets SIGBUS, and in agent mode the process ends.
    read_errors,
    /// Pages that could not be read for want of memory or the like, and are read again.
    read_again,
    /// Pages whose write failed; they stay in memory.
    write_errors,
    /// Pages that found no slot or no room on any swap device.
    swap_full,
    /// Refaults within the reach of memory (refault distance shorter than what is resident).
    workingset_refault,
    /// Pages that swapoff has moved to another device.
    swapoff_moved,
    /// Faults held back while another thread had the swap token.
    token_wait,
    /// Writes to pages that a fork had left shared, which came to the pager first.
    cow_faults,
    /// Forks followed.
    forks;
    by order:
    /// Folios written whole, to slots in a row.
    swpout,
    /// Folios for which there was no room in a row: they left as smaller ones or as single pages.
    swpout_fallback,
    /// Folios of which not all pages could be taken: the others left.
    swpout_partial,
    /// Folios that were whole and were split before they left: large-folios=split.
    split,
    /// Folios brought in whole.
    swpin,
    /// Folios that were to come whole, and for which there was no room in memory.
    swpin_fallback,
}

#[track_caller]
pub fn add(counter: &EventCount, n: u64) {
    // Other CPUs may count in the same place: adding 0 would take its cache line from them for nothing.
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
