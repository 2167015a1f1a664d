//! The invariants for everything that memspill reads from others, whatever it is.
//!
//! ```text
//!   fuzz/fuzz_targets/NAME.rs   libFuzzer makes inputs ──┐
//!                                                        ├──▶ TARGETS[NAME](input): panics where something
//!   tests/seeds.rs              fuzz/seeds/NAME/*      ──┘     does not hold
//! ```
//!
//! A target is a function of bytes. It makes of them what its parser takes (text, lines, numbers), calls the
//! parser, and checks the answer: against the documented bounds, by printing it and reading it again, or by a
//! second, simpler way to the same result. An error must be one line that can be shown on a terminal
//! ([`assert_one_line`]).
//!
//! What it does not do: anything with real processes, devices or sizes of this machine; so an input fails
//! everywhere or nowhere.

pub mod agent;
pub mod command_line;
pub mod ctl;
pub mod elf;
pub mod group_spec;
pub mod lz4_page;
pub mod nbd_handshake;
pub mod nbd_reply;
mod packed_page;
pub mod proc_text;
pub mod size;
pub mod swap_spec;
pub mod tuning;
pub mod wordwise_page;
pub mod zstd_page;

/// A target's name, as in `fuzz/fuzz_targets` and `fuzz/seeds`, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("agent", agent::check),
    ("command_line", command_line::check),
    ("ctl", ctl::check),
    ("elf", elf::check),
    ("group_spec", group_spec::check),
    ("lz4_page", lz4_page::check),
    ("nbd_handshake", nbd_handshake::check),
    ("nbd_reply", nbd_reply::check),
    ("proc_text", proc_text::check),
    ("size", size::check),
    ("swap_spec", swap_spec::check),
    ("tuning", tuning::check),
    ("wordwise_page", wordwise_page::check),
    ("zstd_page", zstd_page::check),
];

/// What 100% means to the parsers here, in bytes.
const RAM_BYTES: u64 = 8 << 30;

/// An error as memspill shows it: something, in one line, that leaves a terminal as it was.
fn assert_one_line(message: &str) {
    assert!(!message.trim().is_empty(), "an empty error");
    assert!(!message.contains(char::is_control), "an error that is no plain line: {message:?}");
}

/// Numbers and choices out of an input's bytes; zeros once they have ended.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    fn u32(&mut self) -> u32 {
        self.u64_of(4) as u32
    }
    fn u64(&mut self) -> u64 {
        self.u64_of(8)
    }
    fn u64_of(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.take(bytes);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }
}
