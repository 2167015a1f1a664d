//! The knobs that are set: `--tune NAME=VALUE`, and the configuration file (`--config FILE`, else
//! `$MEMSPILL_CONFIG`):
//!
//! ```toml
//! [tuning]
//! readahead = "auto"
//! page-cluster = 4
//! ```
//!
//! Names and values are those of `--tune`, which is read after the file and so goes before it. Nothing else
//! stands there: what a job may use is said where the job is started.

use crate::message::{plain, words};
use memspill_engine::tuning::Tuning;
use std::io::Read;
use std::path::Path;
use toml::{Table, Value};

/// More than all knobs there are take many times over.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Turns the knobs that the file names.
pub fn read(path: &Path, tuning: &mut Tuning) -> Result<(), String> {
    text_of(path)
        .and_then(|text| apply(&text, tuning))
        .map_err(|reason| format!("{}: {reason}", path.display()))
}

/// No more is read than a configuration can have, whatever the path names (a device may have no end).
fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| words(&e))?;
    file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| words(&e))?;
    match text.len() as u64 > TEXT_BYTES_MAX {
        true => Err("longer than 1 MiB, so no configuration: name a file with a [tuning] table".into()),
        false => Ok(text),
    }
}

/// The same for the file's text.
pub fn apply(text: &str, tuning: &mut Tuning) -> Result<(), String> {
    // The parser draws the line with an arrow under it; one line is enough here.
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        plain(&format!("line {line}: {}", e.message().replace('\n', ", ")))
    })?;
    if let Some((name, _)) = table.iter().find(|(name, _)| *name != "tuning") {
        return Err(format!("unknown table or key {name:?}: there is [tuning], with the names of --tune"));
    }
    let Some(knobs) = table.get("tuning") else { return Ok(()) };
    let Value::Table(knobs) = knobs else { return Err("tuning must be a table: [tuning]".into()) };
    for (name, value) in knobs {
        let value = match value {
            Value::String(word) => word.clone(),
            Value::Integer(number) => number.to_string(),
            other => {
                return Err(format!(
                    "[tuning] {name:?}: {} is neither a word in quotes nor a number",
                    other.type_str()
                ));
            }
        };
        tuning.set(&format!("{name}={value}")).map_err(|e| format!("[tuning] {e}"))?;
    }
    Ok(())
}

/// Names and values are the engine's to judge; the shape is checked here.
pub fn parse_knob(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(text.to_owned()),
        _ => Err("a knob is set as NAME=VALUE, such as slot-batch=1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine::tuning::Readahead;

    fn parse(text: &str) -> Result<Tuning, String> {
        let mut tuning = Tuning::default();
        apply(text, &mut tuning).map(|()| tuning)
    }

    #[test]
    fn knobs_are_turned() {
        let tuning = parse("# mine\n[tuning]\nreadahead = \"auto\"\nslot-batch = 1\n").unwrap();
        assert_eq!((tuning.readahead, tuning.slot_batch), (Readahead::Auto, 1));
        assert_eq!(parse("").unwrap(), Tuning::default());
        assert_eq!(parse("[tuning]").unwrap(), Tuning::default());
    }

    #[test]
    fn a_file_without_an_end_is_not_read_to_its_end() {
        let error = |path: &str| read(Path::new(path), &mut Tuning::default()).unwrap_err();
        assert!(error("/dev/zero").contains("longer than 1 MiB"), "{}", error("/dev/zero"));
        assert!(error("/").starts_with("/: "));
        read(Path::new("/dev/null"), &mut Tuning::default()).unwrap();
    }

    #[test]
    fn errors_name_the_place_and_what_would_be_right() {
        assert!(parse("[tuning]\nreadahead = auto\n").unwrap_err().starts_with("line 2: "));
        assert!(parse("[tuning]\nslot-batch = 65\n").unwrap_err().contains("values: 1..64"));
        assert!(parse("[tuning]\nslots = 65\n").unwrap_err().contains("names: scan-base"));
        assert!(parse("[tuning]\nslot-batch = 1.5\n").unwrap_err().contains("neither a word"));
        assert!(parse("[groups]\n").unwrap_err().contains("there is [tuning]"));
        assert!(parse("tuning = 3\n").unwrap_err().contains("must be a table"));
    }
}
