//! A fixed amount of computation on little memory: what a program pays when nothing is swapped.

use crate::args::Args;
use crate::report::{Failure, Meter, Outcome};
use crate::rng::mix;

pub const USAGE: &str = "[--seconds-worth N]   (one unit is about a second on a 2.6 GHz core)";

const UNIT: u64 = 285_000_000;
const TABLE: usize = 1 << 19;

pub fn run(args: &mut Args) -> Outcome {
    args.common()?;
    let units: u64 = args.number("seconds-worth", 3)?;
    args.finish()?;
    let mut table: Vec<u64> = (0..TABLE as u64).map(mix).collect();
    let start: u64 = table.iter().fold(0, |sum, word| sum ^ word);
    let meter = Meter::start();
    let mut x = 1u64;
    for step in 0..units * UNIT {
        let slot = x as usize % TABLE;
        x = mix(x ^ step);
        // Two words change by the same amount, so the sum over the table stays what it was.
        table[slot] ^= x;
        table[(slot + 1) % TABLE] ^= x;
    }
    let mut report = meter.report();
    if table.iter().fold(0, |sum, word| sum ^ word) != start {
        return Err(Failure::Bad("the table's sum is wrong".into()));
    }
    report.rate("ops", units * UNIT);
    Ok(report)
}
