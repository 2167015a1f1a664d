//! Text for a terminal. A table that is too wide goes on below, with its rows named again.
//!
//! Our own, because crates for tables break the cells of one that is too wide, and have no groups of rows.

use crate::model::{Place, Report, Row, Table};
use crate::number::{Unit, unit_name};
use std::fmt::Write;

/// Columns of characters that a table takes at most, if its columns allow it.
const WIDTH: usize = 118;
const GAP: usize = 2;

pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n  {}\n  {}\n", report.title, report.command, report.machine);
    for table in &report.tables {
        let _ = write!(text, "\n{}\n", table.title);
        let strips: Vec<String> = strips(table).iter().map(|strip| strip.lines(table)).collect();
        text.push_str(&strips.join("\n"));
        table.notes.iter().for_each(|note| wrapped(&mut text, note));
    }
    if !report.notes.is_empty() {
        text.push('\n');
    }
    report.notes.iter().for_each(|note| wrapped(&mut text, note));
    text
}

/// A column of the text: its head in two lines, and what it has for each row.
struct Strand {
    head: [String; 2],
    cells: Vec<String>,
    left: bool,
}

impl Strand {
    fn width(&self) -> usize {
        let widths = self.head.iter().chain(&self.cells).map(|text| text.chars().count());
        widths.max().unwrap_or(0)
    }
}

/// Some of a table's columns, side by side.
struct Strip {
    strands: Vec<Strand>,
}

fn visible(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows.iter().filter(|row| !row.detail)
}

fn strand(table: &Table, place: Place) -> Strand {
    let Place::Column(i) = place else {
        return Strand {
            head: ["published".into(), String::new()],
            cells: visible(table).map(|row| row.published_text().to_string()).collect(),
            left: true,
        };
    };
    let column = &table.columns[i];
    let shown = |row: &Row| {
        let range = row.cells[i].range(column.unit).filter(|_| column.unit == Unit::Change);
        row.cells[i].shown(column.unit) + &range.map_or(String::new(), |range| format!(" ({range})"))
    };
    Strand {
        head: [column.name.to_string(), unit_name(column.unit).to_string()],
        cells: visible(table).map(shown).collect(),
        left: column.unit == Unit::Words,
    }
}

/// Columns for as many strips as their widths need.
fn strips(table: &Table) -> Vec<Strip> {
    let names = setting_width(table);
    let mut strips: Vec<Strip> = Vec::new();
    let mut used = usize::MAX;
    for strand in table.places().into_iter().map(|place| strand(table, place)) {
        let takes = GAP + strand.width();
        if used.saturating_add(takes) > WIDTH {
            strips.push(Strip { strands: Vec::new() });
            used = names;
        }
        used += takes;
        strips.last_mut().expect("one was pushed").strands.push(strand);
    }
    strips
}

fn has_groups(table: &Table) -> bool {
    visible(table).any(|row| !row.group.is_empty())
}

/// Settings stand under their group's name, which may run on above the other columns.
fn setting_width(table: &Table) -> usize {
    let indent = if has_groups(table) { 2 } else { 0 };
    visible(table)
        .map(|row| row.setting.chars().count() + indent)
        .chain([table.row_name.len()])
        .max()
        .unwrap_or(0)
}

impl Strip {
    fn lines(&self, table: &Table) -> String {
        let names = setting_width(table);
        let mut text = String::new();
        for level in 0..2 {
            let name = if level == 0 { table.row_name } else { "" };
            let line = self.line(names, name, |strand| &strand.head[level]);
            if !line.is_empty() {
                text += &(line + "\n");
            }
        }
        let indent = if has_groups(table) { "  " } else { "" };
        let mut group = "";
        for (i, row) in visible(table).enumerate() {
            if row.group != group {
                group = &row.group;
                let _ = writeln!(text, "{group}");
            }
            let name = format!("{indent}{}", row.setting);
            text += &(self.line(names, &name, |strand| &strand.cells[i]) + "\n");
        }
        text
    }

    fn line<'a>(&'a self, names: usize, name: &str, cell: impl Fn(&'a Strand) -> &'a str) -> String {
        let mut line = format!("{name:<names$}");
        for strand in &self.strands {
            let (width, cell) = (strand.width(), cell(strand));
            let _ = if strand.left {
                write!(line, "{:GAP$}{cell:<width$}", "")
            } else {
                write!(line, "{:GAP$}{cell:>width$}", "")
            };
        }
        line.trim_end().to_string()
    }
}

/// A note, broken between words.
fn wrapped(text: &mut String, note: &str) {
    let mut line = String::from("-");
    for word in note.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".into();
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(text, "{line}");
}
