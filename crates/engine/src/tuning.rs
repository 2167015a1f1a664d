//! The knobs: every mechanism that can be set back to the form that it replaced, in one struct and one table.
//!
//! ```text
//!   --tune slot-batch=1 ──▶ Tuning::set ──▶ Tuning ──▶ Slots::new, swap-in, ...
//!                              │
//!                              └─ unknown name, bad value: an error that lists what would have been right
//! ```
//!
//! A knob stands here only if turning it changes what the code does. The defaults are the best form known. A
//! `Tuning` is read when a device is made; changing it later changes nothing that exists already.
//!
//! What it does not do: hold sizes and limits of a job (budget, watermarks, devices).

use crate::units::Order;
use memspill_common::window::BLOCK_ORDERS;
use std::fmt;

/// Where a CPU looks for its next cluster on a fragmented device. On rotating devices always `Shared`, and
/// all CPUs allocate in one cluster there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanBase {
    /// All CPUs from one base.
    Shared,
    /// Each CPU from a base of its own.
    PerCpu,
    /// As `PerCpu`; the base leaves a trunk of 64 MiB for a random one.
    PerCpuTrunk,
    /// In the lists of clusters alone, without a base.
    Lists,
}

/// The unit that is locked while slots are had, shared or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotLock {
    /// All of the device.
    Device,
    /// The same for those that are had, and for 64 that a CPU has given back.
    Batch,
    /// A cluster of 512.
    Cluster,
}

/// What is locked while pages enter the swap cache or leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheLock {
    /// All of the device.
    Device,
    /// A trunk of 64 MiB.
    Trunk,
    /// A cluster of 512, whose lock is also that of its slots.
    Cluster,
}

/// Where the owner of a slot is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupMapForm {
    /// In a map of the device, under one lock.
    Locked,
    /// In that map, without a lock: two ids are in a word, which is exchanged.
    LockFree,
    /// In the cluster's table, under the lock that allocation and release hold.
    Cluster,
}

/// When a fault brings neighbours along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readahead {
    /// On every device, into the swap cache: around the address, or by slot where the device turns.
    Always,
    /// As `Always`, but not where the entry's device is synchronous and the page has one user: such a page is
    /// read by itself, past the swap cache. (For a page of shared memory that is so however many map it: its
    /// one user is the memory.)
    Auto,
    /// No page is read into the swap cache: each by itself, until faults prove a direction, and then the next
    /// pages of that stream are mapped with it.
    Stream,
}

/// Where folios of several pages get their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargeFolios {
    /// Nowhere: they are split first, and each page leaves by itself.
    Split,
    /// In this CPU's current cluster of their order, or in an empty one; else they are split.
    FreeClusterOnly,
    /// As `FreeClusterOnly`, and in every other cluster of their order that has room.
    All,
}

/// The smallest block that leaves as a folio when none is asked for, 64 KiB: below it, one that happens to be
/// cold together is not worth a search for slots of its own.
pub(crate) const AUTO_ORDER_MIN: Order = Order(*BLOCK_ORDERS.start() as u8);

/// How many pages leave together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FolioSize {
    /// As many as are cold together.
    Auto,
    /// Aligned blocks of this order wherever all of their pages are present.
    Fixed(Order),
}

/// The place of a returning page in the order of victims (reclaim/queues.rs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insertion {
    /// It is the last one.
    Arrival,
    /// So, or on trial, whichever brings fewer pages back.
    Duel,
}

/// One value for each knob, and what tests set besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuning {
    pub scan_base: ScanBase,
    pub slot_lock: SlotLock,
    pub cache_lock: CacheLock,
    /// Slots that one lock hold allocates at most, 1..=64.
    pub slot_batch: u32,
    /// Swap-cache entries that one lock hold adds or deletes at most, 1..=64.
    pub cache_batch: u32,
    pub cgroup_map: CgroupMapForm,
    pub readahead: Readahead,
    /// log2 of the largest readahead window in pages, 0..=5, where pages are read into the swap cache.
    pub page_cluster: u32,
    pub large_folios: LargeFolios,
    pub folio: FolioSize,
    /// No knob. A page keeps the slot that it was read from, where writing is dear.
    pub keep_clean: bool,
    /// No knob.
    pub insertion: Insertion,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            scan_base: ScanBase::Lists,
            slot_lock: SlotLock::Cluster,
            cache_lock: CacheLock::Cluster,
            slot_batch: 64,
            cache_batch: 32,
            cgroup_map: CgroupMapForm::Cluster,
            readahead: Readahead::Stream,
            page_cluster: 3,
            large_folios: LargeFolios::All,
            folio: FolioSize::Auto,
            keep_clean: true,
            insertion: Insertion::Duel,
        }
    }
}

/// What a knob may be set to.
enum Values {
    Number { min: u32, max: u32 },
    OneOf(&'static [&'static str]),
}

/// A row of the table: how a knob is called, what it takes, what it does, and where it lives.
pub struct Knob {
    pub name: &'static str,
    pub help: &'static str,
    values: Values,
    /// The form that the default has replaced, for the word `old`.
    old: &'static str,
    /// The field, as a number (for `OneOf`, the place in the list).
    get: fn(&Tuning) -> u32,
    set: fn(&mut Tuning, u32),
}

const SCAN_BASES: [(&str, ScanBase); 4] = [
    ("shared", ScanBase::Shared),
    ("per-cpu", ScanBase::PerCpu),
    ("per-cpu-trunk", ScanBase::PerCpuTrunk),
    ("lists", ScanBase::Lists),
];
const SLOT_LOCKS: [(&str, SlotLock); 3] =
    [("device", SlotLock::Device), ("batch", SlotLock::Batch), ("cluster", SlotLock::Cluster)];
const CACHE_LOCKS: [(&str, CacheLock); 3] =
    [("device", CacheLock::Device), ("trunk", CacheLock::Trunk), ("cluster", CacheLock::Cluster)];
const CGROUP_MAP_FORMS: [(&str, CgroupMapForm); 3] = [
    ("locked", CgroupMapForm::Locked),
    ("lock-free", CgroupMapForm::LockFree),
    ("cluster", CgroupMapForm::Cluster),
];
const READAHEADS: [(&str, Readahead); 3] =
    [("always", Readahead::Always), ("auto", Readahead::Auto), ("stream", Readahead::Stream)];
const LARGE_FOLIOS: [(&str, LargeFolios); 3] = [
    ("split", LargeFolios::Split),
    ("free-cluster-only", LargeFolios::FreeClusterOnly),
    ("all", LargeFolios::All),
];
const FOLIO_SIZES: [(&str, FolioSize); 4] = [
    ("4K", FolioSize::Fixed(Order(0))),
    ("64K", FolioSize::Fixed(Order(4))),
    ("2M", FolioSize::Fixed(Order(9))),
    ("auto", FolioSize::Auto),
];
/// Every knob, in the order in which `--tune help` and the documentation show them.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "scan-base",
        help: "room is found from one base; a CPU's own; one that leaves 64 MiB for random others; in lists",
        values: Values::OneOf(&[SCAN_BASES[0].0, SCAN_BASES[1].0, SCAN_BASES[2].0, SCAN_BASES[3].0]),
        old: "shared",
        get: |t| place(&SCAN_BASES, t.scan_base),
        set: |t, value| t.scan_base = SCAN_BASES[value as usize].1,
    },
    Knob {
        name: "slot-lock",
        help: "locked for slots that are had, shared or given back: the device; it, 64 at a time; 512 slots",
        values: Values::OneOf(&[SLOT_LOCKS[0].0, SLOT_LOCKS[1].0, SLOT_LOCKS[2].0]),
        old: "device",
        get: |t| place(&SLOT_LOCKS, t.slot_lock),
        set: |t, value| t.slot_lock = SLOT_LOCKS[value as usize].1,
    },
    Knob {
        name: "cache-lock",
        help: "locked while pages enter or leave the swap cache: all of the device, 64 MiB, or 512 slots",
        values: Values::OneOf(&[CACHE_LOCKS[0].0, CACHE_LOCKS[1].0, CACHE_LOCKS[2].0]),
        old: "trunk",
        get: |t| place(&CACHE_LOCKS, t.cache_lock),
        set: |t, value| t.cache_lock = CACHE_LOCKS[value as usize].1,
    },
    Knob {
        name: "slot-batch",
        help: "slots that one lock hold allocates; 1 is a lock for each slot",
        values: Values::Number { min: 1, max: 64 },
        old: "1",
        get: |t| t.slot_batch,
        set: |t, value| t.slot_batch = value,
    },
    Knob {
        name: "cache-batch",
        help: "swap-cache entries added or deleted in one lock hold; 1 is a lock for each page",
        values: Values::Number { min: 1, max: 64 },
        old: "1",
        get: |t| t.cache_batch,
        set: |t, value| t.cache_batch = value,
    },
    Knob {
        name: "cgroup-map",
        help: "owner id of each slot: in a map with one lock; two in a word that is exchanged; by cluster",
        values: Values::OneOf(&[CGROUP_MAP_FORMS[0].0, CGROUP_MAP_FORMS[1].0, CGROUP_MAP_FORMS[2].0]),
        old: "locked",
        get: |t| place(&CGROUP_MAP_FORMS, t.cgroup_map),
        set: |t, value| t.cgroup_map = CGROUP_MAP_FORMS[value as usize].1,
    },
    Knob {
        name: "readahead",
        help: "always, into the swap cache; auto: not from RAM-speed devices; stream: mapped, if proven",
        values: Values::OneOf(&[READAHEADS[0].0, READAHEADS[1].0, READAHEADS[2].0]),
        old: "always",
        get: |t| place(&READAHEADS, t.readahead),
        set: |t, value| t.readahead = READAHEADS[value as usize].1,
    },
    Knob {
        name: "page-cluster",
        help: "log2 of the most pages that always and auto read at once; 0 reads one page",
        values: Values::Number { min: 0, max: 5 },
        old: "3",
        get: |t| t.page_cluster,
        set: |t, value| t.page_cluster = value,
    },
    Knob {
        name: "large-folios",
        help: "folios are split first; get slots from empty clusters alone; from all clusters of their order",
        values: Values::OneOf(&[LARGE_FOLIOS[0].0, LARGE_FOLIOS[1].0, LARGE_FOLIOS[2].0]),
        old: "split",
        get: |t| place(&LARGE_FOLIOS, t.large_folios),
        set: |t, value| t.large_folios = LARGE_FOLIOS[value as usize].1,
    },
    Knob {
        name: "folio",
        help: "what leaves together: aligned blocks of this size, or what is cold together",
        values: Values::OneOf(&[FOLIO_SIZES[0].0, FOLIO_SIZES[1].0, FOLIO_SIZES[2].0, FOLIO_SIZES[3].0]),
        old: "4K",
        get: |t| place(&FOLIO_SIZES, t.folio),
        set: |t, value| t.folio = FOLIO_SIZES[value as usize].1,
    },
];

/// The place of a value in its list.
fn place<T: PartialEq>(words: &[(&str, T)], value: T) -> u32 {
    words.iter().position(|(_, v)| *v == value).expect("every variant has a word") as u32
}

impl Knob {
    /// What may be given, as shown to people: `1..64` or `locked|lock-free`.
    pub fn values(&self) -> String {
        match &self.values {
            Values::Number { min, max } => format!("{min}..{max}"),
            Values::OneOf(words) => words.join("|"),
        }
    }

    /// The value that this knob has in `tuning`, in the form that `Tuning::set` reads.
    pub fn value_in(&self, tuning: &Tuning) -> String {
        let number = (self.get)(tuning);
        match &self.values {
            Values::Number { .. } => number.to_string(),
            Values::OneOf(words) => words[number as usize].to_string(),
        }
    }

    /// The value for a number: every number gives one, and consecutive numbers give all. For tests that draw.
    pub fn value_of(&self, number: u32) -> String {
        match &self.values {
            Values::Number { min, max } => (min + number % (max - min + 1)).to_string(),
            Values::OneOf(words) => words[number as usize % words.len()].to_string(),
        }
    }

    /// The text as the field's number, if it is one of the values.
    fn parse(&self, text: &str) -> Option<u32> {
        match &self.values {
            Values::Number { min, max } => text.parse().ok().filter(|number| (*min..=*max).contains(number)),
            Values::OneOf(words) => words.iter().position(|word| *word == text).map(|place| place as u32),
        }
    }
}

/// The word that sets every knob to the form that its default has replaced.
pub const OLD: &str = "old";

/// Why a `NAME=VALUE` was refused. The message says what would have been accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TuningError {
    NoValue { given: String },
    UnknownName { given: String },
    BadValue { name: &'static str, given: String, values: String },
}

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = || KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", ");
        match self {
            TuningError::NoValue { given } => {
                let given = given.escape_debug();
                write!(f, "`{given}` is neither NAME=VALUE nor `{OLD}`; names: {}", names())
            }
            TuningError::UnknownName { given } => {
                let given = given.escape_debug();
                write!(f, "there is no knob `{given}`; names: {}", names())
            }
            TuningError::BadValue { name, given, values } => {
                let given = given.escape_debug();
                write!(f, "{name} cannot be `{given}`; values: {values}")
            }
        }
    }
}
impl std::error::Error for TuningError {}

impl Tuning {
    /// Pages of the folios that are asked for, which a batch must be able to hold.
    pub(crate) fn folio_pages(&self) -> usize {
        match self.folio {
            FolioSize::Auto => 1,
            FolioSize::Fixed(order) => order.pages() as usize,
        }
    }

    /// Turn one knob: `NAME=VALUE`; or all of them back: `old`.
    pub fn set(&mut self, assignment: &str) -> Result<(), TuningError> {
        if assignment.trim() == OLD {
            return KNOBS.iter().try_for_each(|knob| self.set(&format!("{}={}", knob.name, knob.old)));
        }
        let Some((name, value)) = assignment.split_once('=') else {
            return Err(TuningError::NoValue { given: assignment.to_string() });
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(knob) = KNOBS.iter().find(|knob| knob.name == name) else {
            return Err(TuningError::UnknownName { given: name.to_string() });
        };
        let Some(number) = knob.parse(value) else {
            let values = knob.values();
            return Err(TuningError::BadValue { name: knob.name, given: value.to_string(), values });
        };
        (knob.set)(self, number);
        Ok(())
    }

    /// The defaults, changed by each assignment in turn.
    pub fn parse<'a>(assignments: impl IntoIterator<Item = &'a str>) -> Result<Tuning, TuningError> {
        let mut tuning = Tuning::default();
        assignments.into_iter().try_for_each(|assignment| tuning.set(assignment))?;
        Ok(tuning)
    }

    /// Every knob at a value that `draw` chooses: for tests, which meet a new knob without a line of their
    /// own.
    pub fn drawn(mut draw: impl FnMut() -> u32) -> Tuning {
        let mut tuning = Tuning::default();
        for knob in KNOBS {
            tuning.set(&format!("{}={}", knob.name, knob.value_of(draw()))).expect("a value of the table");
        }
        tuning
    }

    /// The table for `--tune help`: name, values, default, old form, what it does.
    pub fn help() -> String {
        let defaults = Tuning::default();
        let row = |knob: &Knob| {
            let default = knob.value_in(&defaults);
            format!(
                "  {:<14} {:<30} {:<14} {:<8} {}\n",
                knob.name,
                knob.values(),
                default,
                knob.old,
                knob.help
            )
        };
        KNOBS.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_prints_what_it_reads() {
        for knob in KNOBS {
            let mut met = std::collections::BTreeSet::new();
            for number in 0..100 {
                let (mut tuning, value) = (Tuning::default(), knob.value_of(number));
                let default = knob.value_in(&tuning);
                tuning.set(&format!("{}={value}", knob.name)).unwrap();
                assert_eq!(knob.value_in(&tuning), value, "{}", knob.name);
                // And no other knob.
                assert_eq!(tuning == Tuning::default(), value == default, "{}={value}", knob.name);
                tuning.set(&format!("{}={default}", knob.name)).unwrap();
                assert_eq!(tuning, Tuning::default(), "{}={value} and back", knob.name);
                met.insert(value);
            }
            let values = match &knob.values {
                Values::Number { min, max } => (max - min + 1) as usize,
                Values::OneOf(words) => words.len(),
            };
            assert_eq!(met.len(), values, "not all values of {} are drawn", knob.name);
            assert!(
                Tuning::help().lines().any(|line| line.trim_start().starts_with(&format!("{} ", knob.name)))
            );
        }
    }

    #[test]
    fn the_old_forms_can_be_set() {
        let tuning = Tuning::parse(["old"]).unwrap();
        let expected = Tuning {
            scan_base: ScanBase::Shared,
            slot_lock: SlotLock::Device,
            cache_lock: CacheLock::Trunk,
            slot_batch: 1,
            cache_batch: 1,
            cgroup_map: CgroupMapForm::Locked,
            readahead: Readahead::Always,
            page_cluster: 3,
            large_folios: LargeFolios::Split,
            folio: FolioSize::Fixed(Order::ZERO),
            ..Tuning::default()
        };
        assert_eq!(tuning, expected);
        let with_batches = Tuning::parse(["old", "slot-batch=64"]).unwrap();
        assert_eq!(with_batches, Tuning { slot_batch: 64, ..expected });
        assert_eq!(Tuning::parse(["slot-batch=64", "old"]).unwrap().slot_batch, 1);
        for knob in KNOBS {
            assert!(knob.parse(knob.old).is_some(), "{} can be {}", knob.name, knob.old);
            let is_default = knob.old == knob.value_in(&Tuning::default());
            assert!(!is_default || knob.name == "page-cluster", "{} has an old form", knob.name);
        }
    }

    #[test]
    fn folio_sizes_are_what_they_say() {
        for (order, word) in [(0, "4K"), (4, "64K"), (9, "2M")] {
            let tuning = Tuning::parse([format!("folio={word}").as_str()]).unwrap();
            assert_eq!(tuning.folio, FolioSize::Fixed(Order(order)), "{word}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = |text| Tuning::default().set(text).unwrap_err().to_string();
        assert_eq!(error("slot-batch=65"), "slot-batch cannot be `65`; values: 1..64");
        assert_eq!(error("slot-batch=-1"), "slot-batch cannot be `-1`; values: 1..64");
        assert_eq!(error("cgroup-map=none"), "cgroup-map cannot be `none`; values: locked|lock-free|cluster");
        assert_eq!(error("page-cluster="), "page-cluster cannot be ``; values: 0..5");
        assert!(error("slot_batch=1").contains("names: scan-base, slot-lock"));
        assert!(error("slot-batch").contains("neither NAME=VALUE nor `old`"));
    }
}
