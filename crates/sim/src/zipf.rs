//! Pages of which few are hot: page of rank k is drawn in proportion to 1 / k^1.2, as `fio` does for
//! `zipf:1.2`, and ranks are spread over the pages as it does, so that hot pages are not neighbours.
//!
//! Only additions, multiplications, divisions and comparisons, which every machine rounds alike: the standard
//! library's powers may differ in the last bit between machines, and the simulator prints the same bytes on
//! all of them.

use memspill_vcpu::random::Random;

pub struct Zipf {
    /// Weight of all ranks up to this one.
    up_to: Vec<f64>,
}

impl Zipf {
    pub fn new(pages: u64) -> Zipf {
        let mut sum = 0.0;
        let up_to = (1..=pages).map(|rank| {
            sum += weight(rank as f64);
            sum
        });
        Zipf { up_to: up_to.collect() }
    }

    pub fn page(&self, random: &mut Random) -> u64 {
        // The upper 53 bits are a number below 1 in steps that a double has.
        let draw = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let all = *self.up_to.last().expect("there are pages");
        let rank = self.up_to.partition_point(|sum| *sum <= draw * all);
        Random::new(rank as u64).below(self.up_to.len() as u64)
    }
}

/// k^-1.2, the fifth root by Newton's method.
fn weight(rank: f64) -> f64 {
    let mut root = rank;
    for _ in 0..100 {
        let fourth = root * root * root * root;
        let next = (4.0 * root + rank / fourth) / 5.0;
        if next >= root {
            break;
        }
        root = next;
    }
    1.0 / (rank * root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_exponent() {
        for rank in [1.0, 2.0, 3.0, 17.0, 1000.0, 1e6] {
            assert!((weight(rank) * rank.powf(1.2) - 1.0).abs() < 1e-12, "{rank}");
        }
    }

    #[test]
    fn few_pages_are_hot_and_they_are_apart() {
        let (zipf, mut random) = (Zipf::new(2048), Random::new(1));
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
