//! All options (`crates/cli/src/args.rs`). An input is lines, each an argument behind `memspill`.

use crate::assert_one_line;
use clap::Parser;
use memspill_cli::args::{Cli, asks_for_knobs, one_line, usage_exit};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The parser takes some µs for each argument: more than these show nothing new.
const ARGUMENTS_MAX: usize = 16;

pub fn check(input: &[u8]) {
    let given =
        input.split(|byte| *byte == b'\n').take(ARGUMENTS_MAX).map(|word| OsString::from_vec(word.to_vec()));
    let arguments: Vec<OsString> = std::iter::once("memspill".into()).chain(given).collect();
    if asks_for_knobs(&arguments) {
        return;
    }
    let Err(error) = Cli::try_parse_from(&arguments) else { return };
    assert!([2, 125].contains(&usage_exit(&arguments)));
    // Help and version are asked for.
    if error.use_stderr() {
        assert_one_line(&one_line(&error));
    }
}
