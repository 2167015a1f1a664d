//! What a report holds.
//!
//! ```text
//!   Report ─▶ Table ─▶ Column   name, unit
//!                   └▶ Row      group (workload, machine), setting, published figure ─▶ Cell for each column
//! ```
//!
//! Rows of one group stand together; the first of them is the one that the others are compared with.

use crate::number::{self, Unit};

/// What one command has measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub title: String,
    /// The command line that makes it again.
    pub command: String,
    pub machine: String,
    pub seed: Option<u64>,
    pub notes: Vec<String>,
    pub tables: Vec<Table>,
}

#[derive(Clone, Debug)]
pub struct Table {
    /// Short and unique in the report: `000`.
    pub id: &'static str,
    pub title: String,
    /// What distinguishes the rows of a group: `setting`, `CPUs`.
    pub row_name: &'static str,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
    /// The column with the change against the group's first row, which the page's first chart compares with
    /// what was published. In text, what was published stands beside the first column of changes.
    pub change: Option<&'static str>,
    pub charts: Vec<Chart>,
}

#[derive(Clone, Debug)]
pub struct Column {
    /// For programs: `swap_in_per_s`.
    pub key: &'static str,
    /// For people: `swap-in`.
    pub name: &'static str,
    pub unit: Unit,
    /// One line that says what is counted.
    pub help: &'static str,
}

#[derive(Clone, Debug)]
pub struct Row {
    /// Workload and machine; empty where all rows of the table are alike in that.
    pub group: String,
    pub setting: String,
    /// One for each column.
    pub cells: Vec<Cell>,
    pub published: Option<Published>,
    /// Only JSON and CSV have it, and charts over time: the tail of a long list.
    pub detail: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    Number(Spread),
    Words(String),
    /// Not measured, or not to be measured here.
    Nothing,
}

/// The median of some samples, and between what they lie.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub samples: usize,
}

/// What somebody else has reported for this row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Published {
    pub text: &'static str,
    /// The same as a change against the group's first row, where it is one.
    pub change: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Chart {
    /// For each group a panel, in it a bar for each row; on one scale, or each panel on its own.
    Bars { column: &'static str, one_scale: bool },
    /// The setting is a number: the column against it, both logarithmic, beside proportion to the first.
    Line { column: &'static str },
    /// The setting is a time in seconds, from 0: columns against it, on a scale from 0.
    Time { title: &'static str, columns: &'static [&'static str], drawn: Drawn, limit: Option<&'static str> },
}

/// How several columns stand in one chart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drawn {
    /// Areas on top of each other, for parts of a whole.
    Stacked,
    /// Lines, each from 0.
    Lines,
}

/// A place in a row, for those who render it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Column(usize),
    Published,
}

impl Spread {
    /// A value that was measured once, or is the same each time.
    pub fn once(value: f64) -> Spread {
        Spread { median: value, least: value, most: value, samples: 1 }
    }
}

impl Cell {
    pub fn once(value: f64) -> Cell {
        Cell::Number(Spread::once(value))
    }
    /// What was measured several times; Nothing, if no time.
    pub fn of(mut samples: Vec<f64>) -> Cell {
        samples.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (samples.first(), samples.last()) else { return Cell::Nothing };
        let (n, (least, most)) = (samples.len(), (*least, *most));
        let median = (samples[(n - 1) / 2] + samples[n / 2]) / 2.0;
        Cell::Number(Spread { median, least, most, samples: n })
    }
    pub fn number(&self) -> Option<&Spread> {
        match self {
            Cell::Number(spread) if spread.median.is_finite() => Some(spread),
            _ => None,
        }
    }
    /// As people read it, without the spread.
    pub fn shown(&self, unit: Unit) -> String {
        match self {
            Cell::Number(spread) => number::shown(spread.median, unit),
            Cell::Words(words) => words.clone(),
            Cell::Nothing => "-".into(),
        }
    }
    /// Between what the samples lie, if there are several.
    pub fn range(&self, unit: Unit) -> Option<String> {
        let spread = self.number().filter(|s| s.samples > 1)?;
        Some(format!("{} to {}", number::shown(spread.least, unit), number::shown(spread.most, unit)))
    }
}

impl Table {
    pub fn column(&self, key: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.key == key)
    }

    /// The rows that people see, group by group.
    pub fn groups(&self) -> Vec<(&str, Vec<&Row>)> {
        let mut groups: Vec<(&str, Vec<&Row>)> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.detail) {
            match groups.last_mut() {
                Some((group, rows)) if *group == row.group => rows.push(row),
                _ => groups.push((&row.group, vec![row])),
            }
        }
        groups
    }

    /// What people see of the columns: those in which some row has something, and what was published beside
    /// the change.
    pub fn places(&self) -> Vec<Place> {
        let seen = |i: &usize| self.rows.iter().any(|row| !row.detail && row.cells[*i] != Cell::Nothing);
        let mut places: Vec<Place> = (0..self.columns.len()).filter(seen).map(Place::Column).collect();
        if self.rows.iter().any(|row| row.published.is_some()) {
            let change = self.columns.iter().position(|column| column.unit == Unit::Change);
            let change = change.map(Place::Column);
            let beside = places.iter().position(|place| Some(*place) == change);
            places.insert(beside.map_or(places.len(), |i| i + 1), Place::Published);
        }
        places
    }
}

impl Row {
    pub fn published_text(&self) -> &str {
        self.published.as_ref().map_or("-", |published| published.text)
    }
}
