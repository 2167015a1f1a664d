//! Memory that stays where it is and is too much by itself.
//!
//! A page that cannot be moved out takes its part of the limit. If such pages alone come to more than the
//! limit, nothing that is reclaimed brings usage below it, and as long as nobody faults nobody notices. So
//! the monitor looks for that:
//!
//! ```text
//!   usage above the mark of reclaim for a while, nothing reclaimed meanwhile
//!   (or what is not managed leaves little of the limit)
//!      ── smaps of each process: what cannot be moved out, by kind ── more than the limit? ── --on-full
//! ```
//!
//! Memory that could be moved out but is not (a stopped process, a slow disk) is no reason: it is not counted
//! here.

use crate::proc::{self, SharedKind};
use crate::process::ranges::Ranges;
use crate::process::{Process, standstill};
use crate::run::account::UnmanagedShared;
use crate::run::{Run, Shared, account};
use crate::times::{SHARED_TOLD, UNMANAGED_GROW, UNMANAGED_KILL};
use memspill_engine::group::Group;
use memspill_engine::units::GroupId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// A kind with less than this is not worth a word.
const WORTH_NAMING_BYTES: u64 = 1 << 20;

/// It must have been so at so many looks: where the machine stood still for a while, or a round took long,
/// the time alone says nothing, and what came meanwhile is about to be registered.
const LOOKS_MIN: u32 = 20;

/// If unmanaged memory leaves less than this part of the limit, it may be too much.
const LITTLE_PART: u64 = 16;

/// Nothing else stays that an option leaves uncounted.
const OF_SHARED: &str = "of shared memory that is not swapped";
const OF_FILES: &str = "of written private file mappings";
/// The number of objects of shared memory, or files, that are named.
const NAMED_MAX: usize = 3;

/// The kernel's UFFDIO_MOVE moves what can be written, and nothing else.
const PROTECTED: &str = "read-only or without access";

/// Bytes that cannot be moved out.
#[derive(Default, PartialEq, Eq, Debug)]
struct Staying {
    kinds: BTreeMap<&'static str, u64>,
    /// Pages of private file mappings, by file.
    files: BTreeMap<String, u64>,
}

impl Staying {
    fn total(&self) -> u64 {
        self.kinds.values().sum()
    }

    fn largest_kind(&self) -> Option<&'static str> {
        self.kinds.iter().max_by_key(|(_, bytes)| **bytes).map(|(kind, _)| *kind)
    }

    /// `/a/b 40 MiB, /a/c 3 MiB`: the largest files, or nothing.
    fn files_described(&self) -> String {
        let mut files: Vec<_> =
            self.files.iter().filter(|(_, bytes)| **bytes >= WORTH_NAMING_BYTES).collect();
        files.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let named: Vec<String> =
            files.iter().take(NAMED_MAX).map(|(name, bytes)| format!("{name} {}", size(**bytes))).collect();
        named.join(", ")
    }
}

/// What the monitor remembers from round to round.
#[derive(Default)]
pub struct Watch {
    /// Groups that reclaim is to make room in.
    over: HashMap<GroupId, Over>,
    shared: SharedNotice,
}

/// A line about shared memory that leaves little to the rest.
#[derive(Default)]
struct SharedNotice {
    since: Option<Instant>,
    looks: u32,
    is_told: bool,
}

impl SharedNotice {
    /// Once in a run: shared memory that stays takes half of the budget, and has for a while.
    fn look(&mut self, run: &Run) {
        let objects = run.account.unmanaged_shared();
        let stays = objects.iter().filter(|object| !object.is_to_leave);
        let bytes: u64 = stays.map(|object| object.bytes).sum();
        let limit_bytes = run.engine.root().limit_bytes();
        // If there is more than fits, another line will say so.
        if self.is_told || !(limit_bytes / 2..limit_bytes).contains(&bytes) {
            *self = SharedNotice { is_told: self.is_told, ..SharedNotice::default() };
            return;
        }
        self.looks += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > SHARED_TOLD && self.looks >= LOOKS_MIN {
            self.is_told = true;
            let (what, fix) = (shared_described(run, None), fix_of_shared(run));
            let (mib, limit_mib) = (mib(bytes), limit_bytes >> 20);
            eprintln!("memspill: {mib} MiB of the budget of {limit_mib} MiB are {OF_SHARED}: {what}; {fix}");
        }
    }
}

/// Since when a group is over its mark, the pages that had been reclaimed then, and refused as they are
/// mapped (protected, locked), and the looks since.
struct Over {
    since: Instant,
    reclaimed: u64,
    refused: u64,
    looks: u32,
}

impl Watch {
    /// Find groups that reclaim cannot help, and do what `--on-full` says. To be called in each round of the
    /// monitor.
    pub fn check_groups(&mut self, run: &Run) {
        if !run.is_memory_tight() {
            return;
        }
        self.shared.look(run);
        let lasts = run.settings.on_full.either(UNMANAGED_KILL, UNMANAGED_GROW);
        let reclaimed = run.engine.stats().sum(|c| &c.pgsteal);
        let refused = run.engine.stats().sum(|c| &c.take_unevictable);
        for group in run.engine.groups().all() {
            // Pages still come and go in what little is left, so reclaim says nothing then. The count here
            // differs from look to look; a closer look decides.
            let little_bytes = room_bytes(group) + group.limit_bytes() / LITTLE_PART;
            let is_fixed = fixed_bytes(run, group) + little_bytes > group.limit_bytes();
            // While a fault waits for room, usage is a little below the limit.
            if !group.above_high_mark() {
                self.over.remove(&group.id);
                continue;
            }
            let new = || Over { since: Instant::now(), reclaimed, refused, looks: 0 };
            let over = self.over.entry(group.id).or_insert_with(new);
            over.looks += 1;
            // The little that can leave beside much that stays is reclaimed again and again.
            let is_refused = refused - over.refused > reclaimed - over.reclaimed;
            if reclaimed != over.reclaimed && !is_fixed && !is_refused {
                self.over.remove(&group.id);
            } else if over.since.elapsed() > lasts && over.looks >= LOOKS_MIN {
                self.over.remove(&group.id);
                judge_group(run, group);
            }
        }
    }
}

/// The bytes that count against a group and are neither managed nor compressed.
fn fixed_bytes(run: &Run, group: &Group) -> u64 {
    match group.parent {
        None => run.account.measured_bytes() + run.engine.frame_bytes(),
        Some(_) => group.other_bytes(),
    }
}

/// Room that reclaim keeps free: what stays must leave as much.
fn room_bytes(group: &Group) -> u64 {
    2 * group.gap_bytes()
}

/// Look at each process of a group that is too large, and decide.
fn judge_group(run: &Run, group: &Group) {
    let found = by_process(run, |process| process.space.group(run.engine.swap()).is_within(group));
    let stays_bytes: u64 = found.iter().map(|(_, staying)| staying.total()).sum();
    let own_bytes = match group.parent {
        None => account::own_bytes(&run.engine),
        Some(_) => 0,
    };
    // Processes that share pages since a fork have each its part of them here; usage may count them more than
    // once.
    let needed_bytes = stays_bytes + own_bytes + room_bytes(group);
    if needed_bytes <= group.limit_bytes() {
        return;
    }
    let Some((process, staying)) = found.iter().max_by_key(|(_, staying)| staying.total()) else { return };
    let (limit, fix) = match group.parent {
        None if staying.kinds.contains_key(OF_SHARED) => ("the budget".to_string(), fix_of_shared(run)),
        None if staying.largest_kind() == Some(OF_FILES) => {
            let fix = "raise --memory-max, or have the program read the file instead of mapping it";
            ("the budget".to_string(), fix)
        }
        None if staying.largest_kind() == Some(PROTECTED) => {
            let fix = "raise --memory-max, or run it with --mode=agent, which swaps such memory";
            ("the budget".to_string(), fix)
        }
        None => ("the budget".to_string(), "raise --memory-max"),
        Some(_) => (format!("group {}", group.name), "raise its memory.max"),
    };
    let reason = format!(
        "{} MiB in memory cannot be swapped out{}, and {limit} is {} MiB: {}",
        mib(stays_bytes),
        own_part(own_bytes, run.processes().len()),
        group.limit_bytes() >> 20,
        described(run, process, staying)
    );
    run.no_way_out(group, Some(needed_bytes), &reason, fix);
}

/// Says memspill's own part, which is most of it where there are many processes.
fn own_part(own_bytes: u64, processes: usize) -> String {
    match (own_bytes, processes) {
        (0, _) => String::new(),
        (_, 1) => format!(", memspill itself has {} MiB", mib(own_bytes)),
        _ => format!(", memspill itself has {} MiB for {processes} processes", mib(own_bytes)),
    }
}

/// The process with the most memory that cannot be moved out, for people. None if there is little of it.
pub fn largest(run: &Run) -> Option<String> {
    let found = by_process(run, |_| true);
    let (process, staying) = found.iter().max_by_key(|(_, staying)| staying.total())?;
    (staying.total() >= WORTH_NAMING_BYTES).then(|| described(run, process, staying))
}

/// Shared memory that is not swapped takes most of the budget. What can be done about it?
pub fn fix_for(run: &Run) -> Option<&'static str> {
    let bytes: u64 = run.account.unmanaged_shared().iter().map(|object| object.bytes).sum();
    (bytes > run.engine.root().limit_bytes() / 2).then(|| fix_of_shared(run))
}

/// The option that swaps the largest object, if there is one.
fn fix_of_shared(run: &Run) -> &'static str {
    const RAISE: &str = "raise --memory-max, or leave shared memory uncounted with --shared=none";
    let largest = run.account.unmanaged_shared().first().map(|object| object.kind);
    match (run.settings.shared, largest) {
        (_, None | Some(SharedKind::SystemV)) | (Shared::All | Shared::None, _) => RAISE,
        (Shared::Anonymous, Some(SharedKind::Anonymous)) => RAISE,
        (Shared::Anonymous, Some(SharedKind::File)) => {
            "raise --memory-max, or have it swapped with --shared=all (its condition is in docs/guide.md)"
        }
        (Shared::Counted, Some(SharedKind::Anonymous)) => {
            "raise --memory-max, or run memspill as root, which swaps it (--mode=kernel)"
        }
        (Shared::Counted, Some(SharedKind::File)) => {
            "raise --memory-max, or run memspill as root, which can swap it (--mode=kernel --shared=all)"
        }
    }
}

/// `process 77 (java) has memfd java_heap, 260 MiB; and 3 MiB in 2 more`, of this process or of all.
fn shared_described(run: &Run, process: Option<u64>) -> String {
    let objects = run.account.unmanaged_shared();
    let is_of = |object: &&UnmanagedShared| process.is_none_or(|key| object.process == Some(key));
    let objects = objects.iter().filter(is_of);
    let mut parts = Vec::new();
    let (mut more, mut more_bytes) = (0, 0);
    for object in objects {
        if parts.len() == NAMED_MAX {
            more += 1;
            more_bytes += object.bytes;
            continue;
        }
        let owner = object.process.filter(|_| process.is_none()).and_then(|key| run.process(key));
        let owner = owner.map_or(String::new(), |p| format!(" of {}", standstill::name(p.memory.pid())));
        parts.push(format!("{}{owner} {} MiB", object.name, mib(object.bytes)));
    }
    if more > 0 {
        parts.push(format!("{} MiB in {more} more", mib(more_bytes)));
    }
    parts.join(", ")
}

/// `process 77 (cc1plus) has 40 MiB locked, 3 MiB of written private file mappings`. Parts of less than a MiB
/// are named if a process has nothing more.
fn described(run: &Run, process: &Process, staying: &Staying) -> String {
    let mut kinds: Vec<_> = staying.kinds.iter().collect();
    kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    let worth_naming =
        |(place, (_, bytes)): &(usize, &(&&str, &u64))| *place == 0 || **bytes >= WORTH_NAMING_BYTES;
    let parts = kinds.iter().enumerate().filter(worth_naming);
    let part = |(_, (kind, bytes)): (usize, &(&&str, &u64))| {
        let part = format!("{} {kind}", size(**bytes));
        let which = match **kind {
            OF_SHARED => shared_described(run, Some(process.key)),
            OF_FILES => staying.files_described(),
            _ => String::new(),
        };
        if which.is_empty() { part } else { format!("{part} ({which})") }
    };
    let parts: Vec<String> = parts.map(part).collect();
    format!("{} has {}", standstill::name(process.memory.pid()), parts.join(", "))
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// For people. One MiB is much, where there are a hundred processes.
fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", mib(bytes)) }
}

fn by_process(run: &Run, wanted: impl Fn(&Process) -> bool) -> Vec<(Arc<Process>, Staying)> {
    let staying = |process: Arc<Process>| {
        // The child of a fork, of which nothing is known until it has joined: that takes a while where many
        // fork.
        if process.may_join() || process.growth.only().is_some() {
            return None;
        }
        let smaps = proc::smaps(process.memory.proc_id()).ok()?;
        let is_registered = process.growth.is_registered();
        let takes_closed = !process.memory.keeps_closed();
        let mut staying =
            staying_in(&smaps, process.growth.lock_ranges().ranges(), is_registered, takes_closed);
        let shared_bytes = process.growth.unmanaged_shared_bytes();
        if shared_bytes > 0 {
            staying.kinds.insert(OF_SHARED, shared_bytes);
        }
        Some((process, staying))
    };
    run.processes().into_iter().filter(|process| wanted(process)).filter_map(staying).collect()
}

/// One mapping of smaps.
#[derive(Default)]
struct Region<'a> {
    range: (u64, u64),
    perms: &'a str,
    /// The name of a file.
    file: Option<&'a str>,
    is_stack: bool,
    rss_kib: u64,
    pss_kib: u64,
    anonymous_kib: u64,
}

/// The memory of a process that cannot be moved out, by kind. Shared pages count by its part. `takes_closed`:
/// memory that cannot be written now can be moved out too.
fn staying_in(smaps: &str, registered: &Ranges, is_registered: bool, takes_closed: bool) -> Staying {
    let mut staying = Staying::default();
    let mut region = Region::default();
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let first = fields.next().unwrap_or("");
        let mut kib = || fields.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        match first {
            "Rss:" => region.rss_kib = kib(),
            "Pss:" => region.pss_kib = kib(),
            "Anonymous:" => region.anonymous_kib = kib(),
            "VmFlags:" => {
                let region = std::mem::take(&mut region);
                let is_locked = fields.any(|flag| flag == "lo");
                if let Some(kind) = why_it_stays(&region, registered, is_locked, is_registered, takes_closed)
                {
                    *staying.kinds.entry(kind).or_default() += region.anonymous_bytes();
                    if let Some(file) = region.file {
                        *staying.files.entry(file.to_string()).or_default() += region.anonymous_bytes();
                    }
                }
            }
            _ if first.ends_with(':') => {}
            _ => region = Region::of_line(line).unwrap_or_default(),
        }
    }
    staying.kinds.retain(|_, bytes| *bytes > 0);
    staying.files.retain(|_, bytes| *bytes > 0);
    staying
}

impl Region<'_> {
    /// `start-end perms offset dev inode [name]`
    fn of_line(line: &str) -> Option<Region<'_>> {
        let mut fields = line.split_ascii_whitespace();
        let range = proc::range_of(fields.next()?.as_bytes())?;
        let (perms, inode) = (fields.next()?, fields.nth(2)?);
        let first = fields.next();
        // The name is the rest of the line: it may have spaces.
        let name = first.map_or("", |first| &line[first.as_ptr() as usize - line.as_ptr() as usize..]);
        let file = (inode != "0").then_some(name.trim_end());
        Some(Region { range, perms, file, is_stack: name == "[stack]", ..Region::default() })
    }

    fn anonymous_bytes(&self) -> u64 {
        let part =
            u128::from(self.anonymous_kib) * u128::from(self.pss_kib) / u128::from(self.rss_kib.max(1));
        u64::try_from(part).unwrap_or(u64::MAX).saturating_mul(1024)
    }
}

/// Why a mapping's pages stay. None: they can be moved out.
fn why_it_stays(
    region: &Region<'_>,
    registered: &Ranges,
    is_locked: bool,
    is_registered: bool,
    takes_closed: bool,
) -> Option<&'static str> {
    let (start, end) = region.range;
    Some(match () {
        _ if region.file.is_some() => OF_FILES,
        _ if is_locked => "locked",
        _ if !region.perms.starts_with("rw") && !takes_closed => PROTECTED,
        _ if registered.intersects(start, end) => return None,
        _ if region.is_stack => "of stack",
        _ if !is_registered => "in small processes",
        _ if region.perms.starts_with("rwx") => "writable and executable",
        _ => "not registered (or with a userfaultfd of its own)",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(line: &str, pss_kib: u64, anonymous_kib: u64, flags: &str) -> String {
        let sizes =
            format!("Rss:  800 kB\nPss:  {pss_kib} kB\nPss_Anon:  7 kB\nAnonymous:  {anonymous_kib} kB");
        format!("{line}\nSize:  9 kB\n{sizes}\nVmFlags: rd {flags} \n")
    }

    #[test]
    fn what_is_small_is_not_called_a_mib_and_our_own_part_is_named() {
        assert_eq!([size(88 << 10), size(1 << 20), size((1 << 20) + 1)], ["88 KiB", "1 MiB", "2 MiB"]);
        let parts = [own_part(0, 9), own_part(3 << 20, 1), own_part(20 << 20, 117)];
        let for_many = ", memspill itself has 20 MiB for 117 processes";
        assert_eq!(parts, ["", ", memspill itself has 3 MiB", for_many]);
    }

    #[test]
    fn what_stays_is_named() {
        let smaps = [
            region("1000-2000 rw-p 00000000 00:00 0", 800, 800, "um"),
            region("2000-3000 rw-p 00000000 00:00 0", 800, 800, "um lo"),
            region("3000-4000 rw-p 00000000 08:01 7   /a b", 800, 400, ""),
            region("4000-5000 r--p 00000000 00:00 0", 400, 800, "um"),
            region("5000-6000 rw-p 00000000 00:00 0", 800, 16, "um"),
            region("6000-7000 rwxp 00000000 00:00 0", 800, 32, ""),
            region("7000-8000 r-xp 00000000 08:01 7   /a b", 800, 0, ""),
        ];
        let registered: Ranges = [(0x1000, 0x3000)].into_iter().collect();
        let staying = staying_in(&smaps.concat(), &registered, true, false);
        let expected: BTreeMap<&str, u64> = [
            ("locked", 800 << 10),
            ("of written private file mappings", 400 << 10),
            ("read-only or without access", 400 << 10),
            ("not registered (or with a userfaultfd of its own)", 16 << 10),
            ("writable and executable", 32 << 10),
        ]
        .into();
        assert_eq!(staying.kinds, expected);
        assert_eq!(staying.files, [("/a b".to_string(), 400 << 10)].into());
        assert_eq!(staying.largest_kind(), Some("locked"));
        let staying = staying_in(&smaps[3], &[(0x4000, 0x5000)].into_iter().collect(), true, true);
        assert_eq!(staying, Staying::default(), "the agent takes out what is read-only");
    }

    #[test]
    fn the_largest_files_are_named() {
        let file = |name: &str, kib| region(&format!("3-4 rw-p 0 08:01 7   {name}"), 800, kib, "");
        let smaps = [file("/a b", 4 << 10), file("/c", 512), file("/d", 6 << 10), file("/a b", 4 << 10)];
        let staying = staying_in(&smaps.concat(), &Ranges::default(), true, true);
        assert_eq!(staying.files_described(), "/a b 8 MiB, /d 6 MiB");
    }
}
