//! Which page comes next: the access patterns of pmbench and fio, as draws from a seeded generator.
//!
//! ```text
//!   uniform   every page is as likely as any other
//!   zipf      the page of rank k has a share of 1/k^theta; ranks are strewn over the address range
//!   normal    a bell around the middle of the range; what falls outside is drawn again
//!   linear    every stride-th page, then from one page later, so that all of them are met in the end
//! ```
//!
//! Zipf's ranks are drawn by rejection from an envelope that can be inverted (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", 1996): no table, and any
//! theta above 0.

use std::f64::consts::TAU;

use crate::args::Args;
use crate::report::Failure;
use crate::rng::Rng;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pattern {
    Uniform,
    Zipf { theta: f64 },
    Normal { stddev_pages: f64 },
    Linear { stride_pages: usize },
}

pub const USAGE: &str =
    "[--pattern uniform|zipf|normal|linear] [--theta T] [--stddev PAGES] [--stride PAGES]";
const THETA: f64 = 1.2;

impl Pattern {
    /// Takes `--pattern` and the option that shapes it; a shape of another pattern is left, and so refused in
    /// the end.
    pub fn from_args(args: &mut Args, default: &str, pages: usize) -> Result<Pattern, Failure> {
        let name = args.text("pattern", default);
        let usage = |text: String| Err(Failure::Usage(text));
        match name.as_str() {
            "uniform" | "random" => Ok(Pattern::Uniform),
            "zipf" => match args.number("theta", THETA)? {
                theta if theta > 0.0 && theta <= 10.0 => Ok(Pattern::Zipf { theta }),
                theta => usage(format!("--theta: {theta} is not above 0 and up to 10")),
            },
            "normal" => match args.number("stddev", (pages as f64 / 8.0).max(1.0))? {
                stddev if stddev >= 1.0 && stddev <= pages as f64 => {
                    Ok(Pattern::Normal { stddev_pages: stddev })
                }
                stddev => {
                    usage(format!("--stddev: {stddev} is not from 1 to the {pages} pages that there are"))
                }
            },
            "linear" | "sequential" => match args.number("stride", 1)? {
                stride if (1..=pages).contains(&stride) => Ok(Pattern::Linear { stride_pages: stride }),
                stride => {
                    usage(format!("--stride: {stride} is not from 1 to the {pages} pages that there are"))
                }
            },
            _ => usage(format!("--pattern: '{name}' is not uniform, zipf, normal or linear")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Zipf { .. } => "zipf",
            Pattern::Normal { .. } => "normal",
            Pattern::Linear { .. } => "linear",
        }
    }

    /// The same shape for one of `shares` that divide the pages among them.
    pub fn of_a_share(self, shares: usize) -> Pattern {
        match self {
            Pattern::Normal { stddev_pages } => {
                Pattern::Normal { stddev_pages: stddev_pages / shares as f64 }
            }
            other => other,
        }
    }

    /// Draws among `pages`, which is not 0.
    pub fn sampler(self, pages: usize) -> Sampler {
        match self {
            Pattern::Uniform => Sampler::Uniform { pages },
            Pattern::Zipf { theta } => {
                Sampler::Zipf { ranks: Zipf::new(pages, theta), places: Strewn::new(pages) }
            }
            Pattern::Normal { stddev_pages } => Sampler::Normal { pages, stddev_pages },
            Pattern::Linear { stride_pages } => {
                Sampler::Linear { pages, stride: stride_pages.min(pages), first: 0, next: 0 }
            }
        }
    }
}

pub enum Sampler {
    Uniform { pages: usize },
    Zipf { ranks: Zipf, places: Strewn },
    Normal { pages: usize, stddev_pages: f64 },
    Linear { pages: usize, stride: usize, first: usize, next: usize },
}

impl Sampler {
    pub fn draw(&mut self, rng: &mut Rng) -> usize {
        match self {
            Sampler::Uniform { pages } => rng.below(*pages),
            Sampler::Zipf { ranks, places } => places.place(ranks.draw(rng)),
            Sampler::Normal { pages, stddev_pages } => loop {
                let at = *pages as f64 / 2.0 + gauss(rng) * *stddev_pages;
                if at >= 0.0 && at < *pages as f64 {
                    return at as usize;
                }
            },
            Sampler::Linear { pages, stride, first, next } => {
                let at = *next;
                *next += *stride;
                if *next >= *pages {
                    *first = (*first + 1) % *stride;
                    *next = *first;
                }
                at
            }
        }
    }

    /// Linear from `page` on; nothing to the others.
    pub fn start_at(&mut self, page: usize) {
        if let Sampler::Linear { next, first, stride, .. } = self {
            *next = page;
            *first = page % *stride;
        }
    }
}

/// One draw of a standard normal (Box and Muller).
fn gauss(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt(); // 1 - unit is never 0
    radius * (TAU * rng.unit()).cos()
}

/// Ranks from 0, the first the most frequent.
///
/// `area` is the integral of x^-theta. Rank k owns the stretch of area from k - 1/2 to k + 1/2; a point in it
/// is taken as k unless it lies in the sliver by which the stretch exceeds k's true share.
pub struct Zipf {
    ranks: f64,
    exponent: f64,
    low: f64,
    high: f64,
    sure: f64,
}

impl Zipf {
    pub fn new(ranks: usize, theta: f64) -> Zipf {
        let mut zipf = Zipf { ranks: ranks as f64, exponent: theta, low: 0.0, high: 0.0, sure: 0.0 };
        // The first rank's stretch is cut to its share, so that it is never rejected.
        zipf.low = zipf.area(1.5) - 1.0;
        zipf.high = zipf.area(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.share(2.0));
        zipf
    }

    fn share(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    fn area(&self, x: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 { x.ln() } else { (rest * x.ln()).exp_m1() / rest }
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        if rest.abs() < 1e-9 { area.exp() } else { ((area * rest).max(-1.0).ln_1p() / rest).exp() }
    }

    pub fn draw(&self, rng: &mut Rng) -> usize {
        loop {
            let point = self.low + rng.unit() * (self.high - self.low);
            let x = self.area_inverse(point);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.sure || point >= self.area(rank + 0.5) - self.share(rank) {
                return rank as usize - 1;
            }
        }
    }
}

/// A permutation that puts neighbouring ranks far apart, so that frequent pages share no readahead window:
/// steps of the golden section around the range.
pub struct Strewn {
    pages: usize,
    step: usize,
}

impl Strewn {
    pub fn new(pages: usize) -> Strewn {
        let mut step = (pages as f64 * 0.618_033_988_749_894_8) as usize;
        while gcd(step, pages) != 1 {
            step += 1;
        }
        Strewn { pages, step }
    }

    pub fn place(&self, rank: usize) -> usize {
        ((rank as u128 * self.step as u128) % self.pages as u128) as usize
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 400_000;

    fn counts(pattern: Pattern, pages: usize, seed: u64) -> Vec<usize> {
        let (mut sampler, mut rng) = (pattern.sampler(pages), Rng::new(seed, 0));
        let mut counts = vec![0; pages];
        (0..DRAWS).for_each(|_| counts[sampler.draw(&mut rng)] += 1);
        counts
    }

    /// Pearson's statistic over its degrees of freedom: about 1 where the counts follow `expected`.
    fn misfit(counts: &[usize], expected: impl Fn(usize) -> f64) -> f64 {
        let sum: f64 =
            counts.iter().enumerate().map(|(k, c)| (*c as f64 - expected(k)).powi(2) / expected(k)).sum();
        sum / (counts.len() - 1) as f64
    }

    #[test]
    fn zipf_has_its_frequencies() {
        for (theta, ranks) in [(0.5, 100), (1.0, 100), (1.2, 1000), (2.0, 50), (1.2, 2), (0.99, 1)] {
            let zipf = Zipf::new(ranks, theta);
            let mut rng = Rng::new(7, 7);
            let mut counts = vec![0usize; ranks];
            (0..DRAWS).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
            let whole: f64 = (1..=ranks).map(|k| (k as f64).powf(-theta)).sum();
            let expected = |k: usize| DRAWS as f64 * ((k + 1) as f64).powf(-theta) / whole;
            if ranks == 1 {
                assert_eq!(counts[0], DRAWS);
            } else if ranks == 2 {
                assert!((counts[0] as f64 - expected(0)).abs() < 5.0 * expected(1).sqrt());
            } else {
                // 5 standard deviations of the statistic.
                let bound = 1.0 + 5.0 * (2.0 / (ranks - 1) as f64).sqrt();
                let misfit = misfit(&counts, expected);
                assert!(misfit < bound, "theta {theta}, {ranks} ranks: {misfit} against {bound}");
            }
        }
    }

    #[test]
    fn zipf_reaches_the_last_of_many_ranks() {
        let zipf = Zipf::new(1 << 30, 0.1);
        let mut rng = Rng::new(1, 1);
        let largest = (0..10_000).map(|_| zipf.draw(&mut rng)).max().unwrap();
        assert!(largest < 1 << 30 && largest > (1 << 30) / 10 * 9, "{largest}");
    }

    #[test]
    fn uniform_is_flat() {
        let misfit = misfit(&counts(Pattern::Uniform, 500, 3), |_| DRAWS as f64 / 500.0);
        assert!(misfit < 1.0 + 5.0 * (2.0f64 / 499.0).sqrt(), "{misfit}");
    }

    #[test]
    fn normal_has_its_deviation() {
        let counts = counts(Pattern::Normal { stddev_pages: 50.0 }, 1000, 5);
        let mean = counts.iter().enumerate().map(|(at, c)| (at as f64 + 0.5) * *c as f64).sum::<f64>()
            / DRAWS as f64;
        let variance = counts
            .iter()
            .enumerate()
            .map(|(at, c)| (at as f64 + 0.5 - mean).powi(2) * *c as f64)
            .sum::<f64>()
            / DRAWS as f64;
        assert!((mean - 500.0).abs() < 0.5, "{mean}");
        assert!((variance.sqrt() - 50.0).abs() < 0.5, "{}", variance.sqrt());
    }

    #[test]
    fn linear_meets_every_page_once_a_round() {
        for (pages, stride) in [(10, 1), (10, 3), (7, 7), (12, 5)] {
            let (mut sampler, mut rng) =
                (Pattern::Linear { stride_pages: stride }.sampler(pages), Rng::new(1, 0));
            let drawn: Vec<usize> = (0..2 * pages).map(|_| sampler.draw(&mut rng)).collect();
            assert_eq!(drawn[..pages], drawn[pages..], "{pages} by {stride}");
            assert_eq!(drawn[1] - drawn[0], if stride < pages { stride } else { 1 });
            let mut sorted = drawn[..pages].to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..pages).collect::<Vec<_>>(), "{pages} by {stride}");
        }
    }

    #[test]
    fn the_seed_decides() {
        for pattern in
            [Pattern::Uniform, Pattern::Zipf { theta: 1.2 }, Pattern::Normal { stddev_pages: 20.0 }]
        {
            assert_eq!(counts(pattern, 300, 9), counts(pattern, 300, 9), "{pattern:?}");
            assert_ne!(counts(pattern, 300, 9), counts(pattern, 300, 10), "{pattern:?}");
        }
    }

    #[test]
    fn ranks_are_strewn_over_all_pages() {
        for pages in [1usize, 2, 3, 6, 100, 1023, 65536] {
            let places = Strewn::new(pages);
            let mut met = vec![false; pages];
            (0..pages).for_each(|rank| met[places.place(rank)] = true);
            assert!(met.iter().all(|m| *m), "{pages}");
        }
        let places = Strewn::new(65536);
        assert!((0..100).all(|rank| places.place(rank).abs_diff(places.place(rank + 1)) > 1000));
    }

    #[test]
    fn options() {
        let take = |words: &str| {
            let mut args = Args::parse(words.split_whitespace().map(String::from)).ok().unwrap();
            let pattern = Pattern::from_args(&mut args, "uniform", 800).map_err(|e| e.to_string())?;
            args.finish().map_err(|e| e.to_string()).map(|()| pattern)
        };
        assert_eq!(take(""), Ok(Pattern::Uniform));
        assert_eq!(take("--pattern zipf"), Ok(Pattern::Zipf { theta: 1.2 }));
        assert_eq!(take("--pattern normal"), Ok(Pattern::Normal { stddev_pages: 100.0 }));
        assert_eq!(take("--pattern linear --stride 23"), Ok(Pattern::Linear { stride_pages: 23 }));
        for (words, reason) in [
            ("--pattern zipf --theta 0", "--theta: 0 is not above 0"),
            ("--pattern zipf --theta NaN", "--theta: NaN"),
            ("--pattern normal --stddev 801", "the 800 pages"),
            ("--pattern linear --stride 0", "--stride: 0"),
            ("--pattern pareto", "not uniform, zipf, normal or linear"),
            ("--theta 1", "unknown option --theta"),
        ] {
            let refusal = take(words).unwrap_err();
            assert!(refusal.contains(reason), "{words}: {refusal}");
        }
    }
}
