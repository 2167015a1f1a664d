//! A device's errors: whether it is still given pages, and the first error of each kind, which the supervisor
//! prints once.
//!
//! A page whose write failed is not lost: it stays in the swap cache. A device that fails page after page
//! gets no more: else reclaim would move all memory into the swap cache, where it takes the same room. The
//! device is used again once one of the pages that wait for it has been written, or when none waits any more.
//!
//! A device whose machine only had no memory for a request (`BackingError::Short`) has not failed: no page is
//! lost, reads and writes are tried again for as long as the run lasts, and a line of its own says so. Such
//! writes count as failures all the same: whatever keeps pages from being written, the swap cache must not
//! grow for ever.

use crate::backing::{BackingError, Link, LinkState};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// This many new pages failed with none written in between: then the device has failed, not a slot of it.
const FAILED_IN_A_ROW_MAX: u32 = 16;

#[derive(Default)]
pub struct DeviceErrors {
    read: Mutex<First>,
    write: Mutex<First>,
    short: Mutex<First>,
    links: Mutex<Vec<ToldLink>>,
    failed_in_a_row: AtomicU32,
    /// The last write that failed did so because the machine was short of something.
    last_was_short: AtomicBool,
}

/// What was last told of a server.
#[derive(Clone)]
struct ToldLink {
    state: LinkState,
    /// How often it had come back.
    reconnects: u64,
    /// That it is away is told again once it has lasted so long.
    away_again_ms: u64,
    refusal: Option<String>,
    had_wrong: bool,
}

/// News of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkNews {
    /// Its state is another one than the one that was last told, which was this.
    Was(LinkState),
    /// It is away as it was when that was last told.
    StillAway,
    /// It answers now, or says something else than before, and cannot be used.
    Refusal,
    /// A page came from it as something else than was written there, for the first time.
    WrongPage,
}

/// That a server is away is told once more after so long, then after twice as long each time, ...
const AWAY_AGAIN_MS: u64 = 5_000;
/// ... and at least so often.
const AWAY_AGAIN_MAX_MS: u64 = 60_000;
/// A server that was there all the time may lack some pages for so long without a word.
const LACKS_SOME_MS: u64 = 2_000;

#[derive(Default)]
struct First {
    error: Option<BackingError>,
    told: bool,
}

impl First {
    fn note(&mut self, error: &BackingError) {
        self.error.get_or_insert_with(|| error.clone());
    }
    fn tell(&mut self) -> Option<BackingError> {
        let told = std::mem::replace(&mut self.told, self.error.is_some());
        self.error.clone().filter(|_| !told)
    }
}

impl Default for ToldLink {
    fn default() -> ToldLink {
        ToldLink {
            state: LinkState::On,
            reconnects: 0,
            away_again_ms: AWAY_AGAIN_MS,
            refusal: None,
            had_wrong: false,
        }
    }
}

impl ToldLink {
    fn tell(&mut self, link: &Link) -> [Option<LinkNews>; 2] {
        let has_wrong = link.wrong_pages > 0;
        let first_wrong = has_wrong && !std::mem::replace(&mut self.had_wrong, has_wrong);
        [self.tell_state(link), first_wrong.then_some(LinkNews::WrongPage)]
    }

    fn tell_state(&mut self, link: &Link) -> Option<LinkNews> {
        let was = self.state;
        let is_same = (link.state, link.reconnects) == (was, self.reconnects);
        let was_there = was == LinkState::On && link.reconnects == self.reconnects;
        if was_there && link.state == LinkState::Filling && link.since_ms < LACKS_SOME_MS {
            return None;
        }
        (self.state, self.reconnects) = (link.state, link.reconnects);
        let is_refusal_new = link.refusal.is_some() && link.refusal != self.refusal;
        // One that ends in between, while the server is away, and comes again is not told again.
        if is_refusal_new || link.state == LinkState::On {
            self.refusal.clone_from(&link.refusal);
        }
        if !is_same {
            self.away_again_ms = AWAY_AGAIN_MS;
            return Some(LinkNews::Was(was));
        }
        if is_refusal_new {
            return Some(LinkNews::Refusal);
        }
        if link.state != LinkState::Away || link.since_ms < self.away_again_ms {
            return None;
        }
        self.away_again_ms = link.since_ms + link.since_ms.min(AWAY_AGAIN_MAX_MS);
        Some(LinkNews::StillAway)
    }
}

impl DeviceErrors {
    pub(crate) fn note_read(&self, error: &BackingError) {
        let kind = if error.is_transient() { &self.short } else { &self.read };
        lock(kind).note(error);
    }

    /// A page that was to be written for the first time.
    pub(crate) fn note_write(&self, error: &BackingError) {
        let kind = if error.is_transient() { &self.short } else { &self.write };
        lock(kind).note(error);
        self.last_was_short.store(error.is_transient(), Ordering::Relaxed);
        self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_written(&self) {
        self.failed_in_a_row.store(0, Ordering::Relaxed);
    }

    /// No page waits to be written, so no retry would show whether the device works again: new pages may go
    /// there, and the first one that fails marks it as failing again.
    pub(crate) fn allow_one_try(&self) {
        let _ = self.failed_in_a_row.fetch_min(FAILED_IN_A_ROW_MAX - 1, Ordering::Relaxed);
    }

    /// Nothing can be written there: the device gets no pages.
    pub fn is_failing(&self) -> bool {
        self.failed_in_a_row.load(Ordering::Relaxed) >= FAILED_IN_A_ROW_MAX
    }

    /// A page could not be written there, ever.
    pub fn has_write_error(&self) -> bool {
        lock(&self.write).error.is_some()
    }

    /// Nothing can be written, and the device is not to blame.
    pub fn is_short(&self) -> bool {
        self.is_failing() && self.last_was_short.load(Ordering::Relaxed)
    }

    /// The first read error, once.
    pub fn tell_read(&self) -> Option<BackingError> {
        lock(&self.read).tell()
    }

    /// The first write error, once.
    pub fn tell_write(&self) -> Option<BackingError> {
        lock(&self.write).tell()
    }

    /// The news of servers, with their numbers. That one is there is none at first.
    pub fn tell_links(&self, links: &[Link]) -> Vec<(usize, LinkNews)> {
        let mut all = lock(&self.links);
        all.resize(links.len(), ToldLink::default());
        let told = all.iter_mut().zip(links).enumerate();
        told.flat_map(|(at, (told, link))| told.tell(link).into_iter().flatten().map(move |news| (at, news)))
            .collect()
    }

    /// What the machine was first short of, once.
    pub fn tell_short(&self) -> Option<BackingError> {
        lock(&self.short).tell()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_once() {
        let errors = DeviceErrors::default();
        assert_eq!(errors.tell_read(), None);
        errors.note_read(&BackingError::Io(5));
        errors.note_read(&BackingError::Checksum);
        assert_eq!(errors.tell_read(), Some(BackingError::Io(5)));
        errors.note_read(&BackingError::Checksum);
        assert_eq!((errors.tell_read(), errors.tell_write()), (None, None));
    }

    #[test]
    fn what_passes_is_told_apart_and_blames_no_device() {
        let errors = DeviceErrors::default();
        errors.note_read(&BackingError::Short(12));
        assert_eq!((errors.tell_read(), errors.tell_short()), (None, Some(BackingError::Short(12))));
        (0..FAILED_IN_A_ROW_MAX).for_each(|_| errors.note_write(&BackingError::Short(12)));
        assert!(errors.is_failing() && errors.is_short());
        assert_eq!((errors.tell_write(), errors.tell_short()), (None, None));
        errors.note_write(&BackingError::Io(5));
        assert!(errors.is_failing() && !errors.is_short());
        assert_eq!(errors.tell_write(), Some(BackingError::Io(5)));
        errors.note_written();
        errors.note_write(&BackingError::Short(12));
        assert!(!errors.is_short());
    }

    #[test]
    fn a_server_is_told_when_it_goes_while_it_is_away_and_when_it_is_back() {
        let errors = DeviceErrors::default();
        let link = |state, since_s: u64, reconnects| Link {
            state,
            since_ms: since_s * 1000,
            round_trip_us: None,
            sent_bytes: 0,
            received_bytes: 0,
            reconnects,
            wrong_pages: 0,
            is_empty: false,
            refusal: None,
        };
        let tell = |links: &[Link]| errors.tell_links(links);
        let (on, away, filling) = (LinkState::On, LinkState::Away, LinkState::Filling);
        assert_eq!(tell(&[link(on, 0, 0), link(on, 0, 0)]), []);
        let told_at = |seconds: &u64| !tell(&[link(on, 0, 0), link(away, *seconds, 0)]).is_empty();
        let told: Vec<u64> = (0..200).filter(told_at).collect();
        assert_eq!(told, [0, 5, 10, 20, 40, 80, 140]);
        let back = (1, LinkNews::Was(away));
        assert_eq!(tell(&[link(on, 0, 0), link(on, 0, 1)]), [back]);
        assert_eq!(tell(&[link(on, 0, 0), link(on, 9, 1)]), []);
        assert_eq!(tell(&[link(on, 0, 0), link(on, 0, 2)]), [(1, LinkNews::Was(on))], "in between");
        let refuses = |why: &str| [link(on, 0, 0), Link { refusal: Some(why.into()), ..link(away, 1, 2) }];
        assert_eq!(tell(&[link(on, 0, 0), link(away, 0, 2)]), [(1, LinkNews::Was(on))]);
        assert_eq!(tell(&refuses("read-only")), [(1, LinkNews::Refusal)]);
        assert_eq!(tell(&[link(on, 0, 0), link(away, 1, 2)]), [], "it says nothing for a moment");
        assert_eq!((tell(&refuses("read-only")), tell(&refuses("too small")).len()), (vec![], 1));
        assert_eq!(tell(&[link(on, 0, 0), link(on, 0, 2)]), [back]);
        // Some pages that one lacks for a moment are nobody's concern.
        assert_eq!(tell(&[link(filling, 1, 0), link(filling, 0, 3)]), [(1, LinkNews::Was(on))]);
        assert_eq!(tell(&[link(filling, 2, 0), link(on, 0, 3)]).len(), 2);
        let wrong = |pages| Link { wrong_pages: pages, ..link(filling, 9, 0) };
        assert_eq!(tell(&[wrong(1), link(on, 0, 3)]), [(0, LinkNews::WrongPage)]);
        assert_eq!(tell(&[wrong(2), link(on, 0, 3)]), []);
    }

    #[test]
    fn a_device_fails_when_nothing_can_be_written() {
        let errors = DeviceErrors::default();
        for _ in 0..3 {
            (1..FAILED_IN_A_ROW_MAX).for_each(|_| errors.note_write(&BackingError::Io(5)));
            assert!(!errors.is_failing());
            errors.note_written();
        }
        (0..FAILED_IN_A_ROW_MAX).for_each(|_| errors.note_write(&BackingError::Io(5)));
        assert!(errors.is_failing());
        errors.note_written();
        assert!(!errors.is_failing());
    }

    #[test]
    fn a_failing_device_gets_another_try_when_nothing_waits_for_it() {
        let errors = DeviceErrors::default();
        (0..100).for_each(|_| errors.note_write(&BackingError::Io(5)));
        errors.allow_one_try();
        assert!(!errors.is_failing());
        errors.note_write(&BackingError::Io(5));
        assert!(errors.is_failing());
    }
}
