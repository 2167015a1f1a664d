//! Which mappings of a process are new.
//!
//! To read /proc/PID/maps of 65,000 mappings takes tens of ms, and holds up the program's own mmap. New ones come near
//! where the last ones came: the heap grows at its end, mmap goes downwards from its last mapping. So where reading
//! them all takes long, the monitor mostly asks for single mappings (PROCMAP_QUERY), from a few such spots on upwards
//! until one is known already; and it reads all of them now and then, or as soon as more memory has come than it has
//! found.
//!
//! ```text
//!    known   │ new │ new │ known           walk from each spot: ask, ask, ask, known: stop
//!            ▲ spot
//! ```
//!
//! Before Linux 6.11 there is no such question, and all are read each time.

use crate::proc::{self, Kind, Mapping};
use crate::ranges::{Range, Ranges, split_by_whole};
use memspill_uffd::procmap;
use std::collections::HashSet;
use std::fs::File;
use std::time::{Duration, Instant};

/// A process of which all mappings are read within this time is always read.
const CHEAP: Duration = Duration::from_millis(1);
/// Otherwise reading all of them takes this part of the time at most, unless much memory has come that is not found.
const PART: u32 = 20;
const SPOTS_MAX: usize = 8;
/// What a question costs at most.
const QUESTION: Duration = Duration::from_micros(1);
/// After so many questions it is better to read all.
const QUESTIONS_MAX: usize = 8192;

#[derive(Default)]
pub struct Finder {
    maps: Option<File>,
    /// Where new mappings came last.
    spots: Vec<u64>,
    last: Option<Last>,
    /// A part was looked at since all were read.
    owes: bool,
    /// The last address of the main stack: mappings are asked for without their names.
    stack_end: u64,
}

/// When all were read.
struct Last {
    at: Instant,
    took: Duration,
    /// The least that was in memory and not managed, then or since.
    unmanaged_bytes: u64,
}

/// What was found: ranges that are not known, ascending, each within one mapping.
#[derive(Default)]
pub struct Found {
    pub new: Vec<Range>,
    /// The main stack, if all were read: where the mapping below it ends, its own start and end.
    pub stack: Option<(u64, u64, u64)>,
    pub has_exec: bool,
}

/// What is known of a process before the look.
pub struct Known<'a> {
    pub registered: &'a Ranges,
    /// The agent's own pages, which are no news.
    pub own: &'a Ranges,
    /// To be looked at, whatever else is.
    pub doubtful: &'a Ranges,
    pub unmanaged_bytes: u64,
    /// So much of it is no reason for haste.
    pub slack_bytes: u64,
}

impl Finder {
    /// Is it time to read all, although nothing seems to have changed?
    pub fn is_due(&self) -> bool {
        self.owes && self.last.as_ref().is_none_or(|last| last.at.elapsed() > PART * last.took)
    }

    pub fn look(&mut self, pid: u32, known: &Known<'_>) -> std::io::Result<Found> {
        let glances = self.last.as_ref().is_some_and(|last| last.took > CHEAP && last.at.elapsed() < PART * last.took);
        if glances
            && let Some(found) = self.glance(pid, known)
            && self.is_enough(known, &found)
        {
            self.owes = true;
            return Ok(found);
        }
        self.read_all(pid, known)
    }

    /// Can what has come be in what was found?
    fn is_enough(&mut self, known: &Known<'_>, found: &Found) -> bool {
        let Some(last) = &mut self.last else { return false };
        last.unmanaged_bytes = last.unmanaged_bytes.min(known.unmanaged_bytes);
        let found_bytes: u64 = found.new.iter().map(|(start, end)| end - start).sum();
        let explained_bytes = (last.unmanaged_bytes + known.slack_bytes).saturating_add(found_bytes);
        known.unmanaged_bytes <= explained_bytes || last.at.elapsed() < last.took
    }

    fn read_all(&mut self, pid: u32, known: &Known<'_>) -> std::io::Result<Found> {
        let begun = Instant::now();
        let mappings = proc::manageable(pid)?;
        let ranges = ranges_of(&mappings);
        let new = known.own.missing_of(&known.registered.missing_of(&ranges));
        self.owes = false;
        self.spots = spots(&new, &ranges);
        self.last = Some(Last { at: begun, took: begun.elapsed(), unmanaged_bytes: known.unmanaged_bytes });
        let stack = mappings.iter().find_map(|mapping| match mapping.kind {
            Kind::Stack { floor } => Some((floor, mapping.start, mapping.end)),
            Kind::Data | Kind::Code => None,
        });
        self.stack_end = stack.map_or(0, |(_, _, end)| end);
        let has_exec = mappings.iter().any(|mapping| mapping.kind == Kind::Code);
        Ok(Found { new, stack, has_exec })
    }

    /// Walk from each spot, and through all that is doubtful. None: all have to be read.
    fn glance(&mut self, pid: u32, known: &Known<'_>) -> Option<Found> {
        if self.maps.is_none() {
            self.maps = File::open(format!("/proc/{pid}/maps")).ok();
        }
        let maps = self.maps.as_ref()?;
        let (mut found, mut seen) = (Found::default(), Ranges::default());
        let (mut questions, mut spots) = (0, Vec::new());
        let from_spots = self.spots.iter().map(|at| (*at, u64::MAX));
        for (from, to) in from_spots.chain(known.doubtful.iter()) {
            let mut at = from;
            let before = found.new.len();
            loop {
                questions += 1;
                if questions > QUESTIONS_MAX {
                    return None;
                }
                let Some(mapping) = procmap::writable_from(maps, at).ok()?.filter(|m| m.start < to) else { break };
                at = mapping.end;
                if !mapping.anonymous || mapping.end == self.stack_end {
                    continue;
                }
                let new = known.own.missing_of(&known.registered.missing_of(&[(mapping.start, mapping.end)]));
                if new.is_empty() && to == u64::MAX {
                    break;
                }
                found.has_exec |= mapping.executable && !new.is_empty();
                let new = seen.missing_of(&new);
                new.iter().for_each(|(start, end)| seen.insert(*start, *end));
                found.new.extend(new);
            }
            if let Some((_, end)) = found.new[before..].last() {
                spots.push(*end);
                spots.push(from);
            }
        }
        found.new.sort_unstable();
        self.note_spots(spots);
        Some(found)
    }

    /// Those that were right come first, and the others stay for as long as there is room.
    fn note_spots(&mut self, right: Vec<u64>) {
        let mut seen = HashSet::new();
        let all = right.into_iter().chain(std::mem::take(&mut self.spots));
        self.spots = all.filter(|at| seen.insert(*at)).take(SPOTS_MAX).collect();
    }

    /// Those of `ranges` that lie within one mapping each, and those that do not.
    pub fn split_by_mapping(&self, pid: u32, ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
        let asks_less = self.last.as_ref().is_some_and(|last| last.took > QUESTION * ranges.len() as u32);
        match &self.maps {
            Some(maps) if asks_less => ranges.into_iter().partition(|(start, end)| {
                let mapping = procmap::writable_from(maps, *start).ok().flatten();
                mapping.is_some_and(|mapping| mapping.start <= *start && *end <= mapping.end)
            }),
            _ => split_by_whole(ranges, &ranges_of(&proc::manageable(pid).unwrap_or_default())),
        }
    }
}

fn ranges_of(mappings: &[Mapping]) -> Vec<Range> {
    mappings.iter().map(|mapping| (mapping.start, mapping.end)).collect()
}

/// Where the next mappings will come: after the last and below the first of those that came side by side, the largest
/// of such clusters first.
fn spots(new: &[Range], all: &[Range]) -> Vec<u64> {
    struct Cluster {
        bytes: u64,
        first: usize,
        last: usize,
    }
    let mut clusters: Vec<Cluster> = Vec::new();
    for (start, end) in new {
        let place = all.partition_point(|(other, _)| other <= start).saturating_sub(1);
        match clusters.last_mut() {
            Some(cluster) if place <= cluster.last + 1 => {
                cluster.last = place;
                cluster.bytes += end - start;
            }
            _ => clusters.push(Cluster { bytes: end - start, first: place, last: place }),
        }
    }
    clusters.sort_by_key(|cluster| std::cmp::Reverse(cluster.bytes));
    let below = |place: usize| place.checked_sub(1).map_or(0, |below| all[below].1);
    clusters.iter().take(SPOTS_MAX / 2).flat_map(|cluster| [all[cluster.last].1, below(cluster.first)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_are_looked_for_near_the_last() {
        let all = [(10, 20), (30, 40), (40, 70), (80, 90), (95, 99)];
        assert_eq!(spots(&[(10, 20), (40, 70), (80, 85), (86, 90)], &all), [90, 40, 20, 0]);
        assert_eq!(spots(&[], &all), []);
    }

    #[test]
    fn spots_that_were_right_come_first() {
        let mut finder = Finder { spots: vec![1, 2, 3, 4, 5, 6, 7, 8], ..Finder::default() };
        finder.note_spots(vec![9, 3, 9]);
        assert_eq!(finder.spots, [9, 3, 1, 2, 4, 5, 6, 7]);
    }

    /// A walk from where the last ones came finds what reading all would find.
    #[test]
    fn new_mappings_are_found_from_their_spot() {
        let me = std::process::id();
        let nothing = Ranges::default();
        let mut finder = Finder::default();
        let (own, doubtful) = (&nothing, &nothing);
        let known = |registered| Known { registered, own, doubtful, unmanaged_bytes: 0, slack_bytes: 0 };
        // In the middle of memory of our own, so that other tests do not change it.
        let memory = vec![1u8; 1 << 20];
        let start = (memory.as_ptr() as u64 + (64 << 10)) & !0xfff;
        let end = start + (64 << 10);
        // All but this part is known.
        let all = finder.read_all(me, &known(&nothing)).expect("our maps").new;
        let mut registered: Ranges = all.into_iter().collect();
        registered.remove(start, end);
        finder.spots = vec![start];
        let Some(found) = finder.glance(me, &known(&registered)) else {
            eprintln!("not tested: this kernel has no PROCMAP_QUERY (Linux 6.11 has it)");
            return;
        };
        assert!(found.new.contains(&(start, end)), "{:x?} has no {start:x}", found.new);
        let (whole, torn) = finder.split_by_mapping(me, vec![(start, end), (4096, 8192)]);
        assert_eq!((whole, torn), (vec![(start, end)], vec![(4096, 8192)]));
        drop(memory);
    }
}
