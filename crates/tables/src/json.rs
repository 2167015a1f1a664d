//! JSON: all that the report holds.
//!
//! ```text
//!   { schema, title, command, machine, seed, notes,
//!     tables: [ { id, title, notes, columns: [ { key, name, unit, help } ],
//!                 rows: [ { group, setting, published: null | { text, change },
//!                           cells: { KEY: null | "words" | { median, least, most, samples } } } ] } ] }
//! ```
//!
//! Keys stand in the order above. Other commands form their numbers here too.

use crate::model::{Cell, Column, Report, Row, Table};
use crate::number::unit_key;
use serde_json::{Value, json};

/// Version of the shape: raised when a name changes its meaning or goes. (1 was that of each command by
/// itself.)
const SCHEMA: u32 = 2;

pub(crate) fn json(report: &Report) -> String {
    let report = json!({
        "schema": SCHEMA,
        "title": report.title,
        "command": report.command,
        "machine": report.machine,
        "seed": report.seed,
        "notes": report.notes,
        "tables": report.tables.iter().map(table).collect::<Value>(),
    });
    format!("{report:#}\n")
}

fn table(table: &Table) -> Value {
    json!({
        "id": table.id,
        "title": table.title,
        "notes": table.notes,
        "columns": table.columns.iter().map(column).collect::<Value>(),
        "rows": table.rows.iter().map(|r| row(&table.columns, r)).collect::<Value>(),
    })
}

fn column(column: &Column) -> Value {
    json!({
        "key": column.key,
        "name": column.name,
        "unit": unit_key(column.unit),
        "help": column.help,
    })
}

fn row(columns: &[Column], row: &Row) -> Value {
    let published = row.published.as_ref().map(|p| json!({ "text": p.text, "change": p.change.map(number) }));
    let cells = columns.iter().zip(&row.cells).map(|(column, c)| (column.key, cell(c)));
    json!({
        "group": row.group,
        "setting": row.setting,
        "published": published,
        "cells": cells.collect::<Value>(),
    })
}

fn cell(cell: &Cell) -> Value {
    match cell {
        Cell::Nothing => Value::Null,
        Cell::Words(words) => words.as_str().into(),
        Cell::Number(s) => json!({
            "median": number(s.median),
            "least": number(s.least),
            "most": number(s.most),
            "samples": s.samples,
        }),
    }
}

/// A count stays a whole number, which a program may read into an integer. Anything that is not a number is
/// null.
pub fn number(value: f64) -> Value {
    /// Up to here a double holds every integer.
    const WHOLE_MAX: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    if value.fract() == 0.0 && value.abs() < WHOLE_MAX { (value as i64).into() } else { value.into() }
}

/// A measured number, with as many digits after the point as it is worth.
pub fn rounded(value: f64, digits: i32) -> Value {
    let scale = 10_f64.powi(digits);
    ((value * scale).round() / scale).into()
}
