//! Axes: from a value to a place, and where the ticks are. Logarithmic, since what is compared are ratios.
//!
//! Logarithms may differ in their last bit between machines; places are printed in tenths of a pixel, which
//! hides it.

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

#[cfg(test)]
mod tests {
    use super::*;

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
