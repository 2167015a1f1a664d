//! JSON: all that the report holds.
//!
//! ```text
//!   { schema, title, command, machine, seed, notes,
//!     tables: [ { id, title, notes, columns: [ { key, name, unit, help } ],
//!                 rows: [ { group, setting, published: null | { text, change },
//!                           cells: { KEY: null | "words" | { median, least, most, samples } } } ] } ] }
//! ```

use crate::model::{Cell, Column, Report, Row, Table};
use crate::number::unit_key;
use std::fmt::Write;

/// Version of the shape: raised when a name changes its meaning or goes. (1 was that of each command by itself.)
const SCHEMA: u32 = 2;

pub fn json(report: &Report) -> String {
    let seed = report.seed.map_or("null".into(), |seed| seed.to_string());
    let tables: Vec<String> = report.tables.iter().map(table).collect();
    format!(
        "{{\n  \"schema\": {SCHEMA},\n  \"title\": {},\n  \"command\": {},\n  \"machine\": {},\n  \"seed\": {seed},\n  \
         \"notes\": {},\n  \"tables\": [\n{}\n  ]\n}}\n",
        string(&report.title),
        string(&report.command),
        string(&report.machine),
        strings(&report.notes),
        tables.join(",\n")
    )
}

fn table(table: &Table) -> String {
    let columns: Vec<String> = table.columns.iter().map(column).collect();
    let rows: Vec<String> = table.rows.iter().map(|r| row(&table.columns, r)).collect();
    format!(
        "    {{\n      \"id\": {},\n      \"title\": {},\n      \"notes\": {},\n      \"columns\": [\n        {}\n      ],\n      \
         \"rows\": [\n        {}\n      ]\n    }}",
        string(table.id),
        string(&table.title),
        strings(&table.notes),
        columns.join(",\n        "),
        rows.join(",\n        ")
    )
}

fn column(column: &Column) -> String {
    format!(
        "{{\"key\": {}, \"name\": {}, \"unit\": {}, \"help\": {}}}",
        string(column.key),
        string(column.name),
        string(unit_key(column.unit)),
        string(column.help)
    )
}

fn row(columns: &[Column], row: &Row) -> String {
    let published = row.published.as_ref().map_or("null".into(), |p| {
        format!("{{\"text\": {}, \"change\": {}}}", string(p.text), p.change.map_or("null".into(), number))
    });
    let cells: Vec<String> = columns
        .iter()
        .zip(&row.cells)
        .map(|(column, c)| format!("{}: {}", string(column.key), cell(c)))
        .collect();
    format!(
        "{{\"group\": {}, \"setting\": {}, \"published\": {published},\n         \"cells\": {{{}}}}}",
        string(&row.group),
        string(&row.setting),
        cells.join(", ")
    )
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Nothing => "null".into(),
        Cell::Words(words) => string(words),
        Cell::Number(s) => format!(
            "{{\"median\": {}, \"least\": {}, \"most\": {}, \"samples\": {}}}",
            number(s.median),
            number(s.least),
            number(s.most),
            s.samples
        ),
    }
}

/// JSON has no word for what is not a number.
fn number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { "null".into() }
}

fn strings(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|text| string(text)).collect::<Vec<_>>().join(", "))
}

fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
