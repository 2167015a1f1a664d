//! `--swap SPEC` (`crates/cli/src/spec.rs`).

use crate::{RAM_BYTES, assert_one_line};
use memspill_backing::Algorithm;
use memspill_cli::devices::slots_of;
use memspill_cli::nbd_spec::Words;
use memspill_cli::spec::{Fail, FailWhat, SwapSpec, parse_with};
use std::path::PathBuf;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse_with(text, || RAM_BYTES) {
        Ok(spec) => accepted(text, &spec),
        Err(error) => assert_one_line(&error.to_string()),
    }
}

fn accepted(text: &str, spec: &SwapSpec) {
    let (device, size, priority, words, fail) = match spec {
        SwapSpec::Ram { size, priority, algorithm, fail } => {
            assert!(fail.is_none_or(|fail| fail.what != FailWhat::Flip), "{text:?}");
            let compress = match algorithm {
                Algorithm::Lz4 => ",compress=lz4",
                Algorithm::Zstd => ",compress=zstd",
                Algorithm::ZstdFast => ",compress=zstd-fast",
                Algorithm::Wordwise => ",compress=wordwise",
            };
            ("ram:".to_string(), *size, priority, compress, fail)
        }
        SwapSpec::RamDisk { size, priority, fail } => {
            assert!(fail.is_none_or(|fail| fail.what != FailWhat::Flip), "{text:?}");
            ("ram:".to_string(), Some(*size), priority, ",compress=none", fail)
        }
        SwapSpec::File { path, size, priority, discard, encrypt, overwrite, fail } => {
            let path = path.to_str().expect("text, as it was given");
            assert!(
                !path.is_empty() && !path.contains(',') && text.starts_with(&format!("file:{path}")),
                "{text:?}"
            );
            let discard = match (discard.once, discard.pages) {
                (false, false) => "",
                (true, false) => ",discard=once",
                (false, true) => ",discard=pages",
                (true, true) => ",discard",
            };
            let encrypt = encrypt.map_or(String::new(), |on| format!(",encrypt={}", on_off(on)));
            let overwrite = if *overwrite { ",overwrite" } else { "" };
            (format!("file:{path}{encrypt}{overwrite}"), *size, priority, discard, fail)
        }
        SwapSpec::Nbd { address, words, size, priority, encrypt, overwrite, fail } => {
            let overwrite = if *overwrite { ",overwrite" } else { "" };
            let encrypt = encrypt.map_or(String::new(), |on| format!(",encrypt={}", on_off(on)));
            (format!("{address}{}{encrypt}{overwrite}", printed_words(words)), *size, priority, "", fail)
        }
    };
    assert!(priority.is_none_or(|priority| priority >= 0), "{text:?}");
    assert!(size.is_none_or(|bytes| bytes > 0), "{text:?}");
    // Slot 0 is not used; 2^31 is what an entry can name.
    assert!((2..=1 << 31).contains(&slots_of(size.map(|bytes| bytes.max(4096)))), "{text:?}");
    let mut again = device;
    again += &size.map_or(String::new(), |bytes| format!(",size={bytes}"));
    again += &priority.map_or(String::new(), |priority| format!(",prio={priority}"));
    again += words;
    again += &fail.map_or(String::new(), printed);
    assert_eq!(parse_with(&again, || RAM_BYTES).as_ref(), Ok(spec), "{text:?} and {again:?}");
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn printed_words(words: &Words) -> String {
    let file = |key: &str, file: &Option<PathBuf>| {
        file.as_ref().map_or(String::new(), |file| format!(",{key}={}", file.to_str().expect("text")))
    };
    let timeout = words.timeout.map(|time| format!(",timeout={}", time.as_secs()));
    let connections = words.connections.map(|count| format!(",connections={count}"));
    let mirror = words.mirror.as_ref().map(|mirror| format!(",mirror={mirror}"));
    let files = [file("cacert", &words.cacert), file("cert", &words.cert), file("key", &words.key)];
    [timeout, connections, mirror].into_iter().flatten().chain(files).collect()
}

fn printed(Fail { what, at, from_there_on }: Fail) -> String {
    assert!(at > 0 && !(from_there_on && matches!(what, FailWhat::Flip | FailWhat::NoMemory)));
    let what = match what {
        FailWhat::Read => "read",
        FailWhat::Write => "write",
        FailWhat::Flip => "flip",
        FailWhat::NoMemory => "nomem",
    };
    format!(",fail={what}@{at}{}", if from_there_on { "+" } else { "" })
}
