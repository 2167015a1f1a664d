//! `--tune NAME=VALUE` (`crates/engine/src/tuning.rs`): an input is lines of them.

use crate::assert_one_line;
use memspill_engine::tuning::{FolioSize, KNOBS, Tuning};
use memspill_engine::units::MAX_ORDER;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Tuning::parse(text.lines()) {
        Ok(tuning) => accepted(&tuning),
        Err(error) => assert_one_line(&error.to_string()),
    }
}

fn accepted(tuning: &Tuning) {
    assert!((1..=64).contains(&tuning.slot_batch) && (1..=64).contains(&tuning.cache_batch), "{tuning:?}");
    assert!(tuning.page_cluster <= 5, "{tuning:?}");
    assert!(!matches!(tuning.folio, FolioSize::Fixed(order) if order.0 > MAX_ORDER), "{tuning:?}");
    let printed: Vec<String> =
        KNOBS.iter().map(|knob| format!("{}={}", knob.name, knob.value_in(tuning))).collect();
    assert_eq!(Tuning::parse(printed.iter().map(String::as_str)).as_ref(), Ok(tuning), "{printed:?}");
}
