//! The room of freed folios serves new ones, round after round; with the seed's rule (empty clusters only) it does not.

#[path = "../examples/mechanisms/fragmentation.rs"]
#[allow(dead_code, reason = "the example counts more than is asserted here")]
mod fragmentation;

use fragmentation::{ROUNDS, fallback_percent};

#[test]
fn no_folio_is_split_in_100_rounds() {
    assert_eq!(fallback_percent("all"), vec![0.0; ROUNDS]);
}

#[test]
fn with_empty_clusters_only_most_folios_are_split_before_long() {
    let percent = fallback_percent("free-cluster-only");
    let mean = |rounds: &[f64]| rounds.iter().sum::<f64>() / rounds.len() as f64;
    let (first, last) = (percent[0], mean(&percent[ROUNDS - 10..]));
    println!("split: {first:.1} % in the first round, {last:.1} % in the last ten");
    assert!(first < last && last > 50.0, "{percent:?}");
}
