//! CSV (RFC 4180): one line for each cell, so that tables with other columns have the same shape.
//!
//! Our own, because what a crate would do for it is one rule: quotes around what holds a separator.

use crate::model::{Cell, Report};
use crate::number::unit_key;
use std::fmt::Write;

pub fn csv(report: &Report) -> String {
    let mut text = String::from("table,group,setting,metric,unit,median,least,most,samples,words\n");
    for table in &report.tables {
        for row in &table.rows {
            let place = [table.id, &row.group, &row.setting].map(field).join(",");
            for (column, cell) in table.columns.iter().zip(&row.cells) {
                let value = match cell {
                    Cell::Nothing => continue,
                    Cell::Words(words) => format!(",,,,{}", field(words)),
                    Cell::Number(s) => {
                        format!("{},{},{},{},", number(s.median), number(s.least), number(s.most), s.samples)
                    }
                };
                let _ = writeln!(text, "{place},{},{},{value}", field(column.key), unit_key(column.unit));
            }
            if let Some(published) = &row.published {
                let change = published.change.map_or(String::new(), number);
                let _ = writeln!(text, "{place},published,change,{change},,,,{}", field(published.text));
            }
        }
    }
    text
}

fn number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { String::new() }
}

fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}
