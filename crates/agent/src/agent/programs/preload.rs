//! The agent's name comes back into an LD_PRELOAD that the program has replaced.
//!
//! `LD_PRELOAD=libjemalloc.so.2 PROGRAM` is how people give a program another malloc, in a shell or by `env`:
//! the loader would not find the agent there. So before another program is run the list that is passed as its
//! environment is looked through. Has it got the agent's address (ENV_NAME), and an LD_PRELOAD that names
//! something, but not the agent, then a copy of the list is passed, with the agent's name behind the others:
//!
//! ```text
//!   passed:  MEMSPILL_AGENT=...   LD_PRELOAD=libjemalloc.so.2          ...
//!   copy:    the same text        LD_PRELOAD=libjemalloc.so.2:NAME     ...
//! ```
//!
//! The copy lies on the stack of who runs the program; in the trap, on the agent's. The program's own list
//! and texts stay as they are: it may free them, and the child of a vfork shares them with its parent.
//!
//! A program that ran already when the agent came (`running.rs`) has none of this in its environment: all of
//! it is added to what it passes.
//!
//! Left alone: an environment without LD_PRELOAD, or with an empty one, which is how a program is kept out;
//! and one in which the name of the agent leads elsewhere, and was written over (`readable.rs`).
//!
//! What it does not do: execveat; more than ENTRIES_MAX entries; an LD_PRELOAD of more than TEXT_BYTES.

use crate::common::sync::{AtomicUsize, Ordering};
use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::mem::offset_of;

use super::readable::{self, PRELOAD};
use crate::common::protocol::{ENV_FILE, ENV_NAME};
use crate::machine::environment::find_variable;

const ENTRIES_MAX: usize = 500;
const TEXT_BYTES: usize = 500;
const NAME_MAX: usize = 100;

/// A name of the agent. Kept here, for the program may write over its environment.
struct Name {
    len: AtomicUsize,
    text: UnsafeCell<[u8; NAME_MAX]>,
}

// SAFETY: written by the constructor, before there is a second thread, and only read afterwards.
unsafe impl Sync for Name {}

impl Name {
    const fn none() -> Name {
        Name { len: AtomicUsize::new(0), text: UnsafeCell::new([0; NAME_MAX]) }
    }

    fn get(&self) -> &[u8] {
        // SAFETY: nobody writes it any more.
        let text = unsafe { &*self.text.get() };
        text.get(..self.len.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// # Safety
    /// In the constructor: nobody reads it yet.
    unsafe fn set(&self, name: &[u8]) {
        // SAFETY: the caller's promise.
        if let Some(place) = unsafe { &mut *self.text.get() }.get_mut(..name.len()) {
            place.copy_from_slice(name);
            self.len.store(name.len(), Ordering::Relaxed);
        }
    }
}

/// By which this process has loaded it.
// In .data by force, as all of the agent.
#[unsafe(link_section = ".data")]
static NAME: Name = Name::none();

/// By which processes of other users load it (`readable.rs`), if there is one.
#[unsafe(link_section = ".data")]
static SECOND_NAME: Name = Name::none();

/// Whole entries of an environment, which a program that ran already before the agent came has not: they are
/// added to what it passes.
struct Added {
    lens: [AtomicUsize; ADDED],
    texts: UnsafeCell<[[u8; ADDED_BYTES]; ADDED]>,
}

/// LD_PRELOAD, ENV_NAME, ENV_FILE.
const ADDED: usize = 3;
const ADDED_BYTES: usize = 256;

// SAFETY: written while the other threads stand still, and only read afterwards.
unsafe impl Sync for Added {}

#[unsafe(link_section = ".data")]
static ADDED_TEXTS: Added =
    Added { lens: [const { AtomicUsize::new(0) }; ADDED], texts: UnsafeCell::new([[0; ADDED_BYTES]; ADDED]) };

/// In a process that runs already: what the programs are to have that it runs.
///
/// # Safety
/// As for `find_variable`; and all other threads stand still.
pub unsafe fn learn_to_add(environment: *const *const c_char) {
    let names = ["LD_PRELOAD", ENV_NAME, ENV_FILE];
    // SAFETY: the caller's promise.
    let texts = unsafe { &mut *ADDED_TEXTS.texts.get() };
    for ((name, text), kept_len) in names.iter().zip(texts).zip(&ADDED_TEXTS.lens) {
        // SAFETY: the caller's promise.
        let Some(value) = (unsafe { find_variable(environment, name) }) else { continue };
        let len = name.len() + 1 + value.len();
        // With a NUL behind it.
        if len < text.len() {
            let parts = name.as_bytes().iter().chain(b"=").chain(value);
            text.iter_mut().zip(parts).for_each(|(place, byte)| *place = *byte);
            kept_len.store(len, Ordering::Relaxed);
        }
    }
}

/// The text of one of them, with its NUL.
fn added(which: usize) -> Option<&'static [u8]> {
    let len = ADDED_TEXTS.lens.get(which)?.load(Ordering::Relaxed);
    // SAFETY: nobody writes it any more.
    let text = unsafe { &*ADDED_TEXTS.texts.get() }.get(which)?;
    (len != 0).then(|| text.get(..=len)).flatten()
}

/// In the constructor.
///
/// # Safety
/// As for `find_variable`.
pub unsafe fn learn(environment: *const *const c_char) {
    // SAFETY: the caller's promise.
    let (list, file) =
        unsafe { (find_variable(environment, "LD_PRELOAD"), find_variable(environment, ENV_FILE)) };
    let second = file.and_then(|file| file.split(|byte| *byte == b':').next());
    let is_agent = |part: &&[u8]| readable::is_first_name(part) || Some(*part) == second;
    let Some(found) = list.and_then(|list| parts(list).find(is_agent)) else { return };
    // SAFETY: nobody reads them yet.
    unsafe {
        NAME.set(found);
        SECOND_NAME.set(second.unwrap_or_default());
    }
}

fn parts(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' '))
}

/// Is it a name of the agent's?
fn is_ours(part: &[u8]) -> bool {
    part == NAME.get()
        || part == SECOND_NAME.get()
        || readable::is_first_name(part)
        || readable::is_written_over(part)
}

/// A list to be passed, and the one text in it that is new.
#[repr(C)]
pub struct List {
    entries: [usize; ENTRIES_MAX + 1],
    text: [u8; TEXT_BYTES + NAME_MAX],
    /// The index of the text among the entries.
    index: usize,
}

impl List {
    /// Before an exec with this environment. None: it is to be passed itself. No call is trapped, what the
    /// environment names is in memory, and the program has no filter that might end it for these calls.
    pub fn of(environment: usize) -> Option<List> {
        let name = NAME.get();
        if name.is_empty() || environment == 0 {
            return None;
        }
        let mut list = List { entries: [0; ENTRIES_MAX + 1], text: [0; TEXT_BYTES + NAME_MAX], index: 0 };
        let read = readable::read_words(environment, &mut list.entries);
        let count = list.entries.iter().take(read).position(|entry| *entry == 0)?;
        list.entries.iter_mut().skip(count).for_each(|entry| *entry = 0);
        let (mut preload, mut has_address) = (None, false);
        readable::each_beginning(list.entries.get(..count)?, |index, begins| {
            // The loader goes by the last one.
            if begins.starts_with(PRELOAD) {
                preload = Some(index);
            }
            let rest = begins.strip_prefix(ENV_NAME.as_bytes());
            has_address |= rest.is_some_and(|rest| rest.starts_with(b"="));
        });
        if !has_address && added(1).is_some() {
            return list.with_added(count, preload);
        }
        list.index = preload.filter(|_| has_address)?;
        let text = *list.entries.get(list.index)?;
        let len = readable::text_at(text, list.text.get_mut(..TEXT_BYTES)?).len();
        let passed = list.text.get(PRELOAD.len()..len)?;
        let is_replaced = parts(passed).any(|part| !part.is_empty()) && !parts(passed).any(is_ours);
        if !is_replaced || len + name.len() + 2 > list.text.len() {
            return None;
        }
        let behind = [b':'].iter().chain(name).chain(&[0]);
        list.text.iter_mut().skip(len).zip(behind).for_each(|(place, byte)| *place = *byte);
        Some(list)
    }

    /// Before an exec of a program that is to have no agent (`inherited.rs`): without what names it. `read`:
    /// copies bytes of the program's memory, if they are there, by no system call. None: it is to be passed
    /// itself.
    pub fn without_agent(environment: usize, read: fn(usize, &mut [u8]) -> bool) -> Option<List> {
        let mut list =
            List { entries: [0; ENTRIES_MAX + 1], text: [0; TEXT_BYTES + NAME_MAX], index: usize::MAX };
        let mut count = 0;
        for place in (environment..).step_by(size_of::<usize>()).take(ENTRIES_MAX) {
            let mut pointer = [0; size_of::<usize>()];
            if environment == 0 || !read(place, &mut pointer) {
                return None;
            }
            let entry = usize::from_ne_bytes(pointer);
            if entry == 0 {
                return Some(list);
            }
            let begins = |name: &str| {
                let mut byte = [0];
                let mut expected = name.bytes().chain([b'=']).enumerate();
                expected.all(|(at, expected)| read(entry + at, &mut byte) && byte == [expected])
            };
            if begins(ENV_NAME) || begins(ENV_FILE) {
                continue;
            }
            if begins("LD_PRELOAD") {
                let len = list.take_others(entry, read)?;
                if len == PRELOAD.len() {
                    continue;
                }
                list.index = count;
            }
            *list.entries.get_mut(count)? = entry;
            count += 1;
        }
        None
    }

    /// The text of this LD_PRELOAD, of which all but the agent is kept; how long that is.
    fn take_others(&mut self, entry: usize, read: fn(usize, &mut [u8]) -> bool) -> Option<usize> {
        let mut passed = [0u8; TEXT_BYTES];
        let mut len = 0;
        loop {
            let byte = passed.get_mut(len..=len)?;
            if !read(entry + len, byte) {
                return None;
            }
            if byte == [0] {
                break;
            }
            len += 1;
        }
        let (start, others) = passed.get(..len)?.split_at_checked(PRELOAD.len())?;
        self.text = [0; TEXT_BYTES + NAME_MAX];
        let mut kept = 0;
        let mut keep = |bytes: &[u8]| {
            self.text.get_mut(kept..kept + bytes.len())?.copy_from_slice(bytes);
            kept += bytes.len();
            Some(kept)
        };
        keep(start)?;
        let mut len = start.len();
        for part in parts(others).filter(|part| !part.is_empty() && !is_ours(part)) {
            if len != start.len() {
                keep(b":")?;
            }
            len = keep(part)?;
        }
        Some(len)
    }

    /// With what the program itself has not in its environment. None: there is no room.
    fn with_added(mut self, count: usize, preload: Option<usize>) -> Option<List> {
        let mut next = count;
        let mut add = |entries: &mut [usize; ENTRIES_MAX + 1], text: &'static [u8]| {
            // One is left for the null behind them.
            let place = entries.get_mut(next).filter(|_| next < ENTRIES_MAX);
            next += 1;
            place.map(|place| *place = text.as_ptr() as usize)
        };
        for which in 1..ADDED {
            if let Some(text) = added(which) {
                add(&mut self.entries, text)?;
            }
        }
        let ours = added(0)?;
        let Some(index) = preload else {
            add(&mut self.entries, ours)?;
            // `lies_at` puts nothing in place of another.
            self.index = usize::MAX;
            return Some(self);
        };
        self.index = index;
        let text = *self.entries.get(index)?;
        let len = readable::text_at(text, self.text.get_mut(..TEXT_BYTES)?).len();
        let name = ours.get(PRELOAD.len()..)?;
        if len < PRELOAD.len() || len + 2 + name.len() > self.text.len() {
            return None;
        }
        let separator: &[u8] = if len == PRELOAD.len() { b"" } else { b":" };
        let behind = separator.iter().chain(name).chain(&[0]);
        self.text.iter_mut().skip(len).zip(behind).for_each(|(place, byte)| *place = *byte);
        Some(self)
    }

    /// It lies at this address, or will: what is to be passed.
    pub fn lies_at(&mut self, at: usize) -> usize {
        if let Some(entry) = self.entries.get_mut(self.index) {
            *entry = at + offset_of!(List, text);
        }
        at + offset_of!(List, entries)
    }
}
