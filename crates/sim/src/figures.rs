//! What the threads published, figure by figure, each with what comes out here and with a verdict.
//!
//! ```text
//!   Figure (threads.rs) ─ metric ─▶ change of each seed against the first setting's run of that seed
//!                                     └─▶ median, least, most ─▶ from half to double of what was
//!                                                               published, in that direction? yes, no
//! ```
//!
//! A figure that lay within the thread's own deviation says that nothing changed: the verdict is then yes if
//! the change here is within that deviation too. A rate that a thread gives stands beside ours: a simulated
//! kernel that is too quick makes too much of its waits. Figures of the real kernel and of memspill were
//! measured, and are written down in threads.rs. docs/simulation.md begins with this table, which
//! `scripts/seeds-table.sh` makes.

use crate::bench::Measured;
use memspill_tables::{Cell, Column, Published, Row, Table, Unit};

/// One published figure of a setting.
pub struct Figure {
    pub name: &'static str,
    pub metric: Metric,
    pub published: Published,
    /// The deviation that the thread gave, where the figure lies within it.
    pub noise: Option<f64>,
    /// The metric before, if the thread says it: a second's count, or seconds of one.
    pub before: Option<f64>,
    /// Measured on a virtual machine of two CPUs, Linux 6.18 on zram; `memspill`: there, and of 16 CPUs.
    pub kernel: &'static str,
    pub memspill: &'static str,
    /// Why it does not agree, if it does not.
    pub why: &'static str,
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

    fn is_time(self) -> bool {
        matches!(self, Metric::RealTime | Metric::InTime | Metric::OutTime | Metric::SystemTime)
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
    pub fn row(&self, group: &str, first: &[Measured], runs: &[Measured]) -> Row {
        let change = self.metric.change(first, runs);
        let agrees = change.number().is_some_and(|change| self.agrees(change.median));
        let (agrees, why) = if agrees { (YES, "") } else { ("no", self.why) };
        let words = |words: &str| if words.is_empty() { Cell::Nothing } else { Cell::Words(words.into()) };
        let quicker = self.before.map_or(Cell::Nothing, |before| {
            let rates = Cell::of(first.iter().map(|run| self.metric.of(run)).collect());
            let of = rates.number().map_or(f64::NAN, |rate| rate.median) / before;
            Cell::Words(format!("{:.1}", if self.metric.is_time() { 1.0 / of } else { of }))
        });
        Row {
            group: group.into(),
            setting: self.name.into(),
            cells: vec![change, quicker, words(self.kernel), words(self.memspill), words(agrees), words(why)],
            published: Some(self.published),
            detail: false,
        }
    }

    fn agrees(&self, change: f64) -> bool {
        let published = self.published.change.expect("a published figure is a change");
        match self.noise {
            Some(noise) => change.abs() <= noise,
            None => (0.5..=2.0).contains(&(change / published)),
        }
    }
}

const YES: &str = "yes";
/// The verdict's column.
const AGREES: usize = 4;

/// All figures, those of all threads.
pub fn table(rows: Vec<Row>) -> Table {
    let column = |key, name, unit, help| Column { key, name, unit, help };
    let agree = rows.iter().filter(|row| row.cells[AGREES] == Cell::Words(YES.into())).count();
    let note = format!("{agree} of {} agree.", rows.len());
    Table {
        id: "figures",
        title: "What was published, figure by figure".into(),
        row_name: "figure",
        columns: vec![
            column("here", "simulated", Unit::Change, "Against the first setting of the machine."),
            column("quicker", "rate", Unit::Words, "The simulated rate before, of the published one."),
            column("kernel", "this kernel here", Unit::Words, "Linux 6.18, zram, 2 CPUs, measured."),
            column("memspill", "memspill here", Unit::Words, "2 CPUs; 16 CPUs; measured."),
            column(
                "agrees",
                "agrees",
                Unit::Words,
                "From half to double of the published change. Where that lay within the thread's deviation: \
                 so does the change here.",
            ),
            column("why", "why not", Unit::Words, "The cause, as far as it was found by experiment."),
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
    fn from_half_to_double_in_the_same_direction() {
        let figure = |change, noise| Figure {
            name: "",
            metric: Metric::Accesses,
            published: Published { text: "", change: Some(change) },
            noise,
            before: None,
            kernel: "",
            memspill: "",
            why: "",
        };
        let large = figure(0.44, None);
        assert!(large.agrees(0.22) && large.agrees(0.88));
        assert!(!large.agrees(0.21) && !large.agrees(0.89) && !large.agrees(-0.44));
        let slower = figure(-0.1, None);
        assert!(
            slower.agrees(-0.05) && !slower.agrees(-0.04) && !slower.agrees(-0.82) && !slower.agrees(0.1)
        );
        let nothing = figure(-0.0075, Some(0.034));
        assert!(nothing.agrees(0.0) && nothing.agrees(0.03) && !nothing.agrees(-0.04));
    }
}
