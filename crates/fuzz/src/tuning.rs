//! `--tune NAME=VALUE` (`crates/engine/src/tuning.rs`) and `--config FILE` (`crates/cli/src/config.rs`).
//!
//! An input is read as a file, and as lines of NAME=VALUE.

use crate::assert_one_line;
use memspill_cli::config::apply;
use memspill_engine::tuning::{FolioSize, KNOBS, Tuning};
use memspill_engine::units::MAX_ORDER;
use std::fmt::Write;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut tuning = Tuning::default();
    match apply(text, &mut tuning) {
        Ok(()) => accepted(&tuning),
        Err(error) => assert_one_line(&error),
    }
    words(&text.lines().collect::<Vec<_>>());
}

/// The words give what a file with the same in it gives.
fn words(words: &[&str]) {
    let tuned = Tuning::parse(words.iter().copied());
    match &tuned {
        Ok(tuning) => accepted(tuning),
        Err(error) => assert_one_line(&error.to_string()),
    }
    let pairs: Option<Vec<(&str, &str)>> = words.iter().map(|word| word.split_once('=')).collect();
    let Some(mut pairs) = pairs else { return };
    // A table has each name once, and in no order.
    pairs.sort_by_key(|(name, _)| name.trim());
    if pairs.windows(2).any(|two| two[0].0.trim() == two[1].0.trim()) {
        return;
    }
    let mut file = "[tuning]\n".to_string();
    for (name, value) in &pairs {
        let _ = writeln!(file, "{} = {}", quoted(name), quoted(value));
    }
    let mut from_file = Tuning::default();
    let read = apply(&file, &mut from_file).map(|()| from_file);
    assert_eq!(read.ok(), tuned.ok(), "{words:?}");
}

/// A string of TOML: every character by its number.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_string();
    for c in text.chars() {
        let _ = write!(quoted, "\\U{:08X}", u32::from(c));
    }
    quoted + "\""
}

fn accepted(tuning: &Tuning) {
    assert!((1..=64).contains(&tuning.slot_batch) && (1..=64).contains(&tuning.cache_batch), "{tuning:?}");
    assert!(tuning.page_cluster <= 5, "{tuning:?}");
    assert!(!matches!(tuning.folio, FolioSize::Fixed(order) if order.0 > MAX_ORDER), "{tuning:?}");
    let printed: Vec<String> =
        KNOBS.iter().map(|knob| format!("{}={}", knob.name, knob.value_in(tuning))).collect();
    assert_eq!(Tuning::parse(printed.iter().map(String::as_str)).as_ref(), Ok(tuning), "{printed:?}");
}
