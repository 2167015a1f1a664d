//! Sizes as typed (`crates/cli/src/size.rs`).

use crate::assert_one_line;
use memspill_cli::devices::{pool_alone_bytes, pool_share_bytes};
use memspill_cli::size::{Size, human, parse_nonzero};
use memspill_pager::pool_share::PERCENT_MAX;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let parsed = text.parse::<Size>();
    match &parsed {
        Ok(size) => accepted(text, *size),
        Err(error) => assert_one_line(&error.to_string()),
    }
    for same in [text.to_ascii_uppercase(), text.to_ascii_lowercase()] {
        assert_eq!(same.parse::<Size>().ok(), parsed.clone().ok(), "case matters: {text:?}");
    }
    match parse_nonzero(text) {
        Ok(size) => assert!(!size.is_zero() && parsed == Ok(size)),
        Err(error) => {
            assert!(!parsed.is_ok_and(|size| !size.is_zero()), "{text:?} is not zero");
            assert_one_line(&error.to_string());
        }
    }
}

fn accepted(text: &str, size: Size) {
    assert_one_line(&size.to_string());
    match size {
        Size::Bytes(bytes) => {
            assert_eq!(size.resolve(0), Some(bytes));
            assert_eq!(bytes.to_string().parse(), Ok(size));
            near(text, bytes);
            printed(bytes);
            // The share of the devices in a budget of this size, and the least that `ctl limit` does with it.
            let share_bytes = pool_share_bytes(bytes, PERCENT_MAX);
            assert!(share_bytes <= pool_alone_bytes(bytes) && pool_alone_bytes(bytes) <= bytes);
        }
        Size::RamPpm(ppm) => {
            assert_eq!(size.resolve(1_000_000), Some(ppm));
            assert_eq!(size.resolve(0), Some(0));
            let printed = size.to_string();
            assert_eq!(
                printed.trim_end_matches(" of RAM").parse(),
                Ok(size),
                "{text:?} is printed as {printed}"
            );
            near(text, ppm);
        }
        Size::Max => assert!(size.resolve(1).is_none() && size.to_string().parse() == Ok(size)),
    }
}

/// Floating point comes to about the same. (12 digits behind the point are used: of 1000 TiB that is 1 KiB.)
fn near(text: &str, read: u64) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().unwrap_or_else(|_| panic!("{text:?} is read as {read}"));
    let unit = text[end..].to_ascii_lowercase();
    let base = if unit.len() == 2 && unit.ends_with('b') { 1000_f64 } else { 1024_f64 };
    let unit = match unit.chars().next() {
        None | Some('b') => 1.0,
        Some('%') => 1e4,
        Some(letter) => base.powi("kmgtp".find(letter).expect("a unit") as i32 + 1),
    };
    let error = (number * unit - read as f64).abs();
    assert!(error <= 2048.0 + read as f64 * 1e-9, "{text:?} is read as {read}");
}

/// A printed size can be typed, and is the same but for what one decimal cannot say.
fn printed(bytes: u64) {
    let text = human(bytes).replace(' ', "");
    // There is no letter for typing exbibytes.
    if text.ends_with("EiB") {
        return;
    }
    let Ok(Size::Bytes(again)) = text.parse() else { panic!("{bytes} is printed as {text}") };
    assert!(again.abs_diff(bytes) <= bytes / 19, "{bytes} is printed as {text}");
    assert_eq!(human(again).replace(' ', ""), text);
}
