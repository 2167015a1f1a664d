//! What the threads share about files of shared memory (`--shared=all`): memfds, and files of tmpfs.
//!
//! ```text
//!   watch     who opens a managed file waits (fanotify)                    faults/files.rs  
//!   held      what the guardian needs to know                              swapped_files.rs
//!   filter    what agents need to know: which files may be managed         process/control.rs
//!   pauses    what was given back is not managed again at once             reclaim/give_back.rs
//! ```

use crate::process::Process;
use crate::process::control::ControlPage;
use crate::swapped_files::{Hold, SwappedFiles};
use crate::times::{FILE_AGAIN, FILE_CALLS};
use memspill_common::protocol::{FILTER_WORDS, file_bit};
use memspill_uffd::fanotify::Watch;
use memspill_uffd::shmem::{self, Id};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After so many times it is not managed any more.
const TIMES_MAX: u32 = 8;

/// None of them is managed unless `watch` is there.
pub struct Files {
    pub watch: Option<Arc<Watch>>,
    held: Arc<SwappedFiles>,
    /// The guardian has all our files open.
    pub guardian: u32,
    /// Held while the agents' filters are written.
    filter: Mutex<[u32; FILTER_WORDS]>,
    pauses: Mutex<HashMap<Id, Pause>>,
    given_back: AtomicU64,
    /// Held by whoever uses the queue of the devices that pages are given back by.
    pub queue: Mutex<()>,
}

struct Pause {
    times: u32,
    /// None: for ever.
    until: Option<Instant>,
}

impl Files {
    pub fn new(watch: Option<Watch>, held: Arc<SwappedFiles>, guardian: u32) -> Files {
        Files {
            watch: watch.map(Arc::new),
            held,
            guardian,
            filter: Mutex::new([0; FILTER_WORDS]),
            pauses: Mutex::default(),
            given_back: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// From here on who opens the file is held.
    pub fn hold(&self, file: &shmem::Object) -> io::Result<Hold> {
        let watch = self.watch.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Hold::new(&self.held, watch, file.as_fd())
    }

    /// It cannot be managed, whatever happens.
    pub fn never_manage(&self, id: Id) {
        self.pauses.lock().expect("pauses").insert(id, Pause { times: TIMES_MAX, until: None });
    }

    /// It is used in a way in which it cannot be managed.
    pub fn note_given_back(&self, id: Id) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
        let mut pauses = self.pauses.lock().expect("pauses");
        let pause = pauses.entry(id).or_insert(Pause { times: 0, until: None });
        let until = Instant::now() + FILE_AGAIN * (1 << pause.times.min(TIMES_MAX));
        pause.times += 1;
        pause.until = Some(until).filter(|_| pause.times < TIMES_MAX);
    }

    pub fn may_manage(&self, id: Id) -> bool {
        let pauses = self.pauses.lock().expect("pauses");
        pauses.get(&id).is_none_or(|pause| pause.until.is_some_and(|until| until < Instant::now()))
    }

    /// Files whose pages were brought back because of how they were used, so far.
    pub fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    /// Files that are left alone for good.
    pub fn left_alone(&self) -> u64 {
        let pauses = self.pauses.lock().expect("pauses");
        pauses.values().filter(|pause| pause.until.is_none()).count() as u64
    }

    /// A control page that is about to be handed out.
    pub fn prepare(&self, control: &ControlPage) {
        if self.watch.is_some() {
            control.set_files();
            self.refresh(control);
        }
    }

    /// These are the files that may be managed, as all agents are told. To be called when one was added,
    /// before any of its pages leaves, and after one was removed; `processes` looks up those that there are.
    pub fn publish(&self, ids: impl FnOnce() -> Vec<Id>, processes: impl FnOnce() -> Vec<Arc<Process>>) {
        let mut filter = self.filter.lock().expect("filter");
        *filter = [0; FILTER_WORDS];
        for id in ids() {
            let (word, bit) = file_bit(id.dev, id.ino);
            filter[word] |= bit;
        }
        for process in processes() {
            if let Some(agent) = process.memory.attached_agent() {
                agent.evictor.control.set_file_filter(&filter);
            }
        }
    }

    /// The process is in the table by now.
    pub fn refresh(&self, control: &ControlPage) {
        control.set_file_filter(&self.filter.lock().expect("filter"));
    }
}

/// Has no thread been in a call on a file at some time since this was called? In such a call it may not have
/// seen which files may be managed.
pub fn were_calls_over(processes: &[Arc<Process>]) -> bool {
    wait_for(processes, ControlPage::file_calls)
}

/// Is no thread in a call on a file that may be managed? To be asked while `TakesShared` of all processes is
/// held, so that none begins.
pub fn are_held_calls_over(processes: &[Arc<Process>]) -> bool {
    wait_for(processes, ControlPage::held_calls)
}

/// For a moment, until no process has any.
fn wait_for(processes: &[Arc<Process>], calls: fn(&ControlPage) -> u32) -> bool {
    let begun = Instant::now();
    processes.iter().filter_map(|process| process.memory.attached_agent()).all(|agent| {
        loop {
            if calls(&agent.evictor.control) == 0 {
                return true;
            }
            if begun.elapsed() > FILE_CALLS {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    })
}

/// A process of the run whose calls on files are told.
pub fn tells_of_calls(process: &Process) -> bool {
    !process.is_dying()
        && process.memory.attached_agent().is_some_and(|a| a.serves() && !a.evictor.control.is_confined())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow() {
        let files = Files::new(None, Arc::new(SwappedFiles::new().expect("a list")), 0);
        let (id, other) = (Id { dev: 1, ino: 2 }, Id { dev: 1, ino: 3 });
        assert!(files.may_manage(id));
        files.note_given_back(id);
        assert!(!files.may_manage(id) && files.may_manage(other));
        assert_eq!(files.left_alone(), 0);
        (1..TIMES_MAX).for_each(|_| files.note_given_back(id));
        assert_eq!((files.left_alone(), files.given_back()), (1, u64::from(TIMES_MAX)));
        files.never_manage(other);
        assert_eq!((files.may_manage(other), files.left_alone()), (false, 2));
    }
}
