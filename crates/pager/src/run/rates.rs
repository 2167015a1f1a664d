//! Which threads bring pages back often, and not in order: those that are held back while another one has
//! the swap token (faults/token_queue.rs).
//!
//! What it does not do: count what another thread serves or notes.

use memspill_engine::units::Vpn;

/// With so many faults in a window a thread faults often, if no more of them are those of a stream.
const OFTEN: u32 = 20;
/// From the first of them on. A disk that takes 10 ms for a page leaves nobody time to fault often, so there
/// nobody is held back.
const WINDOW_US: u64 = 200_000;
/// A fault that is no further from one of the thread's last ones is the next one of a stream, which brings up
/// to so many pages at once. Faults that another pager has served in between make some of a stream's look
/// far.
const NEAR_PAGES: u64 = 512;
/// The streams of a thread that are told apart.
const STREAMS: usize = 4;
/// Threads with the same remainder share a place, and count anew when the other one has faulted.
const PLACES: usize = 256;

/// The threads that bring back pages often, as one thread of the supervisor sees it.
pub struct Rates(Box<[Rate; PLACES]>);

#[derive(Clone, Copy, Default)]
struct Rate {
    tid: u32,
    far: u32,
    near: u32,
    since_us: u64,
    last: [u64; STREAMS],
}

impl Default for Rates {
    fn default() -> Rates {
        Rates(Box::new([Rate::default(); PLACES]))
    }
}

impl Rates {
    /// A fault of this thread on a page that is away. Does it fault often?
    pub fn note(&mut self, tid: u32, page: Vpn, now_us: u64) -> bool {
        let rate = &mut self.0[tid as usize % PLACES];
        if rate.tid != tid || now_us.saturating_sub(rate.since_us) > WINDOW_US {
            *rate = Rate { tid, far: 0, near: 0, since_us: now_us, last: rate.last };
        }
        match rate.last.iter_mut().find(|last| page.0.abs_diff(**last) <= NEAR_PAGES) {
            Some(last) => {
                rate.near = rate.near.saturating_add(1);
                *last = page.0;
            }
            None => {
                rate.last[rate.far as usize % STREAMS] = page.0;
                rate.far = rate.far.saturating_add(1);
            }
        }
        rate.far >= OFTEN.max(rate.near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At random, as far as `note` can see.
    fn far(number: u64) -> Vpn {
        Vpn(number * (NEAR_PAGES + 1))
    }

    #[test]
    fn who_faults_now_and_then_does_not_fault_often() {
        let mut rates = Rates::default();
        let every_us = WINDOW_US / u64::from(OFTEN - 1) + 1;
        assert!((1..200).all(|number| !rates.note(7, far(number), number * every_us)));
    }

    #[test]
    fn who_faults_often_does_so_from_the_twentieth_fault_of_a_window_on() {
        let mut rates = Rates::default();
        let often = (1..=u64::from(OFTEN)).map(|number| rates.note(7, far(number), number));
        assert_eq!(often.collect::<Vec<_>>().iter().position(|often| *often), Some(OFTEN as usize - 1));
        assert!(!rates.note(7, far(1), 2 + WINDOW_US), "a new window");
        assert!(!rates.note(7 + PLACES as u32, far(1), 3 + WINDOW_US), "another thread");
    }

    #[test]
    fn a_stream_is_not_held_back() {
        let mut rates = Rates::default();
        assert!((1..10_000).all(|number| !rates.note(7, Vpn(1_000_000 + number * NEAR_PAGES), 1)));
        assert!((1..10_000).all(|number| !rates.note(8, Vpn(1_000_000 - number), 1)));
        // Two streams in turns, as a copy has them.
        let copied = (1..10_000u64).map(|number| Vpn(number / 2 * 64 + number % 2 * 1_000_000));
        assert!(copied.map(|page| rates.note(10, page, 1)).all(|often| !often));
        // Another pager serves thirty of each hundred.
        let served = (1..10_000).filter(|number| number % 100 < 70);
        assert!(served.map(|number| Vpn(number * 64)).all(|page| !rates.note(9, page, 1)));
    }
}
