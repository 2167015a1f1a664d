//! What the threads published, figure by figure, each with what comes out here and with a verdict.
//!
//! ```text
//!   Figure (threads.rs) ─ metric ─▶ change of each seed against the first setting's run of that seed
//!                                     └─▶ median, least, most ─▶ as large as half of what was published, and
//!                                                               in the same direction? yes, no
//! ```
//!
//! A figure that lay within the thread's own deviation says that nothing changed: the verdict is then yes if
//! the change here is within that deviation too. What it does not do: explain (docs/simulation.md).

use crate::bench::Measured;
use memspill_tables::{Cell, Column, Published, Row, Table, Unit};

/// One published figure of a setting.
pub struct Figure {
    pub metric: Metric,
    pub published: Published,
    /// The deviation that the thread gave, where the figure lies within it.
    pub noise: Option<f64>,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    Accesses,
    SwapIn,
    SwapOut,
    /// The time in which a given number of accesses is made, or of pages brought or pushed out.
    RealTime,
    InTime,
    OutTime,
    /// CPU time that is neither the program's own nor idle, for each access.
    SystemTime,
    /// The share of all time that is lost in these locks, by their names in the profile.
    Locks(&'static str, &'static [&'static str]),
}

impl Metric {
    /// The key of the column that the metric is a rate in.
    pub fn key(self) -> &'static str {
        match self {
            Metric::SwapOut | Metric::OutTime => "swap_out_per_s",
            Metric::SwapIn | Metric::InTime => "swap_in_per_s",
            _ => "accesses_per_s",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Metric::Accesses => "accesses",
            Metric::SwapIn => "swap-in",
            Metric::SwapOut => "swap-out",
            Metric::RealTime => "real time",
            Metric::InTime => "time of swap-in",
            Metric::OutTime => "time of swap-out",
            Metric::SystemTime => "system time",
            Metric::Locks(name, _) => name,
        }
    }

    fn of(self, m: &Measured) -> f64 {
        let counted = &m.counted;
        let rate = |count: u64| count as f64 * 1e9 / m.measured_ns as f64;
        match self {
            Metric::Accesses => rate(counted.accesses),
            Metric::SwapIn => rate(counted.swapped_in),
            Metric::SwapOut => rate(counted.swapped_out),
            Metric::RealTime => 1.0 / rate(counted.accesses),
            Metric::InTime => 1.0 / rate(counted.swapped_in),
            Metric::OutTime => 1.0 / rate(counted.swapped_out),
            Metric::SystemTime => m.system_ns as f64 / counted.accesses as f64,
            Metric::Locks(_, locks) => {
                let lost = m.profile.iter().filter(|entry| locks.contains(&entry.name.as_str()));
                lost.map(|entry| entry.counts.lost_ns()).sum::<u64>() as f64 / m.busy_ns as f64
            }
        }
    }

    /// The change of each seed's run against the first setting's run of that seed.
    pub fn change(self, first: &[Measured], runs: &[Measured]) -> Cell {
        let changes = first.iter().zip(runs).map(|(first, run)| self.of(run) / self.of(first) - 1.0);
        // None of a lock that was never waited for.
        Cell::of(changes.filter(|change| change.is_finite()).collect())
    }
}

impl Figure {
    /// The figure's row, in the table of all figures.
    pub fn row(&self, group: &str, setting: &str, first: &[Measured], runs: &[Measured]) -> Row {
        let change = self.metric.change(first, runs);
        let holds = change.number().is_some_and(|change| self.holds(change.median));
        Row {
            group: group.into(),
            setting: format!("{}: {setting}", self.metric.name()),
            cells: vec![change, Cell::Words(if holds { "yes" } else { "no" }.into())],
            published: Some(self.published),
            detail: false,
        }
    }

    fn holds(&self, change: f64) -> bool {
        let published = self.published.change.expect("a published figure is a change");
        match self.noise {
            Some(noise) => change.abs() <= noise,
            None => change * published > 0.0 && change.abs() >= published.abs() / 2.0,
        }
    }
}

/// All figures, those of all threads.
pub fn table(rows: Vec<Row>) -> Table {
    let column = |key, name, unit, help| Column { key, name, unit, help };
    let holds = rows.iter().filter(|row| row.cells[1] == Cell::Words("yes".into())).count();
    let note =
        format!("At least half of the published size, in the same direction: {holds} of {}.", rows.len());
    Table {
        id: "figures",
        title: "What was published, figure by figure".into(),
        row_name: "figure",
        columns: vec![
            column("here", "here", Unit::Change, "Against the first setting of the machine."),
            column(
                "half",
                "half of it",
                Unit::Words,
                "At least half of the published size, in the same direction. Where that lay within the \
                 thread's deviation: so does the change here.",
            ),
        ],
        rows,
        notes: vec![note],
        change: None,
        charts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_it_in_the_same_direction() {
        let figure = |change, noise| Figure {
            metric: Metric::Accesses,
            published: Published { text: "", change: Some(change) },
            noise,
        };
        let large = figure(0.44, None);
        assert!(large.holds(0.22) && large.holds(2.0));
        assert!(!large.holds(0.21) && !large.holds(-0.44));
        let slower = figure(-0.1, None);
        assert!(slower.holds(-0.05) && !slower.holds(-0.04) && !slower.holds(0.1));
        let nothing = figure(-0.0075, Some(0.034));
        assert!(nothing.holds(0.0) && nothing.holds(0.03) && !nothing.holds(-0.04));
    }
}
