//! What is at an address of a process, in words: from its /proc/PID/maps.
//!
//! ```text
//!   [heap] [stack] [anon:name]   as the kernel names them
//!   file                         a private mapping of a file: its data
//!   behind the data of file      anonymous, writable, right behind such a mapping: .bss, or more
//!   [thread stack]               anonymous, right above a small one that nobody may touch
//!   [malloc arena]               anonymous from a multiple of 64 MiB, and the rest of these 64 MiB closed
//!   [anon] 64 to 128 MiB         all else, by its size
//! ```
//!
//! Maps are read line by line, and only what is asked for is kept: a process may have 65,000 mappings. A
//! stack and an arena are known by how the C library lays them out, which is a guess.

use crate::message::plain;
use std::io::{self, BufRead};

/// A mapping in which somebody is interested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// For people.
    pub name: String,
}

impl Mapping {
    pub fn holds(&self, addr: u64) -> bool {
        (self.start..self.end).contains(&addr)
    }
}

/// The C library's arenas begin at a multiple of this and are no longer.
const ARENA_BYTES: u64 = 64 << 20;
/// The closed range below a thread's stack is smaller than this.
const STACK_GUARD_BYTES: u64 = 1 << 20;

/// A line of maps.
#[derive(Clone, Debug)]
struct Line {
    start: u64,
    end: u64,
    perms: [u8; 4],
    inode: u64,
    name: String,
}

/// The mappings that hold these addresses, which are in ascending order.
pub fn find(mut maps: impl BufRead, wanted: &[u64]) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    let (mut below, mut line): (Option<Line>, Option<Line>) = (None, None);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let above = match maps.read_until(b'\n', &mut bytes)? {
            0 => None,
            _ => match parse(&bytes) {
                None => continue,
                above => above,
            },
        };
        let is_last = above.is_none();
        if let Some(line) = &line {
            let first = wanted.partition_point(|addr| *addr < line.start);
            if wanted.get(first).is_some_and(|addr| *addr < line.end) {
                found.push(mapping(line, below.as_ref(), above.as_ref()));
            }
        }
        if is_last {
            return Ok(found);
        }
        below = std::mem::replace(&mut line, above);
    }
}

/// `7f00-7f10 rw-p 00001000 08:01 1234    /some/file`.
fn parse(line: &[u8]) -> Option<Line> {
    let text = String::from_utf8_lossy(line);
    let mut rest = text.trim_end_matches('\n');
    let mut field = || {
        let trimmed = rest.trim_start_matches(' ');
        let (field, left) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        rest = left;
        field
    };
    let (start, end) = field().split_once('-')?;
    let (perms, _offset, _device, inode) = (field(), field(), field(), field());
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let name = plain(rest.trim_start_matches(' '));
    let perms = perms.as_bytes().try_into().ok()?;
    (start < end).then_some(Line { start, end, perms, inode: inode.parse().ok()?, name })
}

fn mapping(line: &Line, below: Option<&Line>, above: Option<&Line>) -> Mapping {
    Mapping { start: line.start, end: line.end, name: name_of(line, below, above) }
}

fn name_of(line: &Line, below: Option<&Line>, above: Option<&Line>) -> String {
    if memspill_common::protocol::is_agent(&line.name) {
        return "memspill's agent".into();
    }
    if line.name == "/dev/zero (deleted)" {
        return "[shared anonymous]".into();
    }
    if !line.name.is_empty() {
        return line.name.clone();
    }
    let is_closed = |other: &&Line| other.perms.starts_with(b"---");
    let below = below.filter(|below| below.end == line.start);
    let above = above.filter(|above| above.start == line.end);
    if line.start.is_multiple_of(ARENA_BYTES)
        && above.filter(is_closed).is_some_and(|rest| rest.end <= line.start.saturating_add(ARENA_BYTES))
    {
        return "[malloc arena]".into();
    }
    if below.filter(is_closed).is_some_and(|guard| guard.end - guard.start < STACK_GUARD_BYTES) {
        return "[thread stack]".into();
    }
    let is_data = |below: &&Line| below.inode != 0 && below.perms.starts_with(b"rw");
    if let Some(data) = below.filter(is_data) {
        return format!("behind the data of {}", data.name);
    }
    format!("[anon] {}", size_class(line.end - line.start))
}

/// Between which powers of two.
fn size_class(bytes: u64) -> String {
    match bytes >> 20 {
        0 => "below 1 MiB".into(),
        mib => {
            let low = mib.ilog2();
            format!("{} to {} MiB", 1u64 << low, 2u64 << low)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55e24136a000-55e24136b000 r--p 00000000 08:01 99                         /tmp/a program
55e24136b000-55e24136c000 r-xp 00001000 08:01 99                         /tmp/a program
55e24136e000-55e24136f000 rw-p 00003000 08:01 99                         /tmp/a program
55e24136f000-55e241371000 rw-p 00000000 00:00 0 
55e24200a000-55e24202b000 rw-p 00000000 00:00 0                          [heap]
7f4500000000-7f4500021000 rw-p 00000000 00:00 0 
7f4500021000-7f4504000000 ---p 00000000 00:00 0 
7f4510000000-7f4511000000 rw-p 00000000 00:00 0 
7f4512000000-7f4512001000 ---p 00000000 00:00 0 
7f4512001000-7f4512801000 rw-p 00000000 00:00 0 
7f4513000000-7f4513001000 rw-p 00000000 00:00 0                          [anon:my arena]
7f4514000000-7f4514001000 rw-s 00000000 00:01 7                          /dev/zero (deleted)
7f4515000000-7f4515001000 r-xp 00000000 00:01 8                          /memfd:memspill-agent (deleted)
7ffe3dde0000-7ffe3de01000 rw-p 00000000 00:00 0                          [stack]
";

    fn name_at(addr: u64) -> Option<String> {
        find(MAPS.as_bytes(), &[1, addr, u64::MAX]).unwrap().first().map(|mapping| mapping.name.clone())
    }

    #[test]
    fn places_by_their_names() {
        let names = [
            (0x55e2_4136_e000, "/tmp/a program"),
            (0x55e2_4136_f008, "behind the data of /tmp/a program"),
            (0x55e2_4200_a000, "[heap]"),
            (0x7f45_0000_0010, "[malloc arena]"),
            (0x7f45_1000_0000, "[anon] 16 to 32 MiB"),
            (0x7f45_1280_0fff, "[thread stack]"),
            (0x7f45_1300_0000, "[anon:my arena]"),
            (0x7f45_1400_0fff, "[shared anonymous]"),
            (0x7f45_1500_0000, "memspill's agent"),
            (0x7ffe_3de0_0fff, "[stack]"),
        ];
        for (addr, name) in names {
            assert_eq!(name_at(addr).as_deref(), Some(name), "{addr:x}");
        }
        for nowhere in [0x55e2_4137_1000, 0x7ffe_3de0_1000, 0] {
            assert_eq!(name_at(nowhere), None, "{nowhere:x}");
        }
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for text in ["", "\n\n", "x", "1-2\n", "2-1 rw-p 0 0:0 0\n", "1-2 rw-p 0 0:0\n", "g-h rw-p 0 0:0 0\n"]
        {
            assert_eq!(find(text.as_bytes(), &[1]).unwrap(), [], "{text:?}");
        }
        let odd = b"1000-2000 rw-p 0 0:0 0 \xff\x1b[2J\n";
        assert_eq!(find(&odd[..], &[0x1000]).unwrap()[0].name, "\u{fffd}\\u{1b}[2J");
        // Whatever it claims to be.
        assert!(find(&b"1000-ffffffffffffffff rw-p 0 0:0 0\n"[..], &[0x1000]).unwrap()[0].holds(0x2000));
    }
}
