//! Cache lines: who has each, and what it costs the next one to get it.
//!
//! ```text
//!   write:  this CPU has the line alone      L1
//!           else                             queue for it, then the way from the last writer; others lose it
//!   read:   this CPU has its latest version  L1
//!           else                             the way from the last writer; readers do not queue
//! ```
//!
//! So writers of one line queue for it, which is what stops a shared counter from scaling. A line has no
//! address: it is made with the atomic or lock on it. Atomics that are made one after another by the same
//! expression (an array, a derived `Default`) share lines of 64 bytes as they would in memory, until
//! somebody says that what comes next is aligned ([`Lines::align`]); all else lies on lines of its own. So
//! false sharing between the fields of a struct is not seen.

use crate::cost;
use std::panic::Location;

const LINE_BYTES: u32 = 64;
/// Lines that a CPU keeps (half of a 48 KiB L1 and a bit of L2), mapped directly.
const CACHE_LINES: usize = 1024;
const NOBODY: u32 = u32::MAX;

pub type LineId = u32;

struct Line {
    owner: u32,
    /// Somebody has read it since the last write.
    shared: bool,
    version: u32,
    free_at: u64,
}

/// What an access cost: the time when it is done, how long it queued, and if the line had to come from
/// elsewhere.
pub struct Access {
    pub done_at: u64,
    pub waited: u64,
    pub moved: bool,
}

pub struct Lines {
    cpus_per_socket: u32,
    lines: Vec<Line>,
    /// For each CPU: the (line, version) in each place of its cache.
    caches: Vec<Vec<(LineId, u32)>>,
    /// The expression that made the last atomic, its line, and the bytes used of that.
    last_made: Option<(&'static Location<'static>, LineId, u32)>,
}

impl Lines {
    pub fn new(cpus_per_socket: u32) -> Lines {
        Lines {
            cpus_per_socket: cpus_per_socket.max(1),
            lines: Vec::new(),
            caches: Vec::new(),
            last_made: None,
        }
    }

    pub fn add_cpu(&mut self, cpu: u32) {
        let cpus = self.caches.len().max(cpu as usize + 1);
        self.caches.resize_with(cpus, || vec![(LineId::MAX, 0); CACHE_LINES]);
    }

    /// A line for something that has one to itself.
    pub fn make(&mut self) -> LineId {
        self.last_made = None;
        self.push()
    }

    /// Lines in a row, for data. Returns the first.
    pub fn make_many(&mut self, lines: u32) -> LineId {
        let first = self.make();
        (1..lines).for_each(|_| _ = self.push());
        first
    }

    /// The next thing that is made begins a line.
    pub fn align(&mut self) {
        self.last_made = None;
    }

    /// A line for an atomic of so many bytes, which may share it with those made just before.
    pub fn make_for(&mut self, bytes: u32, by: &'static Location<'static>) -> LineId {
        let (line, used) = match self.last_made {
            Some((before, line, used)) if before == by && used + bytes <= LINE_BYTES => (line, used),
            _ => (self.push(), 0),
        };
        self.last_made = Some((by, line, used + bytes));
        line
    }

    fn push(&mut self) -> LineId {
        self.lines.push(Line { owner: NOBODY, shared: false, version: 0, free_at: 0 });
        LineId::try_from(self.lines.len() - 1).expect("fewer than 2^32 lines")
    }

    /// A locked instruction.
    pub fn write(&mut self, id: LineId, cpu: u32, now: u64) -> Access {
        self.change(id, cpu, now, cost::RMW_NS)
    }

    /// A plain store, which takes no more than a load where this CPU has the line.
    pub fn store(&mut self, id: LineId, cpu: u32, now: u64) -> Access {
        self.change(id, cpu, now, cost::LOAD_NS)
    }

    fn change(&mut self, id: LineId, cpu: u32, now: u64, own_ns: u64) -> Access {
        let line = &mut self.lines[id as usize];
        let place = &mut self.caches[cpu as usize][id as usize % CACHE_LINES];
        let cached = *place == (id, line.version);
        line.version = line.version.wrapping_add(1);
        *place = (id, line.version);
        if cached && line.owner == cpu && !line.shared {
            return Access { done_at: now + own_ns, waited: 0, moved: false };
        }
        let start = now.max(line.free_at);
        let done_at = start + way(line.owner, cpu, self.cpus_per_socket);
        (line.owner, line.shared, line.free_at) = (cpu, false, done_at);
        Access { done_at, waited: start - now, moved: true }
    }

    pub fn read(&mut self, id: LineId, cpu: u32, now: u64) -> Access {
        let line = &mut self.lines[id as usize];
        let place = &mut self.caches[cpu as usize][id as usize % CACHE_LINES];
        if *place == (id, line.version) {
            return Access { done_at: now + cost::LOAD_NS, waited: 0, moved: false };
        }
        *place = (id, line.version);
        line.shared |= line.owner != cpu;
        let start = now.max(line.free_at);
        let done_at = start + way(line.owner, cpu, self.cpus_per_socket);
        Access { done_at, waited: start - now, moved: true }
    }

    /// Are both in one socket?
    pub fn are_near(&self, one: u32, other: u32) -> bool {
        one / self.cpus_per_socket == other / self.cpus_per_socket
    }

    /// What it takes to bring a line from one CPU to another.
    pub fn way(&self, from: u32, to: u32) -> u64 {
        way(from, to, self.cpus_per_socket)
    }
}

fn way(from: u32, to: u32, cpus_per_socket: u32) -> u64 {
    match from {
        NOBODY => cost::DRAM_NS,
        _ if from == to => cost::L2_NS,
        _ if from / cpus_per_socket == to / cpus_per_socket => cost::LINE_SAME_SOCKET_NS,
        _ => cost::LINE_OTHER_SOCKET_NS,
    }
}
