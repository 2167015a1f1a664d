//! The one range of a process that counts (`memspill attach --arena`), and how much of it is in memory.
//!
//! The kernel counts a whole process, and to count a range is to walk it, some ns a page. So it is walked
//! when the process has grown or shrunk by more than it is managed, and now and then:
//!
//! ```text
//!   all of the process ── less what was outside at the last walk ──▶ the range, as is likely
//!   is that as much more than what is managed as at the last walk?   no ──▶ walk again
//! ```
//!
//! What it does not see until the next walk: memory outside that goes while as much comes inside.

use crate::process::ranges::Range;
use crate::times::{WALK_PAUSE, WALK_PAUSE_MAX, us_of};
use std::sync::Mutex;
use std::time::Instant;

/// The kernel's count is wrong by some hundred KiB.
const UNSURE_BYTES: u64 = 1 << 20;

pub struct Only {
    range: Range,
    last: Mutex<Walk>,
}

/// The last walk: what it has shown, and when the next one is due whatever the counts say.
#[derive(Default)]
struct Walk {
    outside_bytes: u64,
    unmanaged_bytes: i64,
    next_us: u64,
}

impl Only {
    pub fn new(range: Range) -> Only {
        Only { range, last: Mutex::default() }
    }

    pub fn range(&self) -> Range {
        self.range
    }

    /// The bytes of the range that are in memory, of a process that has `all_bytes` there; `managed_bytes` of
    /// the range are known. `walk` counts them.
    pub fn bytes(&self, all_bytes: u64, managed_bytes: u64, walk: impl FnOnce() -> Option<u64>) -> u64 {
        let mut last = self.last.lock().expect("walk");
        let likely_bytes = all_bytes.saturating_sub(last.outside_bytes);
        let begun = Instant::now();
        let grown_bytes = (likely_bytes as i64 - managed_bytes as i64).abs_diff(last.unmanaged_bytes);
        if us_of(begun) < last.next_us && grown_bytes < UNSURE_BYTES {
            return likely_bytes;
        }
        let Some(bytes) = walk() else { return likely_bytes };
        let pause = (begun.elapsed() * WALK_PAUSE).min(WALK_PAUSE_MAX);
        *last = Walk {
            outside_bytes: all_bytes.saturating_sub(bytes),
            unmanaged_bytes: bytes as i64 - managed_bytes as i64,
            next_us: us_of(Instant::now() + pause),
        };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_walked_when_the_count_says_so() {
        let only = Only::new((0, 4096));
        // 10 MiB are outside. A walk that takes a ms is not repeated for a while.
        let slow_walk = |bytes: u64| {
            move || {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Some(bytes)
            }
        };
        assert_eq!(only.bytes(30 * MIB, 0, slow_walk(20 * MIB)), 20 * MIB);
        let no_walk = || -> Option<u64> { panic!("a walk") };
        assert_eq!(only.bytes(30 * MIB + MIB / 2, 0, no_walk), 20 * MIB + MIB / 2);
        // It has been adopted since.
        assert_eq!(only.bytes(30 * MIB, 20 * MIB, slow_walk(20 * MIB)), 20 * MIB);
        // Pages leave, and are known to.
        assert_eq!(only.bytes(20 * MIB, 10 * MIB, no_walk), 10 * MIB);
        // Memory has come, outside.
        assert_eq!(only.bytes(25 * MIB, 10 * MIB, slow_walk(10 * MIB)), 10 * MIB);
        assert_eq!(only.bytes(25 * MIB, 10 * MIB, no_walk), 10 * MIB);
    }
}
