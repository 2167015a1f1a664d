//! What `memspill size` prints: a table with a bar for each budget; the same as JSON and as a page.

use crate::output::command_line;
use crate::size::{human, short};
use crate::sizing::search::{End, Search};
use memspill_tables::{Cell, Chart, Column, Report, Row, Table, Unit};
use std::fmt::Write;

/// The longest bar; what is slower than `BAR_SLOWEST` has it too.
const BAR_CHARS: f64 = 40.0;
const BAR_SLOWEST: f64 = 5.0;

/// A budget, how slow the command is with it, and who says so.
pub struct Line {
    pub budget_bytes: u64,
    pub slowdown: f64,
    pub known: Known,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Known {
    Measured,
    /// It was stopped: by its stalls it is at least so slow.
    Stopped,
    /// It ended by itself.
    Failed(String),
    /// By how long pages were away in another run.
    Refaults,
}

impl Known {
    fn words(&self) -> String {
        match self {
            Known::Measured => "measured".into(),
            Known::Stopped => "stopped: at least so slow".into(),
            Known::Failed(reason) => format!("failed: {reason}"),
            Known::Refaults => "by refaults".into(),
        }
    }
}

/// All that was tried, and what refaults say of budgets in between, by budget.
pub fn lines(search: &Search) -> Vec<Line> {
    let mut lines: Vec<Line> = search
        .attempts
        .iter()
        .map(|attempt| Line {
            budget_bytes: attempt.budget_bytes,
            slowdown: search.slowdown(attempt),
            known: match &attempt.end {
                End::Whole => Known::Measured,
                End::Stopped => Known::Stopped,
                End::Failed(reason) => Known::Failed(reason.clone()),
            },
        })
        .collect();
    for (budget_bytes, slowdown) in search.modelled() {
        // Beside a run nobody needs to know what it would have been.
        let is_near = |line: &Line| line.budget_bytes.abs_diff(budget_bytes) < budget_bytes / 24;
        if !lines.iter().any(is_near) {
            lines.push(Line { budget_bytes, slowdown, known: Known::Refaults });
        }
    }
    lines.sort_by_key(|line| line.budget_bytes);
    lines
}

fn bar(slowdown: f64) -> String {
    let length = (slowdown - 1.0) / (BAR_SLOWEST - 1.0) * BAR_CHARS;
    let end = if length > BAR_CHARS { ">" } else { "" };
    "#".repeat(length.clamp(0.0, BAR_CHARS).round() as usize) + end
}

/// For a terminal.
pub fn text(search: &Search, peak_bytes: u64, lines: &[Line]) -> String {
    let mut text = format!("without limit {:.2} s, {} at most\n\n", search.free_s, human(peak_bytes));
    let _ = writeln!(text, "{:>9}  {:>9}", "budget", "slowdown");
    for line in lines {
        let failed = matches!(line.known, Known::Failed(_));
        let slowdown = if failed { "-".into() } else { format!("{:.2} x", line.slowdown) };
        let bar = if failed { String::new() } else { bar(line.slowdown) };
        let row = format!("{:>9}  {slowdown:>9}  {:<26}{bar}", short(line.budget_bytes), line.known.words());
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// For programs and for the page.
pub fn report(search: &Search, peak_bytes: u64, lines: &[Line], answer: &str) -> Report {
    let row = |line: &Line| Row {
        group: String::new(),
        setting: short(line.budget_bytes),
        cells: vec![
            Cell::once(line.budget_bytes as f64),
            match line.known {
                Known::Failed(_) => Cell::Nothing,
                _ => Cell::once(line.slowdown),
            },
            Cell::Words(line.known.words()),
        ],
        published: None,
        detail: false,
    };
    let known = Column { key: "known", name: "known", unit: Unit::Words, help: "How that is known." };
    let table = Table {
        id: "size",
        title: "Budgets".into(),
        row_name: "budget",
        columns: [budget_and_slowdown("bytes", Unit::Count), vec![known]].concat(),
        rows: lines.iter().map(row).collect(),
        notes: Vec::new(),
        change: None,
        charts: vec![Chart::Bars { column: "slowdown", one_scale: true }],
    };
    let free = format!("Without limit {:.2} s, {} at most.", search.free_s, human(peak_bytes));
    let tables = vec![short_table(search, peak_bytes), table];
    Report {
        title: "How much memory is enough".into(),
        command: command_line("memspill"),
        machine: crate::machine::described(),
        seed: None,
        notes: vec![free, answer.into()],
        tables,
    }
}

fn budget_and_slowdown(name: &'static str, unit: Unit) -> Vec<Column> {
    let help = "Time as a multiple of that without limit.";
    vec![
        Column { key: "memory_max_bytes", name, unit, help: "The budget." },
        Column { key: "slowdown", name: "slowdown", unit: Unit::Count, help },
    ]
}

/// What was looked for: the memory that the command takes and, where there is one, the budget that is enough.
fn short_table(search: &Search, peak_bytes: u64) -> Table {
    let row = |setting: &str, bytes: u64, slowdown: f64| Row {
        group: String::new(),
        setting: setting.into(),
        cells: vec![Cell::once(bytes as f64), Cell::once(slowdown)],
        published: None,
        detail: false,
    };
    let enough = search.answer().map(|a| row("enough", a.budget_bytes, search.slowdown(a)));
    Table {
        id: "answer",
        title: "Answer".into(),
        row_name: "",
        columns: budget_and_slowdown("memory", Unit::Bytes),
        rows: [row("without limit", peak_bytes, 1.0)].into_iter().chain(enough).collect(),
        notes: Vec::new(),
        change: None,
        charts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_grow_with_the_time_that_is_lost() {
        assert_eq!((bar(1.0), bar(0.9), bar(1.2)), (String::new(), String::new(), "##".into()));
        assert_eq!(bar(5.0).len(), 40);
        assert!(bar(50.0).ends_with("#>") && bar(50.0).len() == 41);
    }
}
