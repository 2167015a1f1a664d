//! What the checks look like on a terminal.

use std::fmt::Write as _;

use super::check::{Check, Level};

const LEVEL_COLUMNS: usize = 4;

/// The checks that the short answer shows besides the first one, which is the mode.
const SHORT: [&str; 3] = ["kernel", "swap directory", "memory"];

/// Every check, and a last line that says what it comes to.
pub(super) fn render(checks: &[Check], colour: bool) -> String {
    format!("{}\n{}\n", lines_of(&checks.iter().collect::<Vec<_>>(), colour), summary(checks))
}

/// Four checks and those that fail; then whether `run` can start, and the first thing that would make it
/// better.
pub(super) fn render_short(checks: &[Check], colour: bool) -> String {
    let is_shown =
        |(at, check): &(usize, &Check)| *at == 0 || SHORT.contains(&check.name) || check.level == Level::Fail;
    let shown: Vec<&Check> = checks.iter().enumerate().filter(is_shown).map(|(_, check)| check).collect();
    let has_failed = checks.iter().any(|check| check.level == Level::Fail);
    let mut mends = checks.iter().filter(|check| check.level == Level::Warn && check.fix.is_some());
    let last = match mends.next() {
        _ if has_failed => format!("{} (all with -v)", summary(checks)),
        None => "memspill run can start here. (All that was looked at: -v)".to_owned(),
        Some(check) => format!(
            "memspill run can start here, and would be better with {}: {} (all with -v)",
            check.name,
            check.fix.as_deref().unwrap_or_default()
        ),
    };
    format!("{}{last}\n", lines_of(&shown, colour))
}

/// Aligned columns, and the fix below its check.
fn lines_of(checks: &[&Check], colour: bool) -> String {
    let name_columns = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let level = level_word(check.level, colour);
        let _ = writeln!(text, "{level}  {:name_columns$}  {}", check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "{:1$}fix: {fix}", "", LEVEL_COLUMNS + 2 + name_columns + 2);
        }
    }
    text
}

fn level_word(level: Level, colour: bool) -> String {
    let (word, code) = match level {
        Level::Ok => ("ok", 32),
        Level::Warn => ("warn", 33),
        Level::Fail => ("FAIL", 31),
    };
    // Padded before it is coloured: the codes have no width.
    let word = format!("{word:LEVEL_COLUMNS$}");
    if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word }
}

pub(super) fn summary(checks: &[Check]) -> String {
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    match (count(Level::Fail), count(Level::Warn)) {
        (0, 0) => "memspill run can start here.".to_owned(),
        (0, warnings) => format!("memspill run can start here; {} marked warn.", lines(warnings)),
        (failures, _) => format!("memspill run cannot start here: mend the {} marked FAIL.", lines(failures)),
    }
}

fn lines(count: usize) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}
