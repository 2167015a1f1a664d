//! The name by which programs open the agent that may not open it by the usual one.
//!
//! The loader opens the agent through the supervisor's /proc/PID/fd. That is for processes of its user: not
//! for one that was root and has become another user, as programs of container images do before they run
//! their server (gosu, setpriv, su). So where memspill is root the agent has a second name, which the
//! environment tells (ENV_FILE). A process of another user writes it over the first one before it runs
//! another program. Both are equally long:
//!
//! ```text
//!   LD_PRELOAD=more:/proc/PID/fd//////////////NUMBER      in the environment that is passed
//!   LD_PRELOAD=more:/run/memspill-agent-NUMBER.so
//! ```
//!
//! The text is the program's own, and so is the list that points to it: it may free both. (The child of a
//! vfork shares them with its parent, for which the second name is as good.) The kernel reads and writes them
//! for us, so that what is not there, or may not be written, is left to the call.
//!
//! *It is that file, and no other*, that the name leads to: in another root directory somebody else may have
//! put one there. The environment tells its device and number too, and each process that was loaded by the
//! second name looks again before it passes that on; what leads elsewhere is written over by slashes.
//!
//! What it does not do: execveat; programs that are run without these variables (by sudo, or `su -`); an
//! LD_PRELOAD of more than 500 bytes, or in memory that may not be written; root that the loader refuses the
//! first name too, with fewer capabilities than memspill or in a user namespace.

use crate::common::sync::{AtomicU32, Ordering};
use core::ffi::c_char;

use crate::common::protocol::{ENV_FILE, ENV_NAME};
use crate::machine::environment::find_variable;
use crate::machine::sys::{self, Fd, PAGE, nr};

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
const FIRST_NAME: &[u8] = b"/proc/";
const TEXT_BYTES: usize = 512;
/// Enough to tell the variables that matter.
const BEGINS_MAX: usize = 24;
const SLASHES: [u8; TEXT_BYTES] = [b'/'; TEXT_BYTES];
/// A longer environment is not looked through.
const ENTRIES_MAX: usize = 1 << 16;

const NOT_THERE: u32 = 0;
const IS_THERE: u32 = 1;
const LOADED_BY_IT: u32 = 2;

/// The second name.
// In .data by force, as all of the agent.
#[unsafe(link_section = ".data.hot")]
static SECOND_NAME: AtomicU32 = AtomicU32::new(NOT_THERE);

/// In the constructor.
///
/// # Safety
/// As for `find_variable`.
pub unsafe fn learn(environment: *const *const c_char) {
    // SAFETY: the caller's promise.
    let (file, preload) =
        unsafe { (find_variable(environment, ENV_FILE), find_variable(environment, "LD_PRELOAD")) };
    let name = file.and_then(|file| file.split(|byte| *byte == b':').next()).filter(|name| !name.is_empty());
    let is_in = |name: &[u8]| preload.is_some_and(|list| list.windows(name.len()).any(|part| part == name));
    let what = match name {
        None => NOT_THERE,
        Some(name) if is_in(name) => LOADED_BY_IT,
        Some(_) => IS_THERE,
    };
    SECOND_NAME.store(what, Ordering::Relaxed);
}

/// Before an exec of the program's with this list as its environment. No call is trapped, and the program has
/// no filter that might end it for those that are made here.
pub fn for_exec(environment: usize) {
    const GETEUID: usize = 107;
    let second = SECOND_NAME.load(Ordering::Relaxed);
    if second == NOT_THERE || environment == 0 {
        return;
    }
    // SAFETY: a number.
    let is_another_user = || unsafe { sys::syscall(GETEUID, [0; 6]) } != Ok(0);
    if second == IS_THERE && !is_another_user() {
        return;
    }
    let (Some(preload), Some(file)) = (find(environment, PRELOAD), find(environment, ENV_FILE.as_bytes()))
    else {
        return;
    };
    let (mut text, mut list) = ([0; TEXT_BYTES], [0; TEXT_BYTES]);
    let Some(file) = Named::of(text_at(file, &mut text)) else { return };
    let list = text_at(preload, &mut list);
    if let Some(at) = find_in(list, file.name.len(), |name| name == file.name) {
        if !file.is_that() {
            write(preload + at, SLASHES.get(..file.name.len()).unwrap_or_default());
        }
    } else if let Some(at) = find_in(list, file.name.len(), is_first_name)
        && file.is_that()
    {
        write(preload + at, file.name);
    }
}

/// Is it the name by which the loader opens the agent through the supervisor's descriptors?
pub fn is_first_name(name: &[u8]) -> bool {
    name.starts_with(FIRST_NAME) && name.windows(4).any(|part| part == b"/fd/")
}

/// Is it what was a name of the agent that leads elsewhere now?
pub fn is_written_over(name: &[u8]) -> bool {
    name.len() > 1 && name.iter().all(|byte| *byte == b'/')
}

/// Tells of each of these texts how it begins: what can be read of BEGINS_MAX bytes.
pub fn each_beginning(texts: &[usize], mut tell: impl FnMut(usize, &[u8])) {
    /// At once.
    const TEXTS: usize = 32;
    let mut done = 0;
    while let Some(rest) = texts.get(done..).filter(|rest| !rest.is_empty()) {
        let mut begins = [[0u8; BEGINS_MAX]; TEXTS];
        let mut places = [[0usize; 2]; TEXTS];
        for (place, text) in places.iter_mut().zip(rest) {
            *place = [*text, BEGINS_MAX];
        }
        let count = rest.len().min(TEXTS);
        let own = [begins.as_mut_ptr() as usize, count * BEGINS_MAX];
        // SAFETY: the kernel writes into the buffer, no more than its length.
        let bytes =
            unsafe { transfer_all(nr::PROCESS_VM_READV, own, places.get(..count).unwrap_or_default()) };
        let whole = bytes / BEGINS_MAX;
        for (index, begins) in begins.iter().enumerate().take(whole) {
            tell(done + index, begins);
        }
        done += whole;
        if whole < count
            && let Some(text) = texts.get(done)
        {
            // It ends where nothing is behind it.
            let mut begins = [0u8; BEGINS_MAX];
            let bytes = read(*text, &mut begins);
            tell(done, begins.get(..bytes).unwrap_or_default());
            done += 1;
        }
    }
}

/// How many words are there, from this address on.
pub fn read_words(at: usize, to: &mut [usize]) -> usize {
    // SAFETY: the same memory, as bytes.
    let bytes = unsafe { core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to)) };
    read(at, bytes) / size_of::<usize>()
}

/// Does the environment say where the supervisor listens? A program without that is kept out.
pub fn names_supervisor(environment: usize) -> bool {
    const BEGINS: &[u8] = b"MEMSPILL_AGENT=";
    const _: () = assert!(BEGINS.len() == ENV_NAME.len() + 1);
    environment != 0 && find(environment, BEGINS).is_some()
}

/// The last entry of the environment that begins so: the loader goes by it.
fn find(environment: usize, begins: &[u8]) -> Option<usize> {
    let mut found = None;
    for place in (environment..).step_by(size_of::<usize>()).take(ENTRIES_MAX) {
        let mut pointer = [0; size_of::<usize>()];
        let is_read = read(place, &mut pointer) == pointer.len();
        let at = usize::from_ne_bytes(pointer);
        if !is_read || at == 0 {
            break;
        }
        let mut text = [0; BEGINS_MAX];
        // Most are others, and this tells.
        let first = text.get_mut(..4)?;
        if read(at, first) == first.len() && begins.starts_with(first) {
            let read = read(at, text.get_mut(..begins.len())?);
            if text.get(..read) == Some(begins) {
                found = Some(at);
            }
        }
    }
    found
}

/// The place in `LD_PRELOAD=...` where a part of the list begins that has `len` bytes and is such a one.
fn find_in(entry: &[u8], len: usize, is_one: impl Fn(&[u8]) -> bool) -> Option<usize> {
    let is_between = |byte: Option<&u8>| matches!(byte, None | Some(b':' | b' '));
    (PRELOAD.len()..entry.len()).find(|at| {
        let name = entry.get(*at..at + len);
        (*at == PRELOAD.len() || is_between(entry.get(at - 1)))
            && is_between(entry.get(at + len))
            && name.is_some_and(|name| is_one(name) && !name.iter().any(|byte| is_between(Some(byte))))
    })
}

/// The second name, and what it is to lead to.
struct Named<'a> {
    name: &'a [u8],
    device: u64,
    inode: u64,
}

impl Named<'_> {
    /// Reads `MEMSPILL_AGENT_FILE=NAME:DEVICE:INODE`.
    fn of(entry: &[u8]) -> Option<Named<'_>> {
        let mut parts =
            entry.strip_prefix(ENV_FILE.as_bytes())?.strip_prefix(b"=")?.split(|byte| *byte == b':');
        let (name, device, inode) = (parts.next()?, number(parts.next()?)?, number(parts.next()?)?);
        Some(Named { name, device, inode })
    }

    fn is_that(&self) -> bool {
        const FSTAT: usize = 5;
        let mut path = [0; TEXT_BYTES];
        path.iter_mut().zip(self.name).take(TEXT_BYTES - 1).for_each(|(place, byte)| *place = *byte);
        let mut stat = [0u64; 18];
        // SAFETY: the kernel reads the path, and writes a struct stat, of 144 bytes.
        let looked = unsafe {
            let args = [0, path.as_ptr() as usize, sys::O_CLOEXEC | sys::O_NONBLOCK, 0, 0, 0];
            sys::syscall(nr::OPENAT, args).and_then(|fd| {
                let file = Fd(fd as i32);
                sys::syscall(FSTAT, [file.0 as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0])
            })
        };
        // It begins with st_dev and st_ino.
        looked.is_ok() && stat.starts_with(&[self.device, self.inode])
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    sys::number(digits).map(|number| number as u64)
}

/// What is there up to a NUL; nothing, where it is too long or not there.
pub fn text_at(at: usize, text: &mut [u8]) -> &[u8] {
    let read = read(at, text);
    let end = text.iter().take(read).position(|byte| *byte == 0).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// How many bytes of the process's memory are there, from this address on.
fn read(at: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let from = at.wrapping_add(done);
        let bytes = rest.len().min(PAGE - from % PAGE);
        // SAFETY: the kernel writes into the buffer, no more than its length.
        if !unsafe { transfer(nr::PROCESS_VM_READV, rest.as_mut_ptr() as usize, from, bytes) } {
            break;
        }
        done += bytes;
    }
    done
}

/// Nothing is written if that cannot be.
fn write(at: usize, bytes: &[u8]) {
    // SAFETY: a text of the program's, which it has passed for what is about to be run.
    let _ = unsafe { transfer(nr::PROCESS_VM_WRITEV, bytes.as_ptr() as usize, at, bytes.len()) };
}

/// # Safety
/// What is read or written must be sound for the program and for the caller.
unsafe fn transfer(number: usize, own: usize, other: usize, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { transfer_all(number, [own, bytes], &[[other, bytes]]) == bytes }
}

/// How many bytes, between memory of the caller's and these places.
///
/// # Safety
/// As above.
unsafe fn transfer_all(number: usize, own: [usize; 2], others: &[[usize; 2]]) -> usize {
    const GETTID: usize = 186;
    // By the thread: the first one may have ended, and then the process's number leads to no memory.
    // SAFETY: a number.
    let Ok(tid) = (unsafe { sys::syscall(GETTID, [0; 6]) }) else { return 0 };
    let args = [tid, own.as_ptr() as usize, 1, others.as_ptr() as usize, others.len(), 0];
    // SAFETY: the caller's promise; the lists are alive.
    unsafe { sys::syscall(number, args) }.unwrap_or(0)
}
