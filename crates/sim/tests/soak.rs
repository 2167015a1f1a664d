//! A short soak, and that it goes where it is meant to go. The long ones are `memspill-lab sim soak`.

use memspill_sim::soak::{self, Coverage};

#[test]
fn histories_end_well_and_meet_trouble() {
    let mut coverage = Coverage::new();
    (1..=100).for_each(|seed| soak::history(seed, &mut coverage));
    let met = [
        "pswpin",
        "pswpout",
        "swpout_zero",
        "swap_cache_hit",
        "swap_cache_miss",
        "swap_cache_bypass",
        "swap_ra",
        "swap_ra_hit",
        "take_retry",
        "allocstall",
        "fill_again",
        "fill_cancelled",
        "read_errors",
        "read_again",
        "write_errors",
        "swap_full",
        "workingset_refault",
        "forks",
        "swapoffs",
        "swapoff_moved",
        "discarded_clusters",
        "shared_objects",
        "shared_accesses",
        "shared_holes",
    ];
    let never: Vec<_> = met.iter().filter(|name| coverage[**name] == 0).collect();
    assert!(never.is_empty(), "no history has met {never:?}: {coverage:?}");
}

#[test]
fn a_seed_repeats_its_history() {
    let history = |seed| {
        let mut coverage = Coverage::new();
        soak::history(seed, &mut coverage);
        coverage
    };
    assert_eq!(history(3), history(3));
    assert_ne!(history(3), history(4));
}
