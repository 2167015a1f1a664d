//! Every target does what it should with the inputs that are kept for it; so no target rots between fuzzing
//! runs.

use std::fs;
use std::path::PathBuf;

fn fuzz_dir(below: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz")).join(below)
}

#[test]
fn seeds_hold() {
    for (name, check) in memspill_fuzz::TARGETS {
        let mut seeds: Vec<PathBuf> = fs::read_dir(fuzz_dir("seeds").join(name))
            .expect(name)
            .map(|entry| entry.unwrap().path())
            .collect();
        seeds.sort();
        assert!(seeds.len() >= 3, "{name} has too few seeds to show anything");
        for seed in seeds {
            // The name of a seed that fails stands above the panic.
            println!("{}", seed.display());
            check(&fs::read(seed).unwrap());
        }
        check(b"");
    }
}

#[test]
fn the_fuzzer_has_the_same_targets() {
    let manifest = fs::read_to_string(fuzz_dir("Cargo.toml")).unwrap();
    for (name, _) in memspill_fuzz::TARGETS {
        let program = fs::read_to_string(fuzz_dir("fuzz_targets").join(format!("{name}.rs"))).expect(name);
        assert!(program.contains(&format!("memspill_fuzz::{name}::check")), "{program}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    let programs = fs::read_dir(fuzz_dir("fuzz_targets")).unwrap().count();
    assert_eq!(programs, memspill_fuzz::TARGETS.len(), "a program without a target");
}
