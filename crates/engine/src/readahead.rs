//! Streams of faults: how many pages to bring with the one that faulted.
//!
//! On a synchronous device the kernel brings none (seed: one swap-in helper that skips readahead there). Here a fault
//! costs three pages, so the right pages are worth bringing; wrong ones cost memory and CPU as they do there. So nothing
//! is brought until two faults in a row have proven a stream; then the window doubles from 2 to the maximum.
//!
//! ```text
//!    fault p      fault p+1          fault p+3                  fault p+7
//!    window 1     window 2: p+1,p+2  window 4: p+3..p+6         window 8 …          up; down is its mirror image
//! ```
//!
//! A stream may step over pages that are resident: the next fault is accepted up to `SLACK_PAGES` past the expected page.
//! What it does not do: look at page-table words (the caller takes from the window what is in the faulting page's state),
//! or measure hits: a stream that stops making faults where they are expected is simply not continued.

use crate::units::Vpn;

/// Streams remembered for one address space: a sort merges a handful, a matrix product walks three.
const STREAMS: usize = 8;
const SLACK_PAGES: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// First page above what was brought; an ascending stream faults here next.
    up: u64,
    /// First page below.
    down: u64,
    window: u64,
    last_use: u64,
}

#[derive(Default)]
pub struct Streams {
    table: [Stream; STREAMS],
    clock: u64,
}

/// The pages to bring: [first, first + pages), which holds the faulting page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub first: Vpn,
    pub pages: u64,
    /// Faults have come where a stream's next one was expected.
    pub proven: bool,
}

impl Streams {
    /// A fault at `vpn`; at most `max` pages are wanted.
    pub fn fault(&mut self, vpn: Vpn, max: u64) -> Window {
        self.clock += 1;
        let page = vpn.0;
        for stream in self.table.iter_mut().filter(|s| s.window != 0) {
            let ascending = page >= stream.up && page - stream.up <= SLACK_PAGES;
            let descending = page <= stream.down && stream.down - page <= SLACK_PAGES;
            if !ascending && !descending {
                continue;
            }
            let pages = (stream.window * 2).min(max).max(1);
            let first = if ascending { page } else { (page + 1).saturating_sub(pages) };
            *stream = Stream {
                // The end that the stream does not move towards is put where no fault matches by chance.
                up: if ascending { first + pages } else { u64::MAX },
                down: if ascending { 0 } else { first.saturating_sub(1) },
                window: pages,
                last_use: self.clock,
            };
            return Window { first: Vpn(first), pages, proven: true };
        }
        let oldest = self.table.iter_mut().min_by_key(|s| s.last_use).expect("the table is not empty");
        *oldest = Stream { up: page + 1, down: page.saturating_sub(1), window: 1, last_use: self.clock };
        Window { first: vpn, pages: 1, proven: false }
    }

    /// The latest fault has brought these pages instead (a folio): its stream goes on behind them.
    pub fn brought(&mut self, first: Vpn, pages: u64) {
        let clock = self.clock;
        for stream in self.table.iter_mut().filter(|s| s.window != 0 && s.last_use == clock) {
            stream.window = stream.window.max(pages);
            if stream.up != u64::MAX {
                stream.up = first.0 + pages;
            }
            if stream.down != 0 {
                stream.down = first.0.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(faults: &[u64]) -> Vec<(u64, u64)> {
        let mut streams = Streams::default();
        faults
            .iter()
            .map(|f| {
                let w = streams.fault(Vpn(*f), 32);
                (w.first.0, w.pages)
            })
            .collect()
    }

    #[test]
    fn an_ascending_stream_doubles() {
        assert_eq!(
            windows(&[100, 101, 103, 107, 115, 131, 163]),
            [(100, 1), (101, 2), (103, 4), (107, 8), (115, 16), (131, 32), (163, 32)]
        );
    }

    #[test]
    fn a_descending_stream_doubles() {
        assert_eq!(windows(&[100, 99, 97, 93]), [(100, 1), (98, 2), (94, 4), (86, 8)]);
    }

    #[test]
    fn random_faults_bring_nothing() {
        let mut x = 1u64;
        let faults: Vec<u64> = (0..100)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 33) % 1_000_000_000 + 1000
            })
            .collect();
        assert!(windows(&faults).iter().zip(&faults).all(|(w, f)| *w == (*f, 1)));
    }

    #[test]
    fn a_stream_goes_on_behind_a_folio() {
        let mut streams = Streams::default();
        assert_eq!(streams.fault(Vpn(100), 32).pages, 1);
        streams.brought(Vpn(96), 16);
        let after = streams.fault(Vpn(112), 32);
        assert_eq!((after.first.0, after.pages), (112, 32));
        let before = |first| {
            let mut streams = Streams::default();
            streams.fault(Vpn(100), 32);
            streams.brought(Vpn(96), 16);
            streams.fault(Vpn(first), 32).first.0
        };
        assert_eq!(before(95), 64, "or before it");
    }

    #[test]
    fn two_streams_at_once() {
        let w = windows(&[1000, 9000, 1001, 9001, 1003, 9003]);
        assert_eq!(w[4], (1003, 4));
        assert_eq!(w[5], (9003, 4));
    }

    #[test]
    fn resident_pages_are_stepped_over() {
        assert_eq!(windows(&[100, 101, 105])[2], (105, 4));
    }
}
