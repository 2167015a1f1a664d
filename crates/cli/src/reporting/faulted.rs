//! Who faults: the faults that pagers have noted, counted by what is at their addresses.
//!
//! ```text
//!   samples of a look ─▶ by process ─▶ one reading of its maps ─▶ command, place
//! ```
//!
//! Mappings in which something was found are remembered: they stand for what has gone meanwhile, with its
//! process or without.

use crate::reporting::places::{self, Mapping};
use crate::reporting::tally::Tally;
use crate::stats;
use memspill_pager::run::Run;
use memspill_pager::run::sampling::Sample;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;

/// Mappings are found out by one fault in this many.
pub const FAULTS_EVERY: u32 = 16;
const MAPPINGS_MAX: usize = 256;
/// Mappings of this many processes are remembered, and this many of each.
const REMEMBERED_PROCESSES: usize = 128;
const REMEMBERED_MAPPINGS: usize = 64;
/// Maps are read in pieces of this.
const BUFFER_BYTES: usize = 64 << 10;

/// What nobody can tell any more.
const GONE: &str = "(gone before its maps were read)";

pub struct Faulted {
    /// By command and place.
    pub mappings: Tally<(String, String)>,
    remembered: HashMap<u64, Known>,
    /// Samples that came while too many waited.
    pub left_out: u64,
}

/// A process.
#[derive(Default)]
struct Known {
    command: String,
    mappings: Vec<Mapping>,
}

impl Faulted {
    pub fn new() -> Faulted {
        Faulted { mappings: Tally::new(MAPPINGS_MAX), remembered: HashMap::new(), left_out: 0 }
    }

    /// Count what has been noted since the last look.
    pub fn look(&mut self, run: &Run) {
        let noted = run.sampling.take();
        self.left_out += noted.left_out;
        let mut by_process: HashMap<u64, Vec<Sample>> = HashMap::new();
        for sample in noted.samples {
            by_process.entry(sample.process).or_default().push(sample);
        }
        for (key, samples) in by_process {
            let process = run.process(key);
            let ids = process.map(|process| (process.memory.pid(), process.memory.proc_id()));
            self.learn(key, ids, &samples);
            self.count(key, &samples);
        }
    }

    /// Read the maps, where they are to be had. `ids`: of the process, and of a thread of it that lives.
    fn learn(&mut self, key: u64, ids: Option<(u32, u32)>, samples: &[Sample]) {
        let Some((pid, thread)) = ids.filter(|(_, thread)| *thread != 0) else { return };
        let Ok(maps) = File::open(format!("/proc/{thread}/maps")) else { return };
        let mut addresses: Vec<u64> = samples.iter().map(|sample| sample.addr).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let Ok(found) = places::find(BufReader::with_capacity(BUFFER_BYTES, maps), &addresses) else {
            return;
        };
        if self.remembered.len() >= REMEMBERED_PROCESSES && !self.remembered.contains_key(&key) {
            self.remembered.clear();
        }
        let known = self.remembered.entry(key).or_default();
        known.learn(found);
        // A process that has ended meanwhile has none.
        let command = stats::command_of(pid);
        if !command.is_empty() {
            known.command = command;
        }
    }

    fn count(&mut self, key: u64, samples: &[Sample]) {
        let nobody = Known::default();
        let known = self.remembered.get(&key).unwrap_or(&nobody);
        for sample in samples {
            let place = known.at(sample.addr).map_or(GONE, |mapping| &mapping.name);
            self.mappings.add((known.command.clone(), place.to_owned()), 1);
        }
    }
}

impl Known {
    /// Older mappings stay behind the new ones: an address that is in none now means those.
    fn learn(&mut self, found: Vec<Mapping>) {
        self.mappings.retain(|old| !found.contains(old));
        self.mappings.truncate(REMEMBERED_MAPPINGS.saturating_sub(found.len()));
        self.mappings.splice(..0, found);
    }

    fn at(&self, addr: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| mapping.holds(addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, name: &str) -> Mapping {
        Mapping { start, end, name: name.into() }
    }

    #[test]
    fn what_was_there_is_remembered_behind_what_is() {
        let mut known = Known::default();
        known.learn(vec![mapping(10, 20, "a"), mapping(30, 40, "b")]);
        known.learn(vec![mapping(15, 25, "c")]);
        let names = |known: &Known| [12, 18, 35].map(|addr| known.at(addr).map(|m| m.name.clone()));
        assert_eq!(names(&known), [Some("a".into()), Some("c".into()), Some("b".into())]);
        for n in 0..1000 {
            known.learn(vec![mapping(1000 + n, 1001 + n, "new")]);
        }
        assert!(known.mappings.len() <= REMEMBERED_MAPPINGS);
        // More at once than are remembered are all known for this look.
        known.learn((0..1000).map(|n| mapping(n, n + 1, "many")).collect());
        assert!(known.at(999).is_some());
    }

    #[test]
    fn samples_are_counted_by_what_is_there() {
        let mut faulted = Faulted::new();
        let addr = &faulted as *const Faulted as u64;
        let (me, samples) =
            (std::process::id(), [Sample { process: 1, addr }, Sample { process: 1, addr: 8 }]);
        faulted.learn(1, Some((me, me)), &samples);
        faulted.count(1, &samples);
        // Its maps cannot be read any more, and are known.
        faulted.learn(1, None, &samples);
        faulted.count(1, &samples[..1]);
        faulted.count(2, &samples[..1]);
        let counts: Vec<u64> = faulted.mappings.sorted().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 1], "{:?}", faulted.mappings.sorted());
        assert_eq!(faulted.mappings.total(), 4);
    }
}
