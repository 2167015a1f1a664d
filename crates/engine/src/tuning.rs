//! The knobs: every mechanism that can be set back to what it replaced, in one struct and one table.
//!
//! ```text
//!   --tune slot-batch=1 ──▶ Tuning::set ──▶ Tuning ──▶ SwapDevice::new, swap-in, ...
//!                              │
//!                              └─ unknown name, bad value: an error that lists what would have been right
//! ```
//!
//! A knob stands here only if turning it changes what the code does. The defaults are the best form known. A
//! `Tuning` is read when a device is made; changing it later changes nothing that exists already.
//!
//! What it does not do: hold sizes and limits of a job (budget, watermarks, devices). Those are the job's, not the
//! mechanism's.

use crate::units::Order;
use std::fmt;

/// Where a CPU allocates, and looks for its next cluster on a fragmented device. On rotating devices always `Shared`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanBase {
    /// All CPUs in one current cluster, and from one base.
    Shared,
    /// Each CPU in a cluster of its own, and from a base of its own.
    PerCpu,
    /// As `PerCpu`; the base leaves a trunk of 64 MiB for a random one.
    PerCpuTrunk,
}

/// How the swap cgroup map keeps two updates of one word apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupMapForm {
    /// One lock around the whole map.
    Locked,
    /// A compare-exchange loop on the word that holds the two ids.
    LockFree,
}

/// When a fault brings neighbours along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readahead {
    /// On every device.
    Always,
    /// Not on a synchronous device, where the entry has one user or belongs to shared memory.
    Auto,
    /// As `Auto`, until faults in a region prove a direction: then the next pages of that stream.
    Stream,
}

/// Where folios of several pages get their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargeFolios {
    /// Nowhere: each page gets a slot by itself.
    Split,
    /// In this CPU's current cluster of their order, or in an empty one; else they are split.
    FreeClusterOnly,
    /// As `FreeClusterOnly`, and in every other cluster of their order that has room.
    All,
}

/// How many pages leave together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FolioSize {
    /// As many as are cold together.
    Auto,
    /// Aligned blocks of this order wherever all of their pages are present.
    Fixed(Order),
}

/// One value for each knob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuning {
    pub scan_base: ScanBase,
    /// Slots that one lock hold allocates at most, 1..=64.
    pub slot_batch: u32,
    /// Swap-cache entries that one lock hold adds or deletes at most, 1..=64.
    pub cache_batch: u32,
    pub cgroup_map: CgroupMapForm,
    pub readahead: Readahead,
    /// log2 of the readahead window in pages, 0..=5.
    pub page_cluster: u32,
    /// A page keeps the slot that it was read from, where writing is dear.
    pub keep_clean: bool,
    pub large_folios: LargeFolios,
    pub folio: FolioSize,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            scan_base: ScanBase::PerCpuTrunk,
            slot_batch: 64,
            cache_batch: 32,
            cgroup_map: CgroupMapForm::LockFree,
            readahead: Readahead::Stream,
            page_cluster: 3,
            keep_clean: true,
            large_folios: LargeFolios::All,
            folio: FolioSize::Auto,
        }
    }
}

/// What a knob may be set to.
enum Values {
    Number { min: u32, max: u32 },
    Words(&'static [&'static str]),
}

/// A row of the table: how a knob is called, what it takes, what it does, and where it lives.
pub struct Knob {
    pub name: &'static str,
    pub help: &'static str,
    values: Values,
    /// The field, as a number (a word's place in the list of words).
    get: fn(&Tuning) -> u32,
    set: fn(&mut Tuning, u32),
}

const SCAN_BASES: [(&str, ScanBase); 3] =
    [("shared", ScanBase::Shared), ("per-cpu", ScanBase::PerCpu), ("per-cpu-trunk", ScanBase::PerCpuTrunk)];
const CGROUP_MAP_FORMS: [(&str, CgroupMapForm); 2] =
    [("locked", CgroupMapForm::Locked), ("lock-free", CgroupMapForm::LockFree)];
const READAHEADS: [(&str, Readahead); 3] =
    [("always", Readahead::Always), ("auto", Readahead::Auto), ("stream", Readahead::Stream)];
const LARGE_FOLIOS: [(&str, LargeFolios); 3] = [
    ("split", LargeFolios::Split),
    ("free-cluster-only", LargeFolios::FreeClusterOnly),
    ("all", LargeFolios::All),
];
const FOLIO_SIZES: [(&str, FolioSize); 11] = [
    ("4K", FolioSize::Fixed(Order(0))),
    ("8K", FolioSize::Fixed(Order(1))),
    ("16K", FolioSize::Fixed(Order(2))),
    ("32K", FolioSize::Fixed(Order(3))),
    ("64K", FolioSize::Fixed(Order(4))),
    ("128K", FolioSize::Fixed(Order(5))),
    ("256K", FolioSize::Fixed(Order(6))),
    ("512K", FolioSize::Fixed(Order(7))),
    ("1M", FolioSize::Fixed(Order(8))),
    ("2M", FolioSize::Fixed(Order(9))),
    ("auto", FolioSize::Auto),
];
const FOLIO_WORDS: [&str; FOLIO_SIZES.len()] = words_of(&FOLIO_SIZES);

const fn words_of<T: Copy, const N: usize>(values: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut i = 0;
    while i < N {
        words[i] = values[i].0;
        i += 1;
    }
    words
}

const SWITCH: [(&str, bool); 2] = [("off", false), ("on", true)];

/// Every knob, in the order in which `--tune help` and the documentation show them.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "scan-base",
        help: "CPUs allocate side by side; each on its own; leaving a 64 MiB trunk for a random one",
        values: Values::Words(&[SCAN_BASES[0].0, SCAN_BASES[1].0, SCAN_BASES[2].0]),
        get: |t| place(&SCAN_BASES, t.scan_base),
        set: |t, value| t.scan_base = SCAN_BASES[value as usize].1,
    },
    Knob {
        name: "slot-batch",
        help: "slots that one lock hold allocates; 1 is a lock for each slot",
        values: Values::Number { min: 1, max: 64 },
        get: |t| t.slot_batch,
        set: |t, value| t.slot_batch = value,
    },
    Knob {
        name: "cache-batch",
        help: "swap-cache entries added or deleted in one lock hold; 1 is a lock for each page",
        values: Values::Number { min: 1, max: 64 },
        get: |t| t.cache_batch,
        set: |t, value| t.cache_batch = value,
    },
    Knob {
        name: "cgroup-map",
        help: "owner id of each slot: under one lock, or two ids in one word by compare-exchange",
        values: Values::Words(&[CGROUP_MAP_FORMS[0].0, CGROUP_MAP_FORMS[1].0]),
        get: |t| place(&CGROUP_MAP_FORMS, t.cgroup_map),
        set: |t, value| t.cgroup_map = CGROUP_MAP_FORMS[value as usize].1,
    },
    Knob {
        name: "readahead",
        help: "always; auto: not on RAM-speed devices; stream: as auto, until faults prove a direction",
        values: Values::Words(&[READAHEADS[0].0, READAHEADS[1].0, READAHEADS[2].0]),
        get: |t| place(&READAHEADS, t.readahead),
        set: |t, value| t.readahead = READAHEADS[value as usize].1,
    },
    Knob {
        name: "page-cluster",
        help: "log2 of the readahead window in pages; 0 reads one page",
        values: Values::Number { min: 0, max: 5 },
        get: |t| t.page_cluster,
        set: |t, value| t.page_cluster = value,
    },
    Knob {
        name: "keep-clean",
        help: "a page read from a file keeps its slot, and is not written again if nothing was stored to it",
        values: Values::Words(&[SWITCH[0].0, SWITCH[1].0]),
        get: |t| place(&SWITCH, t.keep_clean),
        set: |t, value| t.keep_clean = SWITCH[value as usize].1,
    },
    Knob {
        name: "large-folios",
        help: "slots for folios: page by page; only from empty clusters; from all clusters of their order",
        values: Values::Words(&[LARGE_FOLIOS[0].0, LARGE_FOLIOS[1].0, LARGE_FOLIOS[2].0]),
        get: |t| place(&LARGE_FOLIOS, t.large_folios),
        set: |t, value| t.large_folios = LARGE_FOLIOS[value as usize].1,
    },
    Knob {
        name: "folio",
        help: "what leaves together: aligned blocks of this size, or what is cold together",
        values: Values::Words(&FOLIO_WORDS),
        get: |t| place(&FOLIO_SIZES, t.folio),
        set: |t, value| t.folio = FOLIO_SIZES[value as usize].1,
    },
];

/// Where a value stands in its list of words.
fn place<T: PartialEq>(words: &[(&str, T)], value: T) -> u32 {
    words.iter().position(|(_, v)| *v == value).expect("every variant has a word") as u32
}

impl Knob {
    /// What may be given, as shown to people: `1..64` or `locked|lock-free`.
    pub fn values(&self) -> String {
        match &self.values {
            Values::Number { min, max } => format!("{min}..{max}"),
            Values::Words(words) => words.join("|"),
        }
    }

    /// The value that this knob has in `tuning`, in the form that `Tuning::set` reads.
    pub fn value_in(&self, tuning: &Tuning) -> String {
        let number = (self.get)(tuning);
        match &self.values {
            Values::Number { .. } => number.to_string(),
            Values::Words(words) => words[number as usize].to_string(),
        }
    }

    /// Any number makes one of the values, and a row of numbers makes all of them: for tests that draw.
    pub fn value_of(&self, number: u32) -> String {
        match &self.values {
            Values::Number { min, max } => (min + number % (max - min + 1)).to_string(),
            Values::Words(words) => words[number as usize % words.len()].to_string(),
        }
    }

    /// The text as the field's number, if it is one of the values.
    fn parse(&self, text: &str) -> Option<u32> {
        match &self.values {
            Values::Number { min, max } => text.parse().ok().filter(|number| (*min..=*max).contains(number)),
            Values::Words(words) => words.iter().position(|word| *word == text).map(|place| place as u32),
        }
    }
}

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
                write!(f, "`{given}` is not NAME=VALUE; names: {}", names())
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
    /// Turn one knob: `NAME=VALUE`.
    pub fn set(&mut self, assignment: &str) -> Result<(), TuningError> {
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

    /// Every knob at a value that `draw` chooses: for tests, which meet a new knob without a line of their own.
    pub fn drawn(mut draw: impl FnMut() -> u32) -> Tuning {
        let mut tuning = Tuning::default();
        for knob in KNOBS {
            tuning.set(&format!("{}={}", knob.name, knob.value_of(draw()))).expect("a value of the table");
        }
        tuning
    }

    /// The table for `--tune help`: name, values, default, what it does.
    pub fn help() -> String {
        let defaults = Tuning::default();
        let row = |knob: &Knob| {
            let default = knob.value_in(&defaults);
            format!("  {:<14} {:<30} {:<15} {}\n", knob.name, knob.values(), default, knob.help)
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
                Values::Words(words) => words.len(),
            };
            assert_eq!(met.len(), values, "not all values of {} are drawn", knob.name);
            assert!(Tuning::help().lines().any(|line| line.trim_start().starts_with(&format!("{} ", knob.name))));
        }
    }

    #[test]
    fn the_old_forms_can_be_set() {
        let old = [
            "scan-base=shared",
            "slot-batch=1",
            "cache-batch=1",
            "cgroup-map=locked",
            "readahead=always",
            "page-cluster=0",
            "keep-clean=off",
            "large-folios=split",
            "folio=4K",
        ];
        let tuning = Tuning::parse(old).unwrap();
        let expected = Tuning {
            scan_base: ScanBase::Shared,
            slot_batch: 1,
            cache_batch: 1,
            cgroup_map: CgroupMapForm::Locked,
            readahead: Readahead::Always,
            page_cluster: 0,
            keep_clean: false,
            large_folios: LargeFolios::Split,
            folio: FolioSize::Fixed(Order::ZERO),
        };
        assert_eq!(tuning, expected);
    }

    #[test]
    fn folio_sizes_are_what_they_say() {
        for (order, bytes) in (0..=9).map(|order| (Order(order), 4096u32 << order)) {
            let (kib, mib) = (bytes >> 10, bytes >> 20);
            let word = if mib > 0 { format!("folio={mib}M") } else { format!("folio={kib}K") };
            assert_eq!(Tuning::parse([word.as_str()]).unwrap().folio, FolioSize::Fixed(order), "{word}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = |text| Tuning::default().set(text).unwrap_err().to_string();
        assert_eq!(error("slot-batch=65"), "slot-batch cannot be `65`; values: 1..64");
        assert_eq!(error("slot-batch=-1"), "slot-batch cannot be `-1`; values: 1..64");
        assert_eq!(error("cgroup-map=none"), "cgroup-map cannot be `none`; values: locked|lock-free");
        assert_eq!(error("page-cluster="), "page-cluster cannot be ``; values: 0..5");
        assert!(error("slot_batch=1").contains("names: scan-base, slot-batch"));
        assert!(error("slot-batch").contains("not NAME=VALUE"));
    }
}
