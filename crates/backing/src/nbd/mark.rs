//! Page 0 of an export: whose it is now, and whether it is still the one that was written to.
//!
//! ```text
//!   "memspill swap export; ..." | the run's number, 16 bytes | seconds since 1970 when it was last renewed
//! ```
//!
//! The number is drawn for each run: an export that comes back without it holds nothing of ours. NBD has no
//! locks, so two runs on one export would destroy each other's pages. (They would notice: nothing false is
//! ever read.) A mark of another run that was renewed a moment ago is therefore respected.
//!
//! What it does not do: protect from others who write there.

use std::time::{Duration, SystemTime};

use memspill_engine::units::Page;

const WORDS: &[u8] = b"memspill swap export; its contents mean nothing without the process that wrote them\n";
const NUMBER_AT: usize = 128;
const TIME_AT: usize = 144;

/// The mark is renewed so often, ...
pub(super) const RENEWED_EVERY: Duration = Duration::from_secs(20);
/// ... and after so long without, whoever wrote it is no more.
const STALE: Duration = Duration::from_secs(60);

/// The number of a run.
pub(super) type RunNumber = [u8; 16];

/// What page 0 says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Ours, of this run.
    Own,
    /// Another run's, which may still be there: renewed so long ago.
    InUse(Duration),
    /// A run has left it that is over.
    Over,
    /// Nothing of memspill's.
    Foreign,
}

/// The page as it is now; `ended`: nobody uses the export any more.
pub(super) fn page(number: &RunNumber, ended: bool) -> Box<Page> {
    let mut page = Box::new(Page::ZERO);
    page.0[..WORDS.len()].copy_from_slice(WORDS);
    page.0[NUMBER_AT..TIME_AT].copy_from_slice(number);
    let seconds = if ended { 0 } else { since_1970().as_secs() };
    page.0[TIME_AT..TIME_AT + 8].copy_from_slice(&seconds.to_le_bytes());
    page
}

pub(super) fn read(page: &Page, own: &RunNumber) -> Found {
    if !page.0.starts_with(WORDS) {
        return Found::Foreign;
    }
    if page.0[NUMBER_AT..TIME_AT] == own[..] {
        return Found::Own;
    }
    let seconds = u64::from_le_bytes(page.0[TIME_AT..TIME_AT + 8].try_into().expect("eight"));
    // A clock that is ahead of ours by less than the time that counts is no sign of age.
    let age = since_1970().as_secs().abs_diff(seconds);
    let age = Duration::from_secs(age);
    if seconds == 0 || age >= STALE { Found::Over } else { Found::InUse(age) }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_whose_the_export_is() {
        let (own, other) = ([1; 16], [2; 16]);
        assert_eq!(read(&page(&own, false), &own), Found::Own);
        assert!(matches!(read(&page(&other, false), &own), Found::InUse(_)));
        assert_eq!(read(&page(&other, true), &own), Found::Over);
        assert_eq!(read(&Page::ZERO, &own), Found::Foreign);
        let mut old = page(&other, false);
        let then = since_1970().as_secs() - 61;
        old.0[TIME_AT..TIME_AT + 8].copy_from_slice(&then.to_le_bytes());
        assert_eq!(read(&old, &own), Found::Over);
    }
}
