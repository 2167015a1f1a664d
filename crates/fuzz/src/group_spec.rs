//! `--group SPEC` (`crates/cli/src/groups.rs`) and the patterns in it (`crates/pager/src/door/groups.rs`).
//!
//! An input is lines: the name of a program, then a SPEC each.

use crate::{RAM_BYTES, assert_one_line};
use memspill_cli::groups::{GroupError, GroupSpec, rules};
use memspill_engine::group::GROUPS_MAX;
use memspill_pager::door::groups::{GroupRules, matches};

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (name, specs) = text.split_once('\n').unwrap_or((text, ""));
    let specs: Result<Vec<GroupSpec>, GroupError> =
        specs.split('\n').filter(|l| !l.is_empty()).map(str::parse).collect();
    match specs {
        Ok(specs) => match rules(&specs, RAM_BYTES) {
            Ok(rules) => accepted(specs.len(), &rules, name),
            Err(error) => assert_one_line(&error),
        },
        Err(error) => assert_one_line(&error.to_string()),
    }
}

fn accepted(specs: usize, rules: &GroupRules, program: &str) {
    assert!(rules.groups.len() == specs && specs < GROUPS_MAX);
    for (n, group) in rules.groups.iter().enumerate() {
        // Its own place is n + 1.
        assert!(
            group.parent.is_some_and(|parent| parent <= n),
            "a parent comes before its children: {rules:?}"
        );
        assert!(group.max_bytes >= 4 << 20, "{rules:?}");
        assert!(
            !group.name.is_empty() && !rules.groups[..n].iter().any(|other| other.name == group.name),
            "{rules:?}"
        );
    }
    // As the kernel shows it.
    let mut program = program.to_string();
    program.truncate(program.floor_char_boundary(15));
    for (pattern, place) in &rules.names {
        assert!(!pattern.is_empty() && (1..=specs).contains(place), "{rules:?}");
        let meant = matches(pattern, &program);
        assert_eq!(meant, matches_by_table(pattern, &program), "{pattern:?} and {program:?}");
    }
}

/// Whether a pattern means a name, by a table of all pairs of beginnings.
fn matches_by_table(pattern: &str, name: &str) -> bool {
    let (mut pattern, name) = (pattern.as_bytes(), name.as_bytes());
    if !pattern.contains(&b'*') {
        pattern = &pattern[..pattern.len().min(15)];
    }
    // fits[at]: what was looked at of the pattern means the first `at` bytes of the name.
    let mut fits = vec![false; name.len() + 1];
    fits[0] = true;
    for byte in pattern {
        if *byte == b'*' {
            for at in 1..fits.len() {
                fits[at] |= fits[at - 1];
            }
        } else {
            for at in (1..fits.len()).rev() {
                fits[at] = fits[at - 1] && (*byte == b'?' || *byte == name[at - 1]);
            }
            fits[0] = false;
        }
    }
    fits[name.len()]
}
