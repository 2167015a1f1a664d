//! The name by which programs open the agent that may not open it by the usual one.
//!
//! The loader opens the agent through the supervisor's /proc/PID/fd. That is for processes of its user with
//! no fewer rights: not for one that was root and has become another user, as programs of container images
//! do before they run their server (gosu, setpriv, su). So where memspill is root the agent has a second
//! name, which the environment tells (ENV_FILE). A process that cannot open the first one any more puts the
//! second one in its place before it runs another program:
//!
//! ```text
//!   the program's list of its environment:  ... │ LD_PRELOAD=/proc/PID/fd/N:more                    │ ...
//!     the pointer is exchanged              ... │ LD_PRELOAD=/run/memspill-agent-NUMBER.so:more     │ ...
//! ```
//!
//! Both texts are made when this program begins. The kernel reads and writes the list for us, so that one
//! that is not there, or may not be written, is left to the call.
//!
//! What it does not do: execveat; programs that are run without these variables (by sudo, or `su -`), or with
//! another LD_PRELOAD than this one had; those of a root whose capabilities its next exec will take away.

use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::protocol::ENV_FILE;
use crate::sys::{self, Fd, PAGE, nr};
use crate::{STATE, find_variable};

const PRELOAD: &str = "LD_PRELOAD";
const TEXT_BYTES: usize = 256;
/// A longer environment is not looked through.
const ENTRIES_MAX: usize = 1 << 16;

/// A text, and a NUL.
struct Text {
    bytes: UnsafeCell<[u8; TEXT_BYTES]>,
    /// Without the NUL.
    len: AtomicUsize,
}

// SAFETY: written by the constructor, before there is a second thread, and only read afterwards.
unsafe impl Sync for Text {}

impl Text {
    const fn new() -> Text {
        Text { bytes: UnsafeCell::new([0; TEXT_BYTES]), len: AtomicUsize::new(0) }
    }

    /// False: there is no room for all of it. Only in the constructor.
    fn set(&self, parts: &[&[u8]]) -> bool {
        // SAFETY: the process has one thread.
        let bytes = unsafe { &mut *self.bytes.get() };
        let mut len = 0;
        for byte in parts.iter().copied().flatten() {
            match bytes.get_mut(len) {
                Some(place) if len < TEXT_BYTES - 1 => *place = *byte,
                _ => return false,
            }
            len += 1;
        }
        self.len.store(len, Ordering::Relaxed);
        true
    }

    fn get(&self) -> &[u8] {
        // SAFETY: nobody writes it any more.
        unsafe { &*self.bytes.get() }.get(..self.len.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn address(&self) -> usize {
        self.bytes.get() as usize
    }
}

// In .data by force, as all of the agent.
/// By which name this program's loader has opened the agent.
#[unsafe(link_section = ".data")]
static PATH: Text = Text::new();
/// The other one.
#[unsafe(link_section = ".data")]
static READABLE_PATH: Text = Text::new();
/// What the environment says, and what it is to say.
#[unsafe(link_section = ".data")]
static ENTRY: Text = Text::new();
#[unsafe(link_section = ".data")]
static READABLE: Text = Text::new();
/// Not 0: these are known.
#[unsafe(link_section = ".data.hot")]
static IS_KNOWN: AtomicU32 = AtomicU32::new(0);

/// In the constructor.
///
/// # Safety
/// As for `find_variable`.
pub unsafe fn learn(environment: *const *const c_char) {
    // SAFETY: the caller's promise.
    let (file, value) =
        unsafe { (find_variable(environment, ENV_FILE), find_variable(environment, PRELOAD)) };
    let (Some(file), Some(value)) = (file, value) else { return };
    let (path, rest) = value.split_at(value.iter().position(|byte| *byte == b':').unwrap_or(value.len()));
    if path == file {
        return;
    }
    let name = [PRELOAD.as_bytes(), b"="];
    let is_known = PATH.set(&[path])
        && READABLE_PATH.set(&[file])
        && ENTRY.set(&[name[0], name[1], value])
        && READABLE.set(&[name[0], name[1], file, rest]);
    IS_KNOWN.store(is_known.into(), Ordering::Relaxed);
}

/// Before an exec of the program's with this list as its environment. No call is trapped.
pub fn for_exec(environment: usize) {
    if IS_KNOWN.load(Ordering::Relaxed) == 0
        // A filter of the program's own may end it for the calls here.
        || STATE.confined.load(Ordering::SeqCst) != 0
        || environment == 0
        || is_for_next(&PATH)
        || !is_open(&READABLE_PATH)
    {
        return;
    }
    let entry = ENTRY.get();
    for index in 0..ENTRIES_MAX {
        let place = environment.wrapping_add(index * size_of::<usize>());
        let mut pointer = [0; size_of::<usize>()];
        if read(place, &mut pointer) < pointer.len() || pointer == [0; size_of::<usize>()] {
            return;
        }
        let mut text = [0; TEXT_BYTES];
        let Some(text) = text.get_mut(..=entry.len()) else { return };
        read(usize::from_ne_bytes(pointer), text);
        if text.split_last() == Some((&0, entry)) {
            return write(place, &READABLE.address().to_ne_bytes());
        }
    }
}

/// Will a program that is run now be able to open it? A process that was root may do so until then, with
/// capabilities that the exec takes away (setpriv).
fn is_for_next(path: &Text) -> bool {
    const GETEUID: usize = 107;
    // SAFETY: a number.
    let is_root = unsafe { sys::syscall(GETEUID, [0; 6]) } == Ok(0);
    is_root && is_open(path)
}

fn is_open(path: &Text) -> bool {
    // SAFETY: the kernel reads the path.
    let opened = unsafe { sys::syscall(nr::OPENAT, [0, path.address(), sys::O_CLOEXEC, 0, 0, 0]) };
    opened.map(|fd| Fd(fd as i32)).is_ok()
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

/// Where that cannot be, it is not.
fn write(at: usize, bytes: &[u8]) {
    // SAFETY: a pointer in a list of the program's, which has passed it for what is about to be run.
    let _ = unsafe { transfer(nr::PROCESS_VM_WRITEV, bytes.as_ptr() as usize, at, bytes.len()) };
}

/// # Safety
/// What is read or written must be sound for the program and for the caller.
unsafe fn transfer(number: usize, own: usize, other: usize, bytes: usize) -> bool {
    let (own, other) = ([own, bytes], [other, bytes]);
    let pid = sys::getpid() as usize;
    let args = [pid, own.as_ptr() as usize, 1, other.as_ptr() as usize, 1, 0];
    // SAFETY: the caller's promise; the lists are alive.
    let done = unsafe { sys::syscall(number, args) };
    done == Ok(bytes)
}
