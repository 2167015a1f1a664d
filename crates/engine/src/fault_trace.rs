//! A recording of faults, for `memspill-lab sim policy`: who touched which page, in the order in which the
//! faults were served.
//!
//! ```text
//!   16 bytes   memspill faults1
//!   8 bytes    a fault, little endian:  63      37    36    35       0
//!                                      | space (27) | write | page (36) |
//!   ...
//! ```
//!
//! There is no end mark: a file that ends within a fault ends before it. Uses of pages in memory are not in
//! the recording, as nobody sees them; docs/policy.md says what that does to a simulation.
//!
//! What it does not do: read or write files.

use crate::units::{SpaceId, Vpn};

pub const HEADER: [u8; 16] = *b"memspill faults1";
/// Bytes of a fault.
pub const FAULT_BYTES: usize = 8;

const WRITE: u64 = 1 << 36;
const VPN_MASK: u64 = WRITE - 1;
const SPACE_SHIFT: u32 = 37;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Its lower 27 bits are kept.
    pub space: SpaceId,
    pub vpn: Vpn,
    pub write: bool,
}

impl Touch {
    pub fn to_bytes(self) -> [u8; FAULT_BYTES] {
        let write = if self.write { WRITE } else { 0 };
        (u64::from(self.space.0) << SPACE_SHIFT | write | self.vpn.0 & VPN_MASK).to_le_bytes()
    }
    pub fn from_bytes(bytes: [u8; FAULT_BYTES]) -> Touch {
        let word = u64::from_le_bytes(bytes);
        Touch {
            space: SpaceId((word >> SPACE_SHIFT) as u32),
            vpn: Vpn(word & VPN_MASK),
            write: word & WRITE != 0,
        }
    }
}

/// What a recording holds, or why it is none.
pub fn read(bytes: &[u8]) -> Result<impl Iterator<Item = Touch>, &'static str> {
    let faults = bytes.strip_prefix(&HEADER).ok_or("this is no recording of `memspill run --record`")?;
    Ok(faults.as_chunks().0.iter().map(|fault| Touch::from_bytes(*fault)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let touches = [
            Touch { space: SpaceId(1), vpn: Vpn(0), write: false },
            Touch { space: SpaceId((1 << 27) - 1), vpn: Vpn((1 << 36) - 1), write: true },
            Touch { space: SpaceId(7), vpn: Vpn(0x7_ffff_dead), write: true },
        ];
        let mut file = HEADER.to_vec();
        touches.iter().for_each(|touch| file.extend(touch.to_bytes()));
        // The run was killed while it wrote the next one.
        file.extend([1, 2, 3]);
        assert_eq!(read(&file).unwrap().collect::<Vec<_>>(), touches);
        assert!(read(b"memspill").is_err() && read(b"").is_err());
        assert_eq!(read(&HEADER).unwrap().count(), 0);
    }
}
