//! stat and its kin on /proc/self/task, which are made in the handler: the program's threads are counted
//! without the evictor (`own_thread.rs`).

use crate::machine::gadget;
use crate::machine::sys::{PAGE, nr};

const STAT: usize = 4;
const NEWFSTATAT: usize = 262;

/// The end of the path, which is looked up in the program's own part of /proc. (A directory of that name that
/// is somewhere else does not look like one of /proc.)
const TASKS: &[u8] = b"self/task";
/// A path that is longer is not asked for.
pub const PATH_MAX: usize = 64;

const IS_DIRECTORY: u32 = 0o040_000;
const MODE_OF_PROC: u32 = IS_DIRECTORY | 0o555;
/// `.`, `..`, and one for each thread. The child of a vfork, which has no evictor, has no more.
const LEAST_LINKS: u64 = 3;

/// `struct stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    ids: [u64; 2],
    links: u64,
    mode: u32,
    owner: [u32; 5],
    size: u64,
    rest: [u64; 11],
}

/// `struct statx`, as far as it is of interest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Statx {
    head: [u32; 4],
    links: u32,
    owner: [u32; 2],
    mode: u16,
    unused: u16,
    ino: u64,
    size: u64,
}

/// The kernel's structures that say how many links a directory has.
pub trait Links: Copy {
    /// The same with one link less, if it is a directory of /proc.
    fn without_one(self) -> Option<Self>;
}

impl Links for Stat {
    fn without_one(mut self) -> Option<Self> {
        let is_one = is_tasks(self.mode, self.size, self.links);
        self.links -= if is_one { 1 } else { 0 };
        is_one.then_some(self)
    }
}

impl Links for Statx {
    fn without_one(mut self) -> Option<Self> {
        let is_one = is_tasks(self.mode.into(), self.size, self.links);
        self.links -= if is_one { 1 } else { 0 };
        is_one.then_some(self)
    }
}

fn is_tasks(mode: u32, size: u64, links: impl Into<u64>) -> bool {
    mode == MODE_OF_PROC && size == 0 && links.into() > LEAST_LINKS
}

/// Is it the directory of the program's own threads? `path`: without the zero at its end.
pub fn is_path_of_tasks(mut path: &[u8]) -> bool {
    while let [shorter @ .., b'/'] = path {
        path = shorter;
    }
    path.strip_suffix(TASKS).is_some_and(|before| before.is_empty() || before.ends_with(b"/"))
}

/// The argument that is the path, and the one that is the place for the result.
fn places(number: usize, args: &[usize; 6]) -> Option<(usize, usize)> {
    match number {
        STAT => Some((args[0], args[1])),
        NEWFSTATAT => Some((args[1], args[2])),
        nr::STATX => Some((args[1], args[4])),
        _ => None,
    }
}

/// Is it such a call?
pub fn are_looked_at(number: usize, args: &[usize; 6]) -> bool {
    let is_asked_for = |(path, _): (usize, usize)| {
        let mut bytes = [0u8; PATH_MAX];
        // The page behind the end of the path may not be mapped.
        let first = (PAGE - path % PAGE).min(PATH_MAX);
        // SAFETY: there is room for so many.
        let is_read = unsafe { gadget::copy(bytes.as_mut_ptr() as usize, path, first) };
        let mut end = bytes.iter().position(|byte| *byte == 0);
        if is_read && first < PATH_MAX && end.is_none_or(|end| end >= first) {
            let rest = bytes.as_mut_ptr() as usize + first;
            // SAFETY: as above.
            let is_read = unsafe { gadget::copy(rest, path + first, PATH_MAX - first) };
            end = bytes.iter().position(|byte| *byte == 0).filter(|_| is_read);
        }
        is_read && end.and_then(|end| bytes.get(..end)).is_some_and(is_path_of_tasks)
    };
    places(number, args).is_some_and(is_asked_for)
}

/// It has been made, on memory that is held: the evictor is not counted.
pub fn leave_out_evictor(number: usize, args: &[usize; 6]) {
    match places(number, args) {
        Some((_, place)) if number == nr::STATX => correct::<Statx>(place),
        Some((_, place)) => correct::<Stat>(place),
        None => {}
    }
}

fn correct<T: Links>(place: usize) {
    if let Some(corrected) = gadget::read::<T>(place).and_then(Links::without_one) {
        // The kernel could write there.
        let _ = gadget::write(place, &corrected);
    }
}
