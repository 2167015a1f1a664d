//! Files of shared memory (`--shared=all`): who uses them, and whether they may be managed.
//!
//! A file may be managed as long as all who have it open or mapped tell of the calls that they make on it.
//! That is looked up for all processes that there are, before a file is managed and about once a second
//! afterwards:
//!
//! ```text
//!   has it mapped       registered, shared; not privately, and nobody outside of the run
//!   has it open         has an agent, and no seccomp filter of its own; nobody outside of the run
//!   who is new          may be about to join: he is looked at again after 100 ms
//! ```
//!
//! A process outside that has more privileges than memspill cannot be looked at. Files that it opens by a
//! name are seen.
//!
//! A file that is found too late is given back. Writes until then show in the object itself: a page where one
//! is swapped out, or another length. Then the run ends. A read by such a process does not show, nor a hole
//! that it has made.

use crate::faults::files::give_back_soon;
use crate::proc::{self, SharedMaps};
use crate::process::Process;
use crate::reclaim::give_back::drop_unread;
use crate::run::Run;
use crate::run::files::tells_of_calls;
use crate::shared::Object;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::shmem::Id;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const OUTSIDE: &str = "a process outside of the run has it open or mapped";
const UNTOLD: &str = "a process of the run has it open or mapped that does not tell of its calls";
const PRIVATE: &str = "a process has a private mapping of it";

/// A process of the run, as a look at all has found it.
pub struct SeenProcess<'a> {
    pub pid: u32,
    pub maps: Option<&'a SharedMaps>,
    pub process: Option<&'a Arc<Process>>,
    /// The child of a vfork, with its parent's memory.
    pub is_twin: bool,
}

/// What a look has found of some files.
#[derive(Default)]
pub struct Uses {
    /// Why they cannot be managed.
    pub against: HashMap<Id, &'static str>,
    /// Processes that do not tell of their calls yet, and have one open or mapped.
    pub new: Vec<(u32, Id)>,
    /// Somebody has them open.
    open: HashSet<Id>,
}

/// Look at all processes. None: one of the run may not be looked at. (One outside that may not be is taken
/// for one that uses none of the files.)
pub fn look(run: &Run, seen: &[SeenProcess<'_>], ids: &[Id]) -> Option<Uses> {
    let mut uses = Uses::default();
    let ours = [std::process::id(), run.files.guardian];
    let inside: HashMap<u32, &SeenProcess<'_>> = seen.iter().map(|seen| (seen.pid, seen)).collect();
    let below: HashSet<u32> = proc::descendants(std::process::id()).into_iter().collect();
    for pid in proc::all_processes().into_iter().filter(|pid| !ours.contains(pid)) {
        let open = match proc::open_among(pid, ids) {
            Some(open) => open,
            None if below.contains(&pid) && !proc::has_ended(pid) => return None,
            None => continue,
        };
        uses.open.extend(&open);
        match inside.get(&pid) {
            Some(seen) => {
                let private = match seen.maps {
                    Some(maps) => maps.private.clone(),
                    None => proc::shared_maps_of_any_thread(pid).unwrap_or_default().private,
                };
                let mapped = private.into_iter().filter(|id| ids.contains(id));
                uses.against.extend(mapped.map(|id| (id, PRIVATE)));
                let tells = seen.process.is_some_and(|process| tells_of_calls(process));
                if !tells && !seen.is_twin {
                    uses.new.extend(open.iter().map(|id| (pid, *id)));
                }
            }
            // It has come since.
            None if below.contains(&pid) => uses.new.extend(open.iter().map(|id| (pid, *id))),
            None => {
                let maps = proc::shared_maps(pid).unwrap_or_default();
                let mapped = maps.mappings.iter().map(|m| m.object).chain(maps.private);
                let used: Vec<Id> = mapped.filter(|id| ids.contains(id)).chain(open).collect();
                uses.against.extend(used.into_iter().map(|id| (id, OUTSIDE)));
            }
        }
    }
    Some(uses)
}

/// Managed files: is one used as it must not be? `before`: who was new at the last look. Returns who is now.
pub fn check(run: &Arc<Run>, files: &[Arc<Object>], uses: &Uses, before: &[(u32, Id)]) -> Vec<(u32, Id)> {
    for object in files {
        let id = object.id();
        let untold = || uses.new.iter().any(|new| new.1 == id && before.contains(new)).then_some(UNTOLD);
        if let Some(why) = uses.against.get(&id).copied().or_else(untold) {
            give_back_soon(run, object.clone(), why);
            continue;
        }
        look_for_traces(object);
        let file = &object.memory.mapped.object;
        let may_be_read =
            || uses.open.contains(&id) || file.has_name().unwrap_or(true) || file.is_held_by_others();
        if run.mappers(object.key).is_empty() && !may_be_read() {
            drop_unread(run, object);
        }
    }
    uses.new.clone()
}

/// Has somebody used it whom we have not seen?
fn look_for_traces(object: &Object) {
    let memory = &object.memory;
    if !memory.mapped.object.has_its_length() && !object.is_given_back() {
        memory.note_breach("its length was changed by a call that memspill has not seen");
    }
    let resident_bytes = object.space.resident_pages() * PAGE_SIZE as u64;
    if memory.mapped.object.resident_bytes().is_ok_and(|bytes| bytes > resident_bytes) {
        let _held = object.hold_pages();
        memory.look_for_intruders(&object.space);
    }
}
