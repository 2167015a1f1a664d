//! Which group a process belongs to.
//!
//! ```text
//!   a program starts (exec):   the first rule whose pattern its name matches
//!                              else the group that this process was in before its exec
//!                              else the group of its parent
//!   a fork:                    the group of the parent
//! ```
//!
//! A process stays in its group until its next exec: its pages are charged there, and with the address space
//! they go. Without rules everybody is in the root, and nothing is looked up.
//!
//! What it does not do: limits (engine's `group.rs`), reclaim (`reclaim/evict.rs`).

use crate::process::Process;
use memspill_engine::engine::Engine;
use memspill_engine::group::{self, Group, GroupConfig};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Processes that are remembered before those that have ended are looked for.
const REMEMBERED_MAX: usize = 1024;

/// The groups below the budget, and who belongs to them.
#[derive(Clone, Default, Debug)]
pub struct GroupRules {
    /// Below the root; a parent's place counts from the root, which is 0.
    pub groups: Vec<GroupConfig>,
    /// (pattern, place of the group).
    pub names: Vec<(String, usize)>,
}

#[derive(Default)]
pub struct Membership {
    names: Vec<(String, usize)>,
    /// The group of each process, by pid: what its next program, and its children, come from.
    of_pid: Mutex<HashMap<u32, usize>>,
}

impl Membership {
    pub fn new(rules: &GroupRules) -> Membership {
        Membership { names: rules.names.clone(), of_pid: Mutex::default() }
    }

    /// The group of a program that has just started in process `pid`.
    pub fn of_program(&self, engine: &Engine, pid: u32) -> Option<Arc<Group>> {
        let groups = engine.groups().all();
        if groups.len() == 1 {
            return None;
        }
        let name = crate::proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
        let by_name = self.names.iter().find(|(pattern, _)| matches(pattern, name.trim_end()));
        let mut of_pid = self.of_pid.lock().expect("groups of pids");
        let place = by_name
            .map(|(_, place)| *place)
            .or_else(|| of_pid.get(&pid).copied())
            .or_else(|| crate::proc::parent_of(pid).and_then(|parent| of_pid.get(&parent).copied()))
            .unwrap_or(0);
        if of_pid.len() > REMEMBERED_MAX {
            of_pid.retain(|pid, _| std::path::Path::new(&format!("/proc/{pid}")).exists());
        }
        of_pid.insert(pid, place);
        Some(groups[place].clone())
    }

    /// The child of a fork is known by its pid now.
    pub fn joined(&self, engine: &Engine, process: &Process) {
        if engine.groups().all().len() > 1 {
            let group = process.space.group(engine.swap()).id;
            let place = engine.groups().all().iter().position(|other| other.id == group);
            self.of_pid.lock().expect("groups of pids").insert(process.memory.pid(), place.unwrap_or(0));
        }
    }
}

/// The kernel cuts names to 15 bytes, and so is a pattern without `*`.
pub fn matches(pattern: &str, comm: &str) -> bool {
    const COMM_LEN: usize = 15;
    let pattern = pattern.as_bytes();
    let cut = if pattern.contains(&b'*') { pattern.len() } else { pattern.len().min(COMM_LEN) };
    group::matches(&pattern[..cut], comm.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name) in
            [("cc1*", "cc1plus"), ("*", ""), ("py?hon3", "python3"), ("ld", "ld"), ("a*b*c", "aXbYbZc")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("cc1", "cc1plus"), ("?", ""), ("a*b", "abc"), ("", "x")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("a-very-long-program-name", "a-very-long-pro"), "the kernel cuts names");
    }
}
