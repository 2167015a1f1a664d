//! `--group SPEC`: memory groups below the budget.
//!
//! ```text
//! NAME,comm=PATTERN[,comm=PATTERN...][,memory.max=SIZE][,memory.high=SIZE][,swap.max=SIZE][,swap=DEVICE...]
//!     [,parent=NAME]
//! ```
//!
//! Names of limits as in cgroup v2; a percentage is a share of the budget. A parent is named before its
//! children. `pager/src/door/groups.rs` says which process belongs where.

use std::fmt;
use std::str::FromStr;

use crate::size::{Size, SizeError};
use memspill_engine::group::{GROUPS_MAX, GroupConfig, matches};
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::door::groups::GroupRules;

/// One group as asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupSpec {
    name: String,
    parent: Option<String>,
    patterns: Vec<String>,
    max: Option<Size>,
    high: Option<Size>,
    swap_max: Option<Size>,
    swap_devices: Vec<String>,
}

/// Why a text is not a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupError {
    Name(String),
    Form(String),
    Key(String),
    Twice(String),
    Size(String, SizeError),
    NoProcess(String),
}

impl fmt::Display for GroupError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KEYS: &str =
            "comm=PATTERN, memory.max=SIZE, memory.high=SIZE, swap.max=SIZE, swap=DEVICE or parent=NAME";
        match self {
            GroupError::Name(name) => {
                write!(
                    out,
                    "{name:?} is no name for a group: begin with one of letters, digits, - _ and ., such as \
                     --group cc,comm=cc1*,memory.max=1G"
                )
            }
            GroupError::Form(part) => write!(out, "{part:?} is no option: use {KEYS} after a comma"),
            GroupError::Key(key) => write!(out, "unknown option {key:?}: use {KEYS}"),
            GroupError::Twice(key) => write!(out, "{key}= is given twice"),
            GroupError::Size(text, error) => write!(out, "{}: {error}", text.escape_debug()),
            GroupError::NoProcess(name) => {
                write!(
                    out,
                    "no process would ever be in group {name}: add comm=PATTERN, a program's name with * and \
                     ?"
                )
            }
        }
    }
}

impl std::error::Error for GroupError {}

impl FromStr for GroupSpec {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<GroupSpec, GroupError> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(GroupError::Name(name.to_owned()));
        }
        let mut spec = GroupSpec { name: name.to_owned(), ..GroupSpec::default() };
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .filter(|(_, v)| !v.is_empty())
                .ok_or_else(|| GroupError::Form(part.to_owned()))?;
            spec.set(key, value)?;
        }
        Ok(spec)
    }
}

impl GroupSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), GroupError> {
        let size = match key {
            "comm" => {
                self.patterns.push(value.to_owned());
                return Ok(());
            }
            "swap" => {
                self.swap_devices.push(value.to_owned());
                return Ok(());
            }
            "parent" => {
                return match self.parent.replace(value.to_owned()) {
                    None => Ok(()),
                    Some(_) => Err(GroupError::Twice(key.to_owned())),
                };
            }
            "memory.max" => &mut self.max,
            "memory.high" => &mut self.high,
            "swap.max" => &mut self.swap_max,
            _ => return Err(GroupError::Key(key.to_owned())),
        };
        let parsed = value.parse().map_err(|error| GroupError::Size(format!("{key}={value}"), error))?;
        match size.replace(parsed) {
            None => Ok(()),
            Some(_) => Err(GroupError::Twice(key.to_owned())),
        }
    }
}

/// The groups of a run, with their sizes in bytes; `budget_bytes` is what 100% means.
pub fn rules(specs: &[GroupSpec], budget_bytes: u64) -> Result<GroupRules, String> {
    if specs.len() >= GROUPS_MAX {
        return Err(format!("--group: at most {} groups", GROUPS_MAX - 1));
    }
    let mut rules = GroupRules::default();
    for (n, spec) in specs.iter().enumerate() {
        let name = &spec.name;
        let place_of =
            |name: &String| specs[..n].iter().position(|other| other.name == *name).map(|at| at + 1);
        if place_of(name).is_some() {
            return Err(format!("--group {name}: there are two groups of that name"));
        }
        let parent = match &spec.parent {
            None => 0,
            Some(parent) => place_of(parent).ok_or_else(|| {
                format!("--group {name}: its parent {parent:?} must be named by a --group before it")
            })?,
        };
        let has_children = specs[n + 1..].iter().any(|other| other.parent.as_ref() == Some(name));
        if spec.patterns.is_empty() && !has_children {
            return Err(format!("--group: {}", GroupError::NoProcess(name.clone())));
        }
        let bytes = |size: Option<Size>| size.and_then(|size| size.resolve(budget_bytes)).unwrap_or(u64::MAX);
        let max_bytes = bytes(spec.max);
        if max_bytes < GROUP_LEAST_BYTES {
            let least = crate::size::human(GROUP_LEAST_BYTES);
            return Err(format!("--group {name}: memory.max is too small: at least {least} are needed"));
        }
        rules.groups.push(GroupConfig {
            name: name.clone(),
            parent: Some(parent),
            max_bytes,
            high_bytes: bytes(spec.high),
            swap_max_pages: match bytes(spec.swap_max) {
                u64::MAX => u64::MAX,
                bytes => bytes / PAGE_SIZE as u64,
            },
            swap_devices: spec.swap_devices.clone(),
        });
        rules.names.extend(spec.patterns.iter().map(|pattern| (pattern.clone(), n + 1)));
    }
    Ok(rules)
}

/// Each of the groups has a device that it may swap to, of those with these names.
pub fn check_devices(groups: &[GroupConfig], devices: &[&str]) -> Result<(), String> {
    for group in groups {
        let names_none =
            |pattern: &&String| !devices.iter().any(|device| matches(pattern.as_bytes(), device.as_bytes()));
        if let Some(pattern) = group.swap_devices.iter().find(names_none) {
            let (name, there) = (&group.name, devices.join(", "));
            return Err(format!("--group {name}: swap={pattern} names no swap device: there is {there}"));
        }
    }
    Ok(())
}

/// Least maximum with which a program gets anywhere: some batches of pages.
const GROUP_LEAST_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GroupSpec, String> {
        text.parse::<GroupSpec>().map_err(|e| e.to_string())
    }

    #[test]
    fn groups_are_read_as_typed() {
        let specs = ["all,memory.high=50%", "cc,comm=cc1*,comm=ld,memory.max=64M,swap.max=1G,parent=all"]
            .map(|t| parse(t).unwrap());
        let rules = rules(&specs, 200 << 20).unwrap();
        assert_eq!(rules.groups[0].high_bytes, 100 << 20);
        assert_eq!((rules.groups[0].parent, rules.groups[0].max_bytes), (Some(0), u64::MAX));
        assert_eq!((rules.groups[1].parent, rules.groups[1].max_bytes), (Some(1), 64 << 20));
        assert_eq!(rules.groups[1].swap_max_pages, 1 << 18);
        assert_eq!(rules.names, [("cc1*".to_string(), 2), ("ld".to_string(), 2)]);
    }

    #[test]
    fn a_group_names_devices_that_are_there() {
        let specs = [parse("a,comm=x,swap=file:*,swap=ram:").unwrap()];
        let groups = rules(&specs, 1 << 30).unwrap().groups;
        assert_eq!(groups[0].swap_devices, ["file:*", "ram:"]);
        assert_eq!(check_devices(&groups, &["ram:", "file:/a"]), Ok(()));
        let missing = check_devices(&groups, &["ram:", "nbd://h/a"]).unwrap_err();
        assert_eq!(missing, "--group a: swap=file:* names no swap device: there is ram:, nbd://h/a");
    }

    #[test]
    fn errors_say_what_would_be_right() {
        assert!(parse("").unwrap_err().contains("such as --group cc,comm="));
        assert!(parse("a b").unwrap_err().contains("no name for a group"));
        assert!(parse("a,comm").unwrap_err().contains("comm=PATTERN"));
        assert!(parse("a,max=3").unwrap_err().contains("unknown option"));
        assert!(parse("a,memory.max=3x").unwrap_err().contains("memory.max=3x"));
        assert!(parse("a,memory.max=3M,memory.max=3M").unwrap_err().contains("twice"));
        let fails = |texts: &[&str]| {
            rules(&texts.iter().map(|t| parse(t).unwrap()).collect::<Vec<_>>(), 1 << 30).unwrap_err()
        };
        assert!(fails(&["a"]).contains("comm=PATTERN"));
        assert!(fails(&["a,comm=x,parent=b", "b,comm=y"]).contains("before it"));
        assert!(fails(&["a,comm=x", "a,comm=y"]).contains("two groups"));
        assert!(fails(&["a,comm=x,memory.max=1M"]).contains("too small"));
    }
}
