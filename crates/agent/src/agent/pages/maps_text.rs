//! A mapping as a line of /proc/PID/maps tells of it. For kernels without PROCMAP_QUERY (before Linux 6.11);
//! each question there costs a read of the text up to the answer.
//!
//! ```text
//!   7f1c4a000000-7f1c4a021000 rw-p 00000000 00:00 0          [heap]
//!   start        end          ACCESS        device inode     NAME
//! ```
//!
//! The text comes in parts of any length, and a line may be cut anywhere, so it is read byte by byte.
//!
//! It does no input or output, and allocates nothing: `kernel.rs` reads the file, and a test the text alone.

/// The part of a name that is kept: it says whether the memory is plain.
const NAME_BYTES: usize = 6;
const START: usize = 0;
const ACCESS: usize = 1;
const DEVICE: usize = 3;
const INODE: usize = 4;
const NAME: usize = 5;

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    /// PROT_*.
    pub prot: usize,
    /// Private memory of no file, but not the main thread's stack and the like.
    pub is_plain: bool,
}

/// Has memory with this name (what follows the first bytes does not count) no other than a heap's use?
pub fn is_plain_name(name: &[u8]) -> bool {
    matches!(name.first(), None | Some(0)) || name.starts_with(b"[heap]") || name.starts_with(b"[anon:")
}

/// The line that is being read.
pub struct Line {
    field: usize,
    /// The bytes of the field that have been read.
    bytes: usize,
    /// The two ends: [start, end).
    ends: [usize; 2],
    is_end: bool,
    prot: usize,
    is_private: bool,
    /// Is there anything but zeros in the fields that name a file?
    has_file: bool,
    name: [u8; NAME_BYTES],
}

impl Line {
    pub const fn new() -> Line {
        Line {
            field: START,
            bytes: 0,
            ends: [0; 2],
            is_end: false,
            prot: 0,
            is_private: false,
            has_file: false,
            name: [0; NAME_BYTES],
        }
    }

    /// Reads the next byte of the text: the mapping, if its line ends here.
    pub fn read(&mut self, byte: u8) -> Option<Mapping> {
        match byte {
            b'\n' => {
                let [start, end] = self.ends;
                let is_plain = self.is_private && !self.has_file && is_plain_name(&self.name);
                let mapping = Mapping { start, end, prot: self.prot, is_plain };
                *self = Line::new();
                return Some(mapping);
            }
            // More than one stands before a name.
            b' ' if self.field < NAME => (self.field, self.bytes) = (self.field + 1, 0),
            b' ' if self.bytes == 0 => {}
            _ => {
                self.read_in_field(byte);
                self.bytes += 1;
            }
        }
        None
    }

    fn read_in_field(&mut self, byte: u8) {
        match self.field {
            START if byte == b'-' => self.is_end = true,
            START => {
                let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
                let [start, end] = &mut self.ends;
                let value = if self.is_end { end } else { start };
                *value = *value << 4 | digit;
            }
            ACCESS => match byte {
                b'r' => self.prot |= 1,
                b'w' => self.prot |= 2,
                b'x' => self.prot |= 4,
                b'p' => self.is_private = true,
                _ => {}
            },
            DEVICE | INODE => self.has_file |= !matches!(byte, b'0' | b':'),
            NAME => {
                if let Some(place) = self.name.get_mut(self.bytes) {
                    *place = byte;
                }
            }
            _ => {}
        }
    }
}
