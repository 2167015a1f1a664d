//! Finds the streams in faults: which pages are wanted next, and how many.
//!
//! A fault costs several pages here, so the right pages are worth bringing without a fault of their own;
//! wrong ones cost memory and CPU. Therefore nothing is brought until two faults in a row have proven a
//! stream. Then its window doubles, up to a maximum:
//!
//! ```text
//!    fault p      fault p+1          fault p+3                  fault p+7
//!    window 1     window 2: p+1,p+2  window 4: p+3..p+6         window 8 …      up; down is the mirror image
//! ```
//!
//! A stream may step over pages that are there: its next fault is accepted up to `SLACK_PAGES` past the
//! expected page. It goes on behind what was brought, be that more or less than its window
//! (`Streams::note_brought`), and its next window is larger all the same. A stream knows no hits: one
//! that stops making faults where they are expected is not continued.
//!
//! The engine keeps the streams of an address space, in the faults that it sees. The agent keeps those of a
//! thread, in the pages that the thread reads from the pool by itself.
//!
//! Invariants: positions are page numbers. A stream is one word, so that a thread's block has room for eight.
//! One thread at a time uses them (the engine's have a lock), and the words are atomic only because a block
//! is shared; so `Relaxed` is enough.
//!
//! What it does not do: know what is away; say how much of a window comes (window.rs).

use super::sync::{AtomicU64, Ordering};
use super::window::Window;
use core::ops::Range;

/// Streams that are remembered: a sort merges a handful, a matrix product walks three.
const STREAMS: usize = 8;
/// Pages that a stream may step over.
const SLACK_PAGES: u64 = 8;

/// The streams of an address space, or of a thread: the one of the latest fault first.
pub struct Streams([AtomicU64; STREAMS]);

impl Streams {
    pub const fn empty() -> Streams {
        Streams([const { AtomicU64::new(0) }; STREAMS])
    }

    /// The window of a fault at this page, of at most `max` pages. Its stream goes on behind that.
    pub fn fault(&self, page: u64, max: u64) -> Window {
        let mut places = self.0.iter().map(|kept| Stream::of(kept.load(Ordering::Relaxed))).enumerate();
        let continued = places.find_map(|(place, stream)| Some((place, stream?.window_at(page, max)?)));
        // A new one takes the place of the one that has not gone on for the longest time.
        let (place, window) = continued.unwrap_or((STREAMS - 1, Window::alone(page)));
        let ways = match (window.is_proven, window.is_down) {
            (false, _) => UP | DOWN,
            (true, false) => UP,
            (true, true) => DOWN,
        };
        let mut word =
            Stream { first: window.first(), brought: window.pages, window: window.pages, ways }.word();
        for kept in self.0.iter().take(place + 1) {
            let before = kept.load(Ordering::Relaxed);
            kept.store(word, Ordering::Relaxed);
            word = before;
        }
        window
    }

    /// Note that this fault has brought these pages, of which it is one, instead of its window (a block, or
    /// less): its stream goes on behind them.
    pub fn note_brought(&self, fault: u64, pages: Range<u64>) {
        let brought = pages.end.saturating_sub(pages.start);
        for kept in &self.0 {
            let stream = Stream::of(kept.load(Ordering::Relaxed)).filter(|stream| stream.has_brought(fault));
            if let Some(stream) = stream {
                let behind =
                    Stream { first: pages.start, brought, window: stream.window.max(brought), ..stream };
                kept.store(behind.word(), Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A stream, which its word holds so:
///
/// ```text
///   63                     22 21            12 11             2   1     0
///   ┌────────────────────────┬────────────────┬────────────────┬─────┬─────┐
///   │ first page brought     │ pages brought  │ pages of the   │ DOWN│ UP  │   0: none
///   │ by the latest fault    │                │ last window    │     │     │
///   └────────────────────────┴────────────────┴────────────────┴─────┴─────┘
/// ```
///
/// After one fault it may go on both ways. Pages 2^42 apart are taken for the same one, which at worst makes
/// a window of a fault that has none.
#[derive(Clone, Copy)]
struct Stream {
    first: u64,
    brought: u64,
    window: u64,
    ways: u64,
}

const UP: u64 = 1;
const DOWN: u64 = 2;
const WINDOW_SHIFT: u32 = 2;
const BROUGHT_SHIFT: u32 = 12;
const FIRST_SHIFT: u32 = 22;
const COUNT_MAX: u64 = (1 << (FIRST_SHIFT - BROUGHT_SHIFT)) - 1;

impl Stream {
    fn of(word: u64) -> Option<Stream> {
        let count = |shift: u32| word >> shift & COUNT_MAX;
        (word != 0).then(|| Stream {
            first: word >> FIRST_SHIFT,
            brought: count(BROUGHT_SHIFT),
            window: count(WINDOW_SHIFT),
            ways: word & (UP | DOWN),
        })
    }

    fn word(self) -> u64 {
        let count = |pages: u64, shift: u32| pages.min(COUNT_MAX) << shift;
        self.first << FIRST_SHIFT
            | count(self.brought, BROUGHT_SHIFT)
            | count(self.window, WINDOW_SHIFT)
            | self.ways
    }

    /// The window of a fault at this page, if it is where the stream's next one is expected. The latest fault
    /// may come again, because there was no room: its window is the same.
    fn window_at(self, page: u64, max: u64) -> Option<Window> {
        let is_again = match self.ways {
            UP => distance(self.first, page) == 0,
            DOWN => distance(page.wrapping_add(1), self.first.wrapping_add(self.brought)) == 0,
            _ => self.has_brought(page),
        };
        let goes_up =
            self.ways & UP != 0 && distance(self.first.wrapping_add(self.brought), page) <= SLACK_PAGES;
        let goes_down = self.ways & DOWN != 0 && distance(page, self.first.wrapping_sub(1)) <= SLACK_PAGES;
        let (is_down, pages) = match (goes_up, goes_down) {
            (true, _) => (false, 2 * self.window),
            (false, true) => (true, (2 * self.window).min(page.saturating_add(1))),
            _ if is_again && self.ways == UP | DOWN => return Some(Window::alone(page)),
            _ if is_again => (self.ways == DOWN, self.window),
            _ => return None,
        };
        Some(Window { fault: page, pages: pages.min(max).max(1), is_down, is_proven: true })
    }

    fn has_brought(self, page: u64) -> bool {
        distance(self.first, page) < self.brought
    }
}

/// So many pages lie between the two, as far as a word tells them apart.
fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & u64::MAX >> FIRST_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 32;

    /// Faults at these pages, each of which brings so many of its window, or all: the first and the last page
    /// of each window, in its direction.
    fn windows(streams: &Streams, faults: &[u64], brought: u64) -> Vec<(u64, u64)> {
        let window = |page: &u64| {
            let window = streams.fault(*page, MAX);
            streams.note_brought(*page, window.cut(brought).range());
            assert_eq!(window.is_proven, window.pages > 1);
            (window.fault, window.page(window.pages - 1))
        };
        faults.iter().map(window).collect()
    }

    const ALL: u64 = u64::MAX;

    #[test]
    fn a_stream_doubles_either_way() {
        let streams = Streams::empty();
        let up = windows(&streams, &[100, 101, 103, 107, 115, 131, 163], ALL);
        assert_eq!(up, [(100, 100), (101, 102), (103, 106), (107, 114), (115, 130), (131, 162), (163, 194)]);
        let down = windows(&streams, &[900, 899, 897, 893, 885, 869], ALL);
        assert_eq!(down, [(900, 900), (899, 898), (897, 894), (893, 886), (885, 870), (869, 838)]);
        let at_the_end = windows(&streams, &[4, 3, 1], ALL);
        assert_eq!(at_the_end, [(4, 4), (3, 2), (1, 0)], "no page is below the first");
    }

    #[test]
    fn a_stream_steps_over_some_pages_and_does_not_turn() {
        let streams = Streams::empty();
        assert_eq!(windows(&streams, &[100, 109], ALL)[1], (109, 110));
        assert_eq!(windows(&streams, &[108], ALL), [(108, 108)], "the way it came");
        let streams = Streams::empty();
        assert_eq!(windows(&streams, &[100, 110], ALL)[1], (110, 110), "too far");
    }

    #[test]
    fn a_stream_grows_though_little_of_its_windows_is_brought() {
        let expected = [(100, 100), (101, 102), (102, 105), (103, 110), (104, 119)];
        assert_eq!(windows(&Streams::empty(), &[100, 101, 102, 103, 104], 1), expected);
    }

    #[test]
    fn a_fault_that_comes_again_has_the_same_window() {
        let streams = Streams::empty();
        assert_eq!(windows(&streams, &[100, 100, 101, 101], ALL)[1..], [(100, 100), (101, 102), (101, 102)]);
        assert_eq!(windows(&streams, &[103], ALL), [(103, 106)]);
        let streams = Streams::empty();
        assert_eq!(windows(&streams, &[100, 99, 99, 97], ALL)[2..], [(99, 98), (97, 94)]);
    }

    #[test]
    fn eight_streams_are_known() {
        let streams = Streams::empty();
        let starts: Vec<u64> = (1..=8).map(|n| n * 1000).collect();
        windows(&streams, &starts, ALL);
        for start in &starts {
            assert_eq!(windows(&streams, &[start + 1], ALL), [(start + 1, start + 2)]);
        }
        windows(&streams, &[starts[0] + 3, 100_000], ALL);
        assert_eq!(windows(&streams, &[starts[1] + 3], ALL), [(2003, 2003)], "the one used least lately");
        assert_eq!(windows(&streams, &[starts[0] + 7], ALL), [(1007, 1014)]);
    }

    #[test]
    fn random_faults_bring_nothing() {
        let mut drawn = 1u64;
        let random: Vec<u64> = std::iter::repeat_with(|| {
            drawn = drawn.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (drawn >> 33) % 1_000_000_000 + 1000
        })
        .take(200)
        .collect();
        let windows = windows(&Streams::empty(), &random, ALL);
        assert!(windows.iter().zip(random).all(|(window, page)| *window == (page, page)));
    }

    #[test]
    fn a_stream_goes_on_behind_a_block_and_before_it() {
        let after = |page| {
            let streams = Streams::empty();
            streams.fault(100, MAX);
            streams.note_brought(100, 96..112);
            streams.fault(page, MAX).range()
        };
        assert_eq!([after(112), after(95), after(100)], [112..144, 64..96, 100..101]);
    }

    #[test]
    fn a_page_may_have_any_number() {
        for page in [0, 1, u64::MAX >> FIRST_SHIFT, u64::MAX - 1, u64::MAX] {
            let streams = Streams::empty();
            for near in [page, page.wrapping_add(1), page.wrapping_sub(1), page.wrapping_sub(2), 1 << 50] {
                let window = streams.fault(near, 512);
                assert!((1..=512).contains(&window.pages) && window.fault == near);
                streams.note_brought(near, window.range());
            }
        }
    }
}
