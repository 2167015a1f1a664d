//! Log-linear histogram of nanoseconds: 32 buckets to each power of two, so a bucket is at most 3 % wide.
//!
//! Our own, because it crosses a pipe as bytes of one length, and takes its memory before anything is timed.

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

pub struct Histogram {
    counts: Vec<u64>,
}

fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros() - SUB_BITS;
    (octave as usize + 1) * SUB + ((value >> octave) as usize - SUB)
}

fn middle(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let octave = bucket / SUB - 1;
    let low = ((bucket % SUB + SUB) as u64) << octave;
    low + ((1u64 << octave) >> 1)
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS] }
    }
}

impl Histogram {
    /// Length of `to_bytes`.
    pub const BYTES: usize = BUCKETS * 8;

    /// The histogram of the bytes that children have sent, all of them whole.
    pub fn sum<B: AsRef<[u8]>>(answers: impl IntoIterator<Item = B>) -> Histogram {
        let mut total = Histogram::default();
        for answer in answers {
            total.merge(&Histogram::from_bytes(answer.as_ref()).unwrap_or_default());
        }
        total
    }

    pub fn add(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
    }

    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value below which `percent` of the samples lie, to the width of a bucket.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (self.total() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(index);
            }
        }
        0
    }

    /// To bytes and back, for children that report through a pipe.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Histogram> {
        if bytes.len() != Histogram::BYTES {
            return None;
        }
        let counts =
            bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default())).collect();
        Some(Histogram { counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_bucket() {
        let mut h = Histogram::default();
        (1..=100_000u64).for_each(|v| h.add(v));
        for percent in [1.0, 50.0, 90.0, 99.0, 99.9] {
            let exact = 1000.0 * percent;
            let got = h.percentile(percent) as f64;
            assert!((got - exact).abs() / exact < 0.04, "p{percent}: {got} for {exact}");
        }
        h.add(u64::MAX);
        h.add(0);
        let again = Histogram::from_bytes(&h.to_bytes()).unwrap();
        assert_eq!(again.total(), h.total());
        assert_eq!(again.percentile(50.0), h.percentile(50.0));
    }

    #[test]
    fn buckets_do_not_overlap() {
        for bits in 0..64 {
            let v = 1u64 << bits;
            assert!(bucket(v) > bucket(v - 1) || v <= SUB as u64 && bucket(v) == bucket(v - 1) + 1, "{v}");
            assert_eq!(bucket(middle(bucket(v))), bucket(v));
        }
    }
}
