//! Which mappings of a process are new.
//!
//! To read /proc/PID/maps of 65,000 mappings takes tens of ms, and holds up the program's own mmap. New ones
//! come near where the last ones came: the heap grows at its end, mmap goes downwards from its last mapping.
//! So where reading them all takes long, the monitor mostly asks for single mappings (PROCMAP_QUERY), from a
//! few such spots on upwards until one is known already; and it reads all of them now and then, or as soon as
//! more memory has come than it has found.
//!
//! ```text
//!    known   │ new │ new │ known           walk from each spot: ask, ask, ask, known: stop
//!            ▲ spot
//! ```
//!
//! Before Linux 6.11 there is no such question, and all are read each time.

use crate::proc::{self, Mapping, MappingKind};
use crate::process::ranges::{Range, Ranges};
use memspill_uffd::procmap;
use std::collections::HashSet;
use std::fs::File;
use std::time::{Duration, Instant};

/// A process of which all mappings are read within this time is always read.
const CHEAP: Duration = Duration::from_millis(1);
/// Otherwise reading all of them takes this part of the time at most, unless much memory has come that is not
/// found.
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
    /// The end of the heap, as far as it is known: memory that brk adds comes here.
    heap_end: Option<u64>,
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

/// A range that is not known, within one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    pub start: u64,
    pub end: u64,
    /// Nothing is mapped from here to its start, and a mapping ends here; its start if that is not so, or not
    /// known.
    pub free_from: u64,
    /// See [`MappingKind::Reserve`]. (One that is new is found when all mappings are read.)
    pub is_reserve: bool,
    /// See [`MappingKind::Closed`]; the same holds.
    pub is_closed: bool,
}

impl New {
    pub fn range(&self) -> Range {
        (self.start, self.end)
    }
}

/// What was found, ascending.
#[derive(Default)]
pub struct Found {
    pub new: Vec<New>,
    /// The main stack, if all were read: where the mapping below it ends, its own start and end.
    pub stack: Option<(u64, u64, u64)>,
    pub has_exec: bool,
}

/// What is known of a process before the look.
pub struct KnownMemory<'a> {
    pub registered: &'a Ranges,
    /// The agent's own pages, which are no news.
    pub own: &'a Ranges,
    /// To be looked at, whatever else is.
    pub doubtful: &'a Ranges,
    /// Reserves are told from other memory without access (`Port::fills_reserves`).
    pub fills_reserves: bool,
    pub unmanaged_bytes: u64,
    /// This much of it is no reason for haste.
    pub slack_bytes: u64,
}

impl Finder {
    /// Is it time to read all, although nothing seems to have changed?
    pub fn is_due(&self) -> bool {
        self.owes && self.last.as_ref().is_none_or(|last| last.at.elapsed() > PART * last.took)
    }

    pub fn find_new(&mut self, pid: u32, known: &KnownMemory<'_>) -> std::io::Result<Found> {
        let glances =
            self.last.as_ref().is_some_and(|last| last.took > CHEAP && last.at.elapsed() < PART * last.took);
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
    fn is_enough(&mut self, known: &KnownMemory<'_>, found: &Found) -> bool {
        let Some(last) = &mut self.last else { return false };
        last.unmanaged_bytes = last.unmanaged_bytes.min(known.unmanaged_bytes);
        let found_bytes: u64 = found.new.iter().map(|new| new.end - new.start).sum();
        let explained_bytes = (last.unmanaged_bytes + known.slack_bytes).saturating_add(found_bytes);
        known.unmanaged_bytes <= explained_bytes || last.at.elapsed() < last.took
    }

    fn read_all(&mut self, pid: u32, known: &KnownMemory<'_>) -> std::io::Result<Found> {
        let begun = Instant::now();
        let mut mappings = proc::manageable(pid)?;
        mappings.retain_mut(|mapping| match mapping.kind {
            MappingKind::Reserve if !known.fills_reserves => {
                mapping.kind = MappingKind::Closed;
                true
            }
            _ => true,
        });
        let ranges = ranges_of(&mappings);
        let new = known.own.missing_of(&known.registered.missing_of(&ranges));
        self.owes = false;
        self.spots = spots(&new, &ranges);
        let new = with_what_is_free(&new, &mappings);
        self.last = Some(Last { at: begun, took: begun.elapsed(), unmanaged_bytes: known.unmanaged_bytes });
        let stack = mappings.iter().find_map(|mapping| match mapping.kind {
            MappingKind::Stack => Some((mapping.below_end, mapping.start, mapping.end)),
            _ => None,
        });
        self.stack_end = stack.map_or(0, |(_, _, end)| end);
        self.heap_end = mappings.iter().rev().find(|m| m.kind == MappingKind::Heap).map(|heap| heap.end);
        let has_exec = mappings.iter().any(|mapping| mapping.kind == MappingKind::Code);
        Ok(Found { new, stack, has_exec })
    }

    /// Walk from each spot, and through all that is doubtful. None: all have to be read.
    fn glance(&mut self, pid: u32, known: &KnownMemory<'_>) -> Option<Found> {
        if self.maps.is_none() {
            self.maps = File::open(format!("/proc/{pid}/maps")).ok();
        }
        let maps = self.maps.as_ref()?;
        let (mut found, mut seen) = (Found::default(), Ranges::default());
        let (mut questions, mut spots) = (0, Vec::new());
        let from_spots = self.heap_end.iter().chain(&self.spots).map(|at| (*at, u64::MAX));
        for (from, to) in from_spots.chain(known.doubtful.iter()) {
            let mut at = from;
            let mut below_end = None;
            let before = found.new.len();
            loop {
                questions += 1;
                if questions > QUESTIONS_MAX {
                    return None;
                }
                let Some(mapping) = procmap::first_from(maps, at).ok()?.filter(|m| m.start < to) else {
                    break;
                };
                at = mapping.end;
                let free_from = below_end.replace(mapping.end).unwrap_or(mapping.start);
                let is_open = mapping.accessible;
                if !is_open || !mapping.anonymous || mapping.end == self.stack_end {
                    continue;
                }
                let new = known.own.missing_of(&known.registered.missing_of(&[(mapping.start, mapping.end)]));
                if new.is_empty() && to == u64::MAX {
                    break;
                }
                found.has_exec |= mapping.executable && !new.is_empty();
                let new = seen.missing_of(&new);
                new.iter().for_each(|(start, end)| seen.insert(*start, *end));
                found.new.extend(new.iter().map(|(start, end)| New {
                    start: *start,
                    end: *end,
                    free_from: if *start == mapping.start { free_from } else { *start },
                    is_reserve: false,
                    is_closed: false,
                }));
            }
            if let Some(new) = found.new[before..].last() {
                spots.push(new.end);
                spots.push(from);
            }
        }
        found.new.sort_unstable_by_key(|new| new.start);
        for new in &found.new {
            self.heap_end = self.heap_end.map(|end| if new.start == end { new.end } else { end });
        }
        self.note_spots(spots);
        Some(found)
    }

    /// Right spots come first, and the others stay for as long as there is room.
    fn note_spots(&mut self, right: Vec<u64>) {
        let mut seen = HashSet::new();
        let all = right.into_iter().chain(std::mem::take(&mut self.spots));
        self.spots = all.filter(|at| seen.insert(*at)).take(SPOTS_MAX).collect();
    }

    /// The ranges of `ranges` that lie within one mapping each, and those that do not.
    pub fn split_by_mapping(&self, pid: u32, ranges: Vec<Range>) -> (Vec<Range>, Vec<Range>) {
        let asks_less = self.last.as_ref().is_some_and(|last| last.took > QUESTION * ranges.len() as u32);
        match &self.maps {
            Some(maps) if asks_less => ranges.into_iter().partition(|(start, end)| {
                let mapping = procmap::first_from(maps, *start).ok().flatten();
                mapping.is_some_and(|mapping| mapping.start <= *start && *end <= mapping.end)
            }),
            _ => split_by_whole(ranges, &ranges_of(&proc::manageable(pid).unwrap_or_default())),
        }
    }
}

fn ranges_of(mappings: &[Mapping]) -> Vec<Range> {
    mappings.iter().map(|mapping| (mapping.start, mapping.end)).collect()
}

/// The ranges of `ranges` that lie within one of `whole` each, and those that do not. Both lists are sorted
/// and disjoint.
fn split_by_whole(ranges: Vec<Range>, whole: &[Range]) -> (Vec<Range>, Vec<Range>) {
    let mut at = 0;
    ranges.into_iter().partition(|(start, end)| {
        while whole.get(at).is_some_and(|(_, to)| to <= start) {
            at += 1;
        }
        whole.get(at).is_some_and(|(from, to)| from <= start && end <= to)
    })
}

/// `new` lies in `mappings`; both ascend.
fn with_what_is_free(new: &[Range], mappings: &[Mapping]) -> Vec<New> {
    let mut at = 0;
    let of = |(start, end): &Range| {
        while mappings[at].end <= *start {
            at += 1;
        }
        let Mapping { start: first, below_end, kind, .. } = mappings[at];
        // The main stack grows into what is free.
        let is_free = *start == first && kind != MappingKind::Stack;
        let free_from = if is_free { below_end } else { *start };
        let (is_reserve, is_closed) = (kind == MappingKind::Reserve, kind == MappingKind::Closed);
        New { start: *start, end: *end, free_from, is_reserve, is_closed }
    };
    new.iter().map(of).collect()
}

/// Where the next mappings will come: after the last and below the first of those that came side by side, the
/// largest of such clusters first.
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
    clusters
        .iter()
        .take(SPOTS_MAX / 2)
        .flat_map(|cluster| [all[cluster.last].1, below(cluster.first)])
        .collect()
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
    fn what_lies_in_one_mapping_is_told_from_what_does_not() {
        let mappings = [(10, 20), (20, 30), (40, 50)];
        let ranges = vec![(10, 15), (16, 20), (20, 30), (35, 42), (44, 50), (60, 70)];
        let (whole, torn) = split_by_whole(ranges, &mappings);
        assert_eq!(whole, [(10, 15), (16, 20), (20, 30), (44, 50)]);
        assert_eq!(torn, [(35, 42), (60, 70)]);
        assert_eq!(split_by_whole(vec![(10, 30)], &mappings), (vec![], vec![(10, 30)]));
    }

    #[test]
    fn what_is_free_below_a_mapping_is_known() {
        let mapping = |start, end, below_end, kind| Mapping { start, end, below_end, kind };
        let mappings = [
            mapping(10, 20, 5, MappingKind::Data),
            mapping(30, 50, 20, MappingKind::Data),
            mapping(60, 70, 55, MappingKind::Data),
            mapping(90, 99, 70, MappingKind::Stack),
        ];
        let new = with_what_is_free(&[(10, 20), (30, 35), (40, 50), (60, 70), (90, 99)], &mappings);
        let free_from: Vec<u64> = new.iter().map(|new| new.free_from).collect();
        assert_eq!(free_from, [5, 20, 40, 55, 90]);
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
        let known = |registered| KnownMemory {
            registered,
            own,
            doubtful,
            fills_reserves: true,
            unmanaged_bytes: 0,
            slack_bytes: 0,
        };
        // In the middle of memory of our own, so that other tests do not change it.
        let memory = vec![1u8; 1 << 20];
        let start = (memory.as_ptr() as u64 + (64 << 10)) & !0xfff;
        let end = start + (64 << 10);
        // All but this part is known.
        let all = finder.read_all(me, &known(&nothing)).expect("our maps").new;
        let mut registered: Ranges = all.iter().map(New::range).collect();
        registered.remove(start, end);
        finder.spots = vec![start];
        let Some(found) = finder.glance(me, &known(&registered)) else {
            eprintln!("not tested: this kernel has no PROCMAP_QUERY (Linux 6.11 has it)");
            return;
        };
        assert!(found.new.iter().any(|new| new.range() == (start, end)), "{:x?} has no {start:x}", found.new);
        let (whole, torn) = finder.split_by_mapping(me, vec![(start, end), (4096, 8192)]);
        assert_eq!((whole, torn), (vec![(start, end)], vec![(4096, 8192)]));
        drop(memory);
    }
}
