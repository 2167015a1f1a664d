//! Charts over time: columns against seconds, on a scale from 0. A pointer on the chart shows the values, as
//! titles do; there is no script.

use crate::axis::{marks, moments};
use crate::model::{Drawn, Table};
use crate::number::{Unit, shown, unit_name};
use crate::picture::Picture;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 236.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 846.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 202.0;
/// The number of places of a chart that say their values.
const HINTS_MAX: usize = 120;
/// As many colours as the page has for this.
pub const COLOURS: usize = 4;

/// What is drawn of a table: the columns by their keys, and a column that is drawn as a limit.
pub struct Wanted {
    pub columns: &'static [&'static str],
    pub drawn: Drawn,
    pub limit: Option<&'static str>,
}

struct Series<'a> {
    name: &'a str,
    values: Vec<f64>,
}

/// None with fewer than two rows.
pub fn picture(table: &Table, wanted: &Wanted) -> Option<String> {
    let rows: Vec<_> = table
        .rows
        .iter()
        .filter_map(|row| Some((row.setting.parse::<f64>().ok().filter(|s| s.is_finite())?, row)))
        .collect();
    let times: Vec<f64> = rows.iter().map(|(time, _)| *time).collect();
    let [_, .., end_s] = times[..] else { return None };
    let of = |key: &&'static str| {
        let i = table.column(key)?;
        let values = rows.iter().map(|(_, row)| row.cells[i].number().map_or(0.0, |s| s.median.max(0.0)));
        Some(Series { name: table.columns[i].name, values: values.collect() })
    };
    let series: Vec<Series> = wanted.columns.iter().filter_map(of).take(COLOURS).collect();
    let unit = table.columns[table.column(wanted.columns.first()?)?].unit;
    let limit = wanted.limit.as_ref().and_then(of);
    let tops = tops(&series, wanted.drawn);
    let highest =
        tops.iter().chain(limit.iter().map(|l| &l.values)).flatten().fold(0.0, |a: f64, b| a.max(*b));
    let marks = marks(if unit == Unit::Share { 1.0 } else { highest }, unit);
    let end_mark = *marks.last()?;
    let x = |s: f64| LEFT + (s / end_s.max(1e-9)).clamp(0.0, 1.0) * (RIGHT - LEFT);
    let y = |value: f64| BOTTOM - (value / end_mark).clamp(0.0, 1.0) * (BOTTOM - TOP);
    let line = |values: &[f64]| times.iter().zip(values).map(|(s, v)| (x(*s), y(*v))).collect::<Vec<_>>();

    let mut picture = Picture::new(WIDTH, HEIGHT);
    for mark in &marks {
        picture.line("grid", (LEFT, y(*mark)), (RIGHT, y(*mark)));
        picture.text("tick end", LEFT - 8.0, y(*mark) + 4.0, &mark_words(*mark, unit));
    }
    for moment in moments(end_s) {
        picture.line("grid", (x(moment), BOTTOM), (x(moment), BOTTOM + 4.0));
        picture.text("tick middle", x(moment), BOTTOM + 20.0, &moment_words(moment));
    }
    let ground = line(&vec![0.0; times.len()]);
    for (i, top) in tops.iter().enumerate() {
        let above = line(top);
        match wanted.drawn {
            Drawn::Stacked => {
                let below = if i == 0 { ground.clone() } else { line(&tops[i - 1]) };
                picture.area(&format!("area s{i}"), &above, &below);
            }
            Drawn::Lines => {
                picture.area(&format!("wash s{i}"), &above, &ground);
                picture.path(&format!("stroke s{i}"), &above);
            }
        }
    }
    if let Some(limit) = &limit {
        picture.path("limit", &line(&limit.values));
    }
    hints(&mut picture, &times, &series, limit.as_ref(), unit, x);
    Some(picture.finish(&says(&times, &series, unit)))
}

/// The upper edges.
fn tops(series: &[Series], drawn: Drawn) -> Vec<Vec<f64>> {
    let mut tops: Vec<Vec<f64>> = Vec::with_capacity(series.len());
    for one in series {
        let top = match tops.last().filter(|_| drawn == Drawn::Stacked) {
            Some(below) => below.iter().zip(&one.values).map(|(a, b)| a + b).collect(),
            None => one.values.clone(),
        };
        tops.push(top);
    }
    tops
}

/// Strips over the whole height, each around one of the times.
fn hints(
    picture: &mut Picture,
    times: &[f64],
    series: &[Series],
    limit: Option<&Series>,
    unit: Unit,
    x: impl Fn(f64) -> f64,
) {
    let every = times.len().div_ceil(HINTS_MAX);
    let mut from = LEFT;
    for i in (0..times.len()).step_by(every) {
        let next = times.get(i + every).map_or(RIGHT, |next| (x(times[i]) + x(*next)) / 2.0);
        let mut says = format!("{}: ", precise(times[i]));
        for (n, one) in series.iter().chain(limit).enumerate() {
            let value = format!("{}{}", shown(one.values[i], unit), unit_name(unit));
            let _ = write!(says, "{}{} {value}", if n == 0 { "" } else { ", " }, one.name);
        }
        picture.hint((from, TOP), ((next - from).max(0.0), BOTTOM - TOP), &says);
        from = next;
    }
}

/// The most of each, and when.
fn says(times: &[f64], series: &[Series], unit: Unit) -> String {
    let mut says = format!("Over {}.", precise(times.last().copied().unwrap_or(0.0)));
    for one in series {
        let most = one.values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let Some((i, value)) = most else { continue };
        let _ = write!(
            says,
            " {}: at most {}{}, after {}.",
            one.name,
            shown(*value, unit),
            unit_name(unit),
            precise(times[i])
        );
    }
    says
}

/// `64 MiB`: marks are round, and places of 0 say nothing.
fn mark_words(mark: f64, unit: Unit) -> String {
    let words = format!("{}{}", shown(mark, unit), unit_name(unit));
    words.replace(".00 ", " ").replace(".0 ", " ")
}

/// A mark's: `40 s`, `3 min`, `2 h`.
fn moment_words(s: f64) -> String {
    let (number, unit) = match s {
        0.0 => return "0".into(),
        s if s % 86400.0 == 0.0 => (s / 86400.0, "d"),
        s if s % 3600.0 == 0.0 => (s / 3600.0, "h"),
        s if s % 60.0 == 0.0 => (s / 60.0, "min"),
        s => (s, "s"),
    };
    let text = format!("{number:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Any moment's: `1 h 2 min 5 s`, `12.3 s`.
pub fn precise(s: f64) -> String {
    if s < 60.0 {
        return format!("{s:.1} s");
    }
    let s = s.round() as u64;
    let (h, min, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h} h {min} min {s} s") } else { format!("{min} min {s} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_in_words() {
        let words = |mark, unit| mark_words(mark, unit);
        assert_eq!(words(0.4, Unit::Share), "40 %");
        assert_eq!(words(32.0 * 1048576.0, Unit::Bytes), "32 MiB");
        assert_eq!(words(2000.0, Unit::PerSecond), "2 k/s");
        assert_eq!(words(1536.0, Unit::Bytes), "1.50 KiB");
    }

    #[test]
    fn times_in_words() {
        let marks = [0.0, 0.5, 40.0, 90.0, 180.0, 7200.0, 86400.0].map(moment_words);
        assert_eq!(marks, ["0", "0.5 s", "40 s", "90 s", "3 min", "2 h", "1 d"]);
        assert_eq!([12.34, 75.0, 3725.4].map(precise), ["12.3 s", "1 min 15 s", "1 h 2 min 5 s"]);
    }
}
