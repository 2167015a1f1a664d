//! Markdown as GitHub reads it: a pipe table for each table.

use crate::model::{Place, Report, Row, Table};
use crate::number::unit_name;
use std::fmt::Write;

pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n    {}\n\n", escaped(&report.title), one_line(&report.command));
    let seed = report.seed.map_or(String::new(), |seed| format!(" Seed {seed}."));
    let _ = writeln!(text, "Machine: {}.{seed}", escaped(&report.machine));
    notes(&mut text, &report.notes);
    for table in &report.tables {
        let _ = write!(text, "\n## {}\n\n", escaped(&table.title));
        if !table.rows.is_empty() {
            rows(&mut text, table);
        }
        notes(&mut text, &table.notes);
    }
    text
}

fn rows(text: &mut String, table: &Table) {
    let places = table.places();
    let has_groups = table.rows.iter().any(|row| !row.group.is_empty());
    let mut head: Vec<String> = has_groups.then(|| "workload".into()).into_iter().collect();
    head.push(escaped(table.row_name));
    head.extend(places.iter().map(|place| column_head(table, *place)));
    line(text, &head);
    let left = usize::from(has_groups) + 1;
    let ruler = |i| if i < left { "---" } else { "---:" };
    line(text, &(0..head.len()).map(|i| ruler(i).to_string()).collect::<Vec<_>>());
    for (group, group_rows) in table.groups() {
        for (i, row) in group_rows.iter().enumerate() {
            let mut cells: Vec<String> = Vec::new();
            if has_groups {
                cells.push(if i == 0 { escaped(group) } else { String::new() });
            }
            cells.push(escaped(&row.setting));
            cells.extend(places.iter().map(|place| cell(table, row, *place)));
            line(text, &cells);
        }
    }
}

fn column_head(table: &Table, place: Place) -> String {
    let Place::Column(i) = place else { return "published".into() };
    let column = &table.columns[i];
    escaped(format!("{} {}", column.name, unit_name(column.unit)).trim_end())
}

fn cell(table: &Table, row: &Row, place: Place) -> String {
    let Place::Column(i) = place else { return escaped(row.published_text()) };
    let (cell, unit) = (&row.cells[i], table.columns[i].unit);
    let range = cell.range(unit).map_or(String::new(), |range| format!(" ({range})"));
    escaped(&format!("{}{range}", cell.shown(unit)))
}

fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn notes(text: &mut String, notes: &[String]) {
    if !notes.is_empty() {
        text.push('\n');
    }
    notes.iter().for_each(|note| _ = writeln!(text, "- {}", escaped(note)));
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// What Markdown or a table would take for its own.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in one_line(text).chars() {
        if matches!(c, '\\' | '|' | '*' | '_' | '`' | '<' | '>' | '[' | ']' | '#') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
