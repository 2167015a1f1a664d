//! Charts as inline SVG. Colours are the page's (html.rs), by class; each chart says in words what it shows.
//!
//! ```text
//!   changes   all tables, a line for each setting: here ●, published ◇, on an axis of ratios
//!   bars      a panel for each group, a bar for each setting, its range as a whisker
//!   line      a column against the setting, both logarithmic, and what proportion would give
//! ```

use crate::axis::Axis;
use crate::model::{Report, Row, Spread, Table};
use crate::number::{Unit, shown, unit_name};
use crate::picture::{Picture, cut};
use std::fmt::Write;

// ---- changes ----------------------------------------------------------------------------------------------

/// The ends of the axis of changes; labels are on its left, numbers on its right.
const CHANGES_LEFT: f64 = 250.0;
const CHANGES_RIGHT: f64 = 690.0;

struct Change<'a> {
    row: &'a Row,
    here: Option<&'a Spread>,
    published: Option<f64>,
}

/// Rows with a change to show, under the name of their table and group.
fn changes_of(report: &Report) -> Vec<(String, Vec<Change<'_>>)> {
    let mut groups = Vec::new();
    for table in &report.tables {
        let Some(column) = table.change.and_then(|key| table.column(key)) else { continue };
        for (group, rows) in table.groups() {
            let changes: Vec<Change> = rows
                .into_iter()
                .map(|row| Change {
                    row,
                    here: row.cells[column].number(),
                    published: row.published.as_ref().and_then(|p| p.change),
                })
                .filter(|change| change.here.is_some() || change.published.is_some())
                .collect();
            if !changes.is_empty() {
                groups.push((format!("{} · {group}", table.title), changes));
            }
        }
    }
    groups
}

/// The change that each setting makes, here and as published; None where there is nothing to compare.
pub fn changes(report: &Report) -> Option<String> {
    const ROW: f64 = 22.0;
    const GROUP: f64 = 27.0;
    const TOP: f64 = 26.0;
    const WIDTH: f64 = 880.0;
    let groups = changes_of(report);
    if groups.is_empty() {
        return None;
    }
    let lines: usize = groups.iter().map(|(_, changes)| changes.len()).sum();
    let height = TOP + GROUP * groups.len() as f64 + ROW * lines as f64 + 8.0;
    let all = || groups.iter().flat_map(|(_, changes)| changes);
    let values = all().flat_map(|c| {
        let here = c.here.map_or([None; 3], |s| [Some(s.median), Some(s.least), Some(s.most)]);
        here.into_iter().chain([c.published]).flatten()
    });
    let axis = Axis::around(values.map(ratio).chain([0.0]), CHANGES_LEFT, CHANGES_RIGHT);
    let mut picture = Picture::new(WIDTH, height);
    for tick in axis.changes() {
        let x = axis.place(ratio(tick));
        let class = if tick == 0.0 { "zero" } else { "grid" };
        picture.line(class, (x, TOP - 6.0), (x, height - 4.0));
        let label = if tick == 0.0 { "no change".into() } else { format!("{:+.0} %", tick * 100.0) };
        picture.text("tick middle", x, TOP - 12.0, &label);
    }
    picture.text("tick", CHANGES_RIGHT + 34.0, TOP - 12.0, "here");
    picture.text("tick", CHANGES_RIGHT + 108.0, TOP - 12.0, "published");
    let mut says = String::from("Change against the first setting of each group.");
    let mut y = TOP;
    for (name, changes) in &groups {
        y += GROUP;
        picture.text("group backed", 0.0, y - 7.0, &cut(name, 110));
        for change in changes {
            y += ROW;
            change_line(&mut picture, &axis, y - 10.0, change);
            let here = change.here.map_or("-".into(), |s| shown(s.median, Unit::Change));
            let published = change.row.published_text();
            let _ = write!(says, " {name}, {}: {here}, published {published}.", change.row.setting);
        }
    }
    Some(picture.finish(&says))
}

/// Where a change stands: twice as much is as far as half as much.
fn ratio(change: f64) -> f64 {
    (1.0 + change).max(1e-3).log2()
}

fn change_line(picture: &mut Picture, axis: &Axis, y: f64, change: &Change) {
    let zero = axis.place(0.0);
    picture.text("label", 12.0, y + 4.0, &cut(&change.row.setting, 40));
    if let Some(here) = change.here {
        let x = axis.place(ratio(here.median));
        picture.line("stem", (zero, y), (x, y));
        if here.samples > 1 {
            picture.line("whisker", (axis.place(ratio(here.least)), y), (axis.place(ratio(here.most)), y));
        }
        picture.dot(x, y, &format!("here {}", shown(here.median, Unit::Change)));
        picture.text("value", CHANGES_RIGHT + 34.0, y + 4.0, &shown(here.median, Unit::Change));
    }
    if let Some(published) = change.published {
        picture.diamond(
            axis.place(ratio(published)),
            y,
            &format!("published {}", change.row.published_text()),
        );
        picture.text("published-value", CHANGES_RIGHT + 108.0, y + 4.0, &shown(published, Unit::Change));
    }
}

// ---- bars -------------------------------------------------------------------------------------------------

/// A panel for each group: its name and its picture.
pub fn bars(table: &Table, key: &str, one_scale: bool) -> Vec<(String, String)> {
    let Some(i) = table.column(key) else { return Vec::new() };
    // One sample far out must not make all bars too short to compare: its whisker is cut.
    let reach = |s: &Spread| s.most.min(s.median * 2.0);
    let most = |rows: &[&Row]| rows.iter().filter_map(|r| r.cells[i].number()).map(reach).fold(0.0, f64::max);
    let groups = table.groups();
    let of_all = groups.iter().map(|(_, rows)| most(rows)).fold(0.0, f64::max);
    groups
        .iter()
        .filter(|(_, rows)| rows.iter().any(|row| row.cells[i].number().is_some()))
        .map(|(group, rows)| {
            let full = if one_scale { of_all } else { most(rows) };
            (group.to_string(), panel(table, group, rows, i, full))
        })
        .collect()
}

fn panel(table: &Table, group: &str, rows: &[&Row], i: usize, full: f64) -> String {
    let column = &table.columns[i];
    const ROW: f64 = 38.0;
    const BAR: f64 = 12.0;
    const WIDTH: f64 = 360.0;
    const VALUE: f64 = 76.0;
    let mut picture = Picture::new(WIDTH, ROW * rows.len() as f64 + 2.0);
    let scale = if full > 0.0 { (WIDTH - VALUE) / full } else { 0.0 };
    let mut says = format!("{}, {group}.", column.name);
    for (n, row) in rows.iter().enumerate() {
        let y = ROW * n as f64;
        picture.text("label", 0.0, y + 13.0, &cut(&row.setting, 54));
        let top = y + 19.0;
        let Some(spread) = row.cells[i].number() else {
            picture.text("value", 0.0, top + BAR - 2.0, "not measured");
            continue;
        };
        let value = format!("{}{}", shown(spread.median, column.unit), unit_name(column.unit));
        let _ = write!(says, " {}: {value}.", row.setting);
        let class = if n == 0 && table.change.is_some() { "old" } else { "new" };
        // A value that is too small to see is a hair.
        picture.bar(class, (0.0, top), ((spread.median * scale).max(1.0), BAR));
        let end = (spread.most * scale).min(WIDTH - VALUE);
        if spread.samples > 1 {
            let y = top + BAR / 2.0;
            picture.line("whisker", (spread.least * scale, y), (end, y));
        }
        picture.text("value", end + 7.0, top + BAR - 2.0, &value);
    }
    picture.finish(&says)
}

// ---- line -------------------------------------------------------------------------------------------------

/// The column against the setting, which is a number. None with fewer than two such rows.
pub fn line(table: &Table, key: &str) -> Option<String> {
    const WIDTH: f64 = 860.0;
    const HEIGHT: f64 = 380.0;
    const LEFT: f64 = 70.0;
    const RIGHT: f64 = 830.0;
    const TOP: f64 = 24.0;
    const BOTTOM: f64 = 330.0;
    let i = table.column(key)?;
    let column = &table.columns[i];
    let points: Vec<(f64, f64)> = table
        .rows
        .iter()
        .filter_map(|row| Some((row.setting.parse::<f64>().ok()?, row.cells[i].number()?.median)))
        .filter(|(x, y)| *x > 0.0 && *y > 0.0)
        .collect();
    let [first, _, ..] = points[..] else { return None };
    let last = *points.last().expect("there are two");
    let proportion = first.1 * last.0 / first.0;
    let x = Axis::around(points.iter().map(|p| p.0.log2()), LEFT, RIGHT);
    let y = Axis::around(points.iter().map(|p| p.1).chain([proportion]).map(f64::log10), BOTTOM, TOP);
    let place = |p: &(f64, f64)| (x.place(p.0.log2()), y.place(p.1.log10()));

    let mut picture = Picture::new(WIDTH, HEIGHT);
    for tick in y.decades() {
        let at = y.place(tick.log10());
        picture.line("grid", (LEFT, at), (RIGHT, at));
        picture.text("tick end", LEFT - 8.0, at + 4.0, &shown(tick, column.unit));
    }
    for (cpus, _) in &points {
        picture.text("tick middle", x.place(cpus.log2()), BOTTOM + 20.0, &cpus.to_string());
    }
    picture.text("tick middle", (LEFT + RIGHT) / 2.0, BOTTOM + 42.0, table.row_name);
    picture.path("proportion", &[place(&first), place(&(last.0, proportion))]);
    picture.path("curve", &points.iter().map(place).collect::<Vec<_>>());
    let mut says = format!("{} against {}.", column.name, table.row_name);
    for point in &points {
        let (px, py) = place(point);
        let value = format!("{}{}", shown(point.1, column.unit), unit_name(column.unit));
        picture.dot(px, py, &value);
        picture.text("value middle backed", px, py + 20.0, &shown(point.1, column.unit));
        let _ = write!(says, " {}: {value}.", point.0);
    }
    Some(picture.finish(&says))
}
