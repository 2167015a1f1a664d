//! Axes: from a value to a place, and where the ticks are. Logarithmic, since what is compared are ratios;
//! over time, from 0.
//!
//! Logarithms may differ in their last bit between machines; places are printed in tenths of a pixel, which
//! hides it.

use crate::number::Unit;

/// From the logarithms `low..high` to pixels `from..to`.
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Around all `values` (logarithms), with a little room at both ends.
    pub fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let finite = values.filter(|v| v.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let room = ((high - low) * 0.06).max(0.02);
        Axis { low: low - room, high: high + room, from, to }
    }

    pub fn place(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Changes (0 is none) to mark on an axis of log2(1 + change), eight at most.
    pub fn changes(&self) -> Vec<f64> {
        const OCTAVES: f64 = 1.5;
        if self.high - self.low > OCTAVES {
            let step = ((self.high - self.low) / 8.0).ceil();
            let powers = (-20..=20).map(|i| f64::from(i) * step);
            return powers.filter(|p| self.holds(*p)).map(|p| p.exp2() - 1.0).collect();
        }
        let ticks = |step: f64| -> Vec<f64> {
            let changes = (-100..=200).map(|i| f64::from(i) * step).filter(|c| *c > -1.0);
            changes.filter(|c| self.holds((1.0 + c).log2())).collect()
        };
        let steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
        steps.into_iter().map(ticks).find(|ticks| ticks.len() <= 8).unwrap_or_default()
    }

    /// Values 1, 2 and 5 times powers of ten to mark on an axis of log10; powers alone where it is long.
    pub fn decades(&self) -> Vec<f64> {
        let factors: &[f64] = if self.high - self.low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (self.low.floor() as i32..=self.high.ceil() as i32).map(|p| 10f64.powi(p));
        powers
            .flat_map(|power| factors.iter().map(move |f| f * power))
            .filter(|v| self.holds(v.log10()))
            .collect()
    }
}

/// Round marks from 0 to at least `most`, six at most; the last one is where the axis ends.
pub fn marks(most: f64, unit: Unit) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let step = match unit {
        Unit::Bytes => (most / 5.0).max(1.0).log2().ceil().exp2(),
        _ => round_step(most / 5.0),
    };
    (0..=(most / step).ceil() as i32).map(|i| f64::from(i) * step).collect()
}

/// 1, 2 or 5 times a power of ten, no less than `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|f| f * power).into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

/// Marks on an axis of seconds, seven at most, none beyond `end_s`: each a number of whole seconds, minutes,
/// hours or days, where it is so long.
pub fn moments(end_s: f64) -> Vec<f64> {
    const STEPS_S: [f64; 18] = [
        1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0,
        21600.0, 43200.0, 86400.0,
    ];
    let end_s = if end_s.is_finite() { end_s.max(0.0) } else { 0.0 };
    let least = end_s / 6.0;
    let step = match STEPS_S.into_iter().find(|step| *step >= least) {
        _ if end_s < 4.0 => round_step(least.max(1e-3)),
        Some(step) => step,
        None => round_step(least / 86400.0) * 86400.0,
    };
    (0..=(end_s / step * 1.001) as i32).map(|i| f64::from(i) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_hold_all() {
        const MIB: f64 = 1048576.0;
        assert_eq!(marks(100.0 * MIB, Unit::Bytes).last(), Some(&(128.0 * MIB)));
        assert_eq!(marks(23_456.0, Unit::PerSecond), [0.0, 5e3, 10e3, 15e3, 20e3, 25e3]);
        assert_eq!(marks(1.0, Unit::Share).len(), 6);
        for most in [0.0, f64::NAN, f64::INFINITY, 1e-9, 0.3, 7.0, 1e18] {
            for unit in [Unit::Bytes, Unit::PerSecond] {
                let marks = marks(most, unit);
                assert!((2..=7).contains(&marks.len()), "{most} {unit:?}: {marks:?}");
                assert!(!most.is_finite() || *marks.last().unwrap() >= most * 0.999, "{most}: {marks:?}");
            }
        }
    }

    #[test]
    fn moments_are_whole_and_within() {
        assert_eq!(moments(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(moments(7200.0).last(), Some(&7200.0));
        for end_s in [0.0, 0.2, 1.0, 3.9, 59.0, 3601.0, 86400.0, 1e7, 1e9, f64::NAN] {
            let moments = moments(end_s);
            assert!((1..=9).contains(&moments.len()), "{end_s}: {moments:?}");
            assert!(moments.iter().all(|s| end_s.is_nan() || *s <= end_s * 1.001), "{end_s}: {moments:?}");
        }
    }

    #[test]
    fn ticks_are_round_few_and_on_the_axis() {
        let axis = |low: f64, high: f64| Axis::around([low, high].into_iter(), 0.0, 100.0);
        assert_eq!(axis(-1.0, 2.0).changes(), [-0.5, 0.0, 1.0, 3.0]);
        assert_eq!(axis((0.96f64).log2(), (1.04f64).log2()).changes().len(), 5);
        assert_eq!(axis(5.0, 6.3).decades(), [1e5, 2e5, 5e5, 1e6, 2e6]);
        assert_eq!(axis(0.0, 6.0).decades(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        let wide = axis(-3.0, 9.0);
        assert!(wide.changes().len() <= 8);
        assert!(wide.place(-3.0) > 0.0 && wide.place(9.0) < 100.0);
    }

    #[test]
    fn an_axis_of_nothing_is_still_one() {
        assert!(Axis::around(std::iter::empty(), 0.0, 10.0).place(0.5).is_finite());
        assert!(Axis::around([3.0].into_iter(), 0.0, 10.0).place(3.0).is_finite());
    }
}
