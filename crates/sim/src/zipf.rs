//! Pages of which few are hot: page of rank k is drawn in proportion to k^-theta, as `fio` does for
//! `zipf:1.2`, and ranks are spread over the pages as it does, so that hot pages are not neighbours.
//!
//! Only additions, multiplications, divisions and comparisons, which every machine rounds alike: the standard
//! library's powers may differ in the last bit between machines, and the simulator prints the same bytes on
//! all of them.

use memspill_vcpu::random::Random;

/// Theta, in fifths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exponent(pub u32);

/// 1.2
pub const SIX_FIFTHS: Exponent = Exponent(6);

pub struct Zipf {
    /// Weight of all ranks up to this one.
    up_to: Vec<f64>,
}

impl Zipf {
    pub fn new(pages: u64, exponent: Exponent) -> Zipf {
        let mut sum = 0.0;
        let up_to = (1..=pages).map(|rank| {
            sum += weight(rank as f64, exponent);
            sum
        });
        Zipf { up_to: up_to.collect() }
    }

    pub fn page(&self, random: &mut Random) -> u64 {
        Random::new(self.rank(random) as u64).below(self.up_to.len() as u64)
    }

    /// From 0, the first the most frequent.
    pub fn rank(&self, random: &mut Random) -> usize {
        // The upper 53 bits are a number below 1 in steps that a double has.
        let draw = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let all = *self.up_to.last().expect("there are pages");
        self.up_to.partition_point(|sum| *sum <= draw * all)
    }
}

/// k^-theta, the fifth root by Newton's method.
fn weight(rank: f64, exponent: Exponent) -> f64 {
    let mut root = rank;
    for _ in 0..100 {
        let fourth = root * root * root * root;
        let next = (4.0 * root + rank / fourth) / 5.0;
        if next >= root {
            break;
        }
        root = next;
    }
    // For 1.2 in the order in which it always was: the last bit of results hangs on it.
    match exponent.0 {
        6 => 1.0 / (rank * root),
        fifths => (0..fifths).fold(1.0, |weight, _| weight / root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_exponent() {
        for (exponent, theta) in [(Exponent(4), 0.8), (Exponent(5), 1.0), (SIX_FIFTHS, 1.2)] {
            for rank in [1.0, 2.0, 3.0, 17.0, 1000.0, 1e6] {
                let product = weight(rank, exponent) * f64::powf(rank, theta);
                assert!((product - 1.0).abs() < 1e-12, "{rank}, {theta}");
            }
        }
    }

    #[test]
    fn few_pages_are_hot_and_they_are_apart() {
        let (zipf, mut random) = (Zipf::new(2048, SIX_FIFTHS), Random::new(1));
        let mut hits = vec![0u32; 2048];
        (0..100_000).for_each(|_| hits[zipf.page(&mut random) as usize] += 1);
        let mut order: Vec<usize> = (0..2048).collect();
        order.sort_by_key(|page| std::cmp::Reverse(hits[*page]));
        let hottest: u32 = order[..205].iter().map(|page| hits[*page]).sum();
        assert!((80_000..90_000).contains(&hottest), "a tenth of the pages has {hottest} of 100000 accesses");
        let neighbours = order[..20].iter().filter(|page| order[..20].contains(&(**page + 1))).count();
        assert!(neighbours < 3, "{neighbours} of the 20 hottest pages stand before another one");
    }
}
