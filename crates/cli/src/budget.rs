//! What `--memory-max` says: a size, a share of the machine or the container, or all that others leave
//! (`auto`); and what it comes to while that changes.
//!
//! ```text
//!   512M       stays
//!   80%        of the container's limit, or of the machine: follows the limit
//!   auto       what is free there and what the run has already, less a reserve; less still while the kernel
//!              has others wait for memory (PSI), until they do not
//! ```

use crate::machine::Memory;
use crate::size::{self, MEMORY_MAX_LEAST_BYTES, Size, SizeError};
use std::str::FromStr;

/// Above this PSI the budget shrinks with each look; below the other it grows again.
const PRESSED_PERCENT: f64 = 10.0;
const AT_EASE_PERCENT: f64 = 1.0;
/// By these factors, and to no less than the last of them.
const SHRINKS: f64 = 0.95;
const RECOVERS: f64 = 1.02;
const SHRUNK_LEAST: f64 = 0.5;

/// As typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    Size(Size),
    Auto,
}

impl FromStr for Budget {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Budget, SizeError> {
        match text.eq_ignore_ascii_case("auto") {
            true => Ok(Budget::Auto),
            false => size::parse_nonzero(text).map(Budget::Size),
        }
    }
}

/// What it comes to, from look to look.
pub struct Following {
    budget: Budget,
    /// The part of an automatic budget that is left by pressure.
    shrunk_to: f64,
}

impl Following {
    pub fn new(budget: Budget) -> Following {
        Following { budget, shrunk_to: 1.0 }
    }

    /// At the start.
    pub fn first_bytes(&self, memory: &Memory) -> u64 {
        let usable_bytes = memory.usable_bytes();
        match self.budget {
            Budget::Size(size) => size.resolve(usable_bytes).unwrap_or(usable_bytes),
            Budget::Auto => memory.room_bytes(0),
        }
    }

    /// May it ever change?
    pub fn follows(&self) -> bool {
        matches!(self.budget, Budget::Auto | Budget::Size(Size::RamPpm(_)))
    }

    /// A look, while the run uses so much. None: it stays as it is.
    pub fn next_bytes(&mut self, memory: &Memory, used_bytes: u64) -> Option<u64> {
        let bytes = match self.budget {
            Budget::Size(size @ Size::RamPpm(_)) => size.resolve(memory.usable_bytes())?,
            Budget::Size(_) => return None,
            Budget::Auto => {
                if memory.pressure_percent > PRESSED_PERCENT {
                    self.shrunk_to = (self.shrunk_to * SHRINKS).max(SHRUNK_LEAST);
                } else if memory.pressure_percent < AT_EASE_PERCENT {
                    self.shrunk_to = (self.shrunk_to * RECOVERS).min(1.0);
                }
                (memory.room_bytes(used_bytes) as f64 * self.shrunk_to) as u64
            }
        };
        Some(bytes.max(MEMORY_MAX_LEAST_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::CgroupLimit;

    const MIB: u64 = 1 << 20;

    /// A container without files: nothing is used in it.
    fn container(limit_mib: u64, available_mib: u64, pressure_percent: f64) -> Memory {
        Memory {
            ram_bytes: 65536 * MIB,
            swap_bytes: 0,
            available_bytes: available_mib * MIB,
            pressure_percent,
            cgroup: Some(CgroupLimit { bytes: limit_mib * MIB, file: "/no/such/group/memory.max".into() }),
        }
    }

    #[test]
    fn what_is_typed() {
        assert_eq!("auto".parse(), Ok(Budget::Auto));
        assert_eq!("2G".parse(), Ok(Budget::Size(Size::Bytes(2 << 30))));
        assert_eq!("0".parse::<Budget>(), Err(SizeError::Zero));
    }

    #[test]
    fn a_size_stays_and_a_share_follows_the_limit() {
        let mut fixed = Following::new(Budget::Size(Size::Bytes(MIB * 100)));
        assert!(!fixed.follows() && Following::new(Budget::Auto).follows());
        assert_eq!(fixed.first_bytes(&container(1000, 9000, 0.0)), 100 * MIB);
        assert_eq!(fixed.next_bytes(&container(50, 9000, 0.0), 0), None);
        let mut share = Following::new("80%".parse().unwrap());
        assert_eq!(share.first_bytes(&container(1000, 9000, 0.0)), 800 * MIB);
        assert_eq!(share.next_bytes(&container(500, 100, 50.0), 0), Some(400 * MIB));
        assert_eq!(share.next_bytes(&container(1, 100, 0.0), 0), Some(MEMORY_MAX_LEAST_BYTES));
    }

    #[test]
    fn auto_takes_what_others_leave() {
        let mut auto = Following::new(Budget::Auto);
        assert_eq!(auto.first_bytes(&container(1000, 9000, 0.0)), 952 * MIB);
        // The machine has less free than the container.
        assert_eq!(auto.next_bytes(&container(1000, 300, 0.0), 200 * MIB), Some(452 * MIB));
    }

    #[test]
    fn auto_shrinks_under_pressure_and_recovers() {
        let mut auto = Following::new(Budget::Auto);
        let mut looks = |times: usize, percent: f64| {
            (0..times).map(|_| auto.next_bytes(&container(1048, 9000, percent), 0).unwrap() / MIB).last()
        };
        assert_eq!(looks(1, 30.0), Some(950));
        assert_eq!(looks(100, 30.0), Some(500), "half is left");
        assert_eq!(looks(10, 5.0), Some(500), "neither pressed nor at ease");
        assert_eq!(looks(1, 0.0), Some(510));
        assert_eq!(looks(100, 0.0), Some(1000));
    }
}
