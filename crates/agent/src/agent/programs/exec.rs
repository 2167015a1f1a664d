//! A static program is about to take this one's place: its memory is to be managed too, and no loader will
//! bring an agent into it. So the supervisor is asked to stop it at its first instruction, and to plant one
//! there (`planted.rs`).
//!
//! ```text
//!   here                                     supervisor (crates/pager/src/plant/)
//!   is the file a static program? ─ Hello KIND_STATIC ─▶ traces this process
//!   execve ◀───────────────────────────────────── Go
//!     │ (closes the socket)                    stops at the exec: plants, lets go
//!     └─ fails ── Forked ────────────────────▶ lets go
//!          return ◀─────────────────────────── Go
//! ```
//!
//! If system calls are trapped that is done in the trap (`trap/handler.rs`), else by the C library's
//! `execve`, in which the call is rewritten, as that of brk is (`malloc.rs`). The rest of the C library's
//! exec functions, posix_spawn, popen and system come there too, also in the child of a vfork, which has its
//! parent's memory.
//!
//! *Nobody is traced who would be another for it*: what gets privileges by its file would lose them.
//!
//! What it does not do: execveat; execs by instructions of a dynamically linked program's own where calls are
//! not trapped; programs whose file may not be read.

use super::preload::List;
use super::site::{self, Place};
use super::{inherited, readable};
use crate::common::protocol::{Forked, Go, KIND_STATIC, MAGIC};
use crate::common::sync::{AtomicUsize, Ordering};
use crate::join::handshake;
use crate::machine::sys::{self, Fd, SignalsBlocked, nr};
use crate::supervisor::address;
use crate::supervisor::state::STATE;
use crate::thread::trapped;

pub const EXECVE: usize = 59;
const AT_FDCWD: usize = -100isize as usize;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const EM_X86_64: u16 = 62;
const PT_INTERP: u32 = 3;
/// As the kernel has it: of scripts that run scripts, of a script's first line.
const SCRIPTS_MAX: usize = 4;
const LINE_BYTES: usize = 256;
/// More than any program has.
const HEADERS_MAX: u16 = 512;
const HEADER_BYTES: usize = 56;

/// Behind the site in `execve`.
#[unsafe(link_section = ".data")]
static BEHIND_EXECVE: AtomicUsize = AtomicUsize::new(0);

site::place!(memspill_exec_site, exec, BEHIND_EXECVE);

/// Where it cannot be rewritten, static programs run outside the budget.
pub fn place() -> Place {
    let target = memspill_exec_site as *const () as usize;
    Place { function: sys::weak!("execve"), number: EXECVE, target, behind: &BEHIND_EXECVE }
}

/// The call as it was asked for, by its arguments in their order, and the kernel's result.
extern "C" fn exec(args: &[usize; 6]) -> usize {
    // A trapped call is looked at in the trap.
    let is_alone = !trapped::traps() && inherited::is_alone();
    if trapped::traps() || is_confined() && !is_alone {
        // SAFETY: the C library's own call, passed through.
        return unsafe { sys::syscall_raw(EXECVE, *args) };
    }
    let mut list = if is_alone { List::without_agent(args[2], read) } else { List::of(args[2]) };
    let mut args = *args;
    if let Some(list) = &mut list {
        args[2] = list.lies_at(&raw const *list as usize);
    }
    let result = ask_and_exec(&args);
    // The list is there until then.
    core::hint::black_box(&list);
    result
}

/// Bytes of the environment, which is there for the C library's function.
fn read(from: usize, to: &mut [u8]) -> bool {
    // SAFETY: the caller of that function has promised it.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
    true
}

fn ask_and_exec(args: &[usize; 6]) -> usize {
    // SAFETY: the C library's own call, with its own environment or another.
    let call = || unsafe { sys::syscall_raw(EXECVE, *args) };
    if !concerns(args) {
        return call();
    }
    // No handler of the program may run another program in between, or never return.
    let blocked = SignalsBlocked::new();
    let Some(asked) = ask(blocked.before()) else {
        drop(blocked);
        return call();
    };
    let result = call();
    asked.failed();
    drop(blocked);
    if is_forbidden(result) { call() } else { result }
}

/// A security module may forbid an exec because it is traced.
pub fn is_forbidden(result: usize) -> bool {
    const EACCES: i32 = 13;
    [sys::EPERM, EACCES].iter().any(|errno| result == -(*errno as isize) as usize)
}

/// The supervisor waits for this thread's exec.
pub struct Asked(Fd);

impl Asked {
    /// There was none.
    pub fn failed(self) {
        if tell(&self.0, &Forked { magic: MAGIC, errno: 1 }) {
            let _ = hear_go(&self.0);
        }
    }
}

/// Before an exec with these arguments, where no call is trapped: is somebody to be asked, for it runs a
/// static program into which an agent is to be planted?
pub fn concerns(args: &[usize; 6]) -> bool {
    let [path, _, environment, ..] = *args;
    if is_confined() {
        return false;
    }
    readable::for_exec(environment);
    address::knows_supervisor() && is_static(path) && readable::names_supervisor(environment)
}

/// A filter of the program's own may end it for the looks, and for the asking.
pub fn is_confined() -> bool {
    STATE.confined.load(Ordering::SeqCst) != 0
}

/// Before an exec, with all signals blocked. `mask`: the signal mask that the program is to have. None:
/// nobody can plant an agent into it.
pub fn ask(mask: u64) -> Option<Asked> {
    const GETTID: usize = 186;
    let socket = handshake::connect()?;
    // SAFETY: no memory involved.
    let tid = unsafe { sys::syscall(GETTID, [0; 6]) }.ok()? as u64;
    let mut fork = [0u8; 16];
    let (first, second) = fork.split_at_mut(8);
    first.copy_from_slice(&mask.to_ne_bytes());
    second.copy_from_slice(&tid.to_ne_bytes());
    let answered = tell(&socket, &handshake::hello_of(KIND_STATIC, fork)).then(|| hear_go(&socket))?;
    matches!(answered, Some(Go { magic: MAGIC, errno: 0 })).then_some(Asked(socket))
}

// A process that joins and is not heard ends itself (`handshake.rs`). A process that asks here only runs
// without an agent.

fn tell<T: Copy>(socket: &Fd, message: &T) -> bool {
    const SENDTO: usize = 44;
    const MSG_NOSIGNAL: usize = 0x4000;
    let args = [socket.0 as usize, message as *const T as usize, size_of::<T>(), MSG_NOSIGNAL, 0, 0];
    // SAFETY: the kernel reads the message.
    unsafe { sys::syscall(SENDTO, args) }.is_ok()
}

fn hear_go(socket: &Fd) -> Option<Go> {
    const RECVFROM: usize = 45;
    let mut go = Go { magic: 0, errno: 0 };
    let args = [socket.0 as usize, &raw mut go as usize, size_of::<Go>(), 0, 0, 0];
    // SAFETY: the kernel writes into the message, no more than its length.
    (unsafe { sys::syscall(RECVFROM, args) } == Ok(size_of::<Go>())).then_some(go)
}

/// Will the kernel load a program of this processor without a loader, and is it one that may be traced?
fn is_static(path: usize) -> bool {
    let mut line = [0u8; LINE_BYTES];
    let mut interpreter;
    let Some(mut kind) = kind_of(path, &mut line) else { return false };
    for _ in 0..SCRIPTS_MAX {
        match kind {
            Kind::Static => return true,
            Kind::Other => return false,
            Kind::Script(start) => {
                interpreter = line;
                let path = interpreter.as_ptr() as usize + start;
                let Some(next) = kind_of(path, &mut line) else { return false };
                kind = next;
            }
        }
    }
    false
}

enum Kind {
    Static,
    /// With the interpreter's path, which begins there in the line.
    Script(usize),
    Other,
}

/// `path`: a string. `line`: for how the file begins.
fn kind_of(path: usize, line: &mut [u8; LINE_BYTES]) -> Option<Kind> {
    const O_NONBLOCK: usize = 0o4000;
    // SAFETY: the kernel reads the path, if it is one.
    let fd = unsafe { sys::syscall(nr::OPENAT, [AT_FDCWD, path, sys::O_CLOEXEC | O_NONBLOCK, 0, 0, 0]) };
    let file = Fd(fd.ok()? as i32);
    // Now that it is known to be a path.
    let is_loader = is_loader(path);
    *line = [0; LINE_BYTES];
    let len = read_at(&file, line, 0)?;
    if line.starts_with(b"#!") && len > 2 {
        return Some(script(line));
    }
    let is_native = line.starts_with(&ELF_MAGIC) && line.get(4) == Some(&CLASS_64);
    if !is_native || half(line, 18) != Some(EM_X86_64) || is_loader {
        return Some(Kind::Other);
    }
    let table = line.get(32..40)?.try_into().map(u64::from_ne_bytes).ok()?;
    let (each, count) = (half(line, 54)?, half(line, 56)?);
    if usize::from(each) != HEADER_BYTES || count > HEADERS_MAX {
        return Some(Kind::Other);
    }
    for index in 0..u64::from(count) {
        let at = table.checked_add(index * HEADER_BYTES as u64)?;
        // The loader's is mostly the second, and near the beginning.
        let mut kind = [0u8; 4];
        match line.get(at as usize..).and_then(|rest| rest.get(..4)) {
            Some(read) => kind.copy_from_slice(read),
            None => _ = read_at(&file, &mut kind, at)?,
        }
        if u32::from_ne_bytes(kind) == PT_INTERP {
            return Some(Kind::Other);
        }
    }
    Some(if gets_privileges(&file) { Kind::Other } else { Kind::Static })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().map(u16::from_ne_bytes).ok()
}

/// The dynamic loader, run as a command, has no loader and follows LD_PRELOAD.
fn is_loader(path: usize) -> bool {
    // SAFETY: the kernel has read the string, or it is a line with a NUL in it.
    let path = unsafe { core::ffi::CStr::from_ptr(path as *const core::ffi::c_char) }.to_bytes();
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(Some(path), |at| path.get(at + 1..));
    name.is_some_and(|name| name.starts_with(b"ld-") || name.starts_with(b"ld.so"))
}

/// The first word behind `#!`, to which a NUL is put.
fn script(line: &mut [u8; LINE_BYTES]) -> Kind {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = 2 + line.iter().skip(2).take_while(|byte| is_blank(byte)).count();
    let len =
        line.iter().skip(start).take_while(|byte| !is_blank(byte) && !matches!(byte, b'\n' | 0)).count();
    match line.get_mut(start + len) {
        Some(end) if len > 0 => *end = 0,
        _ => return Kind::Other,
    }
    Kind::Script(start)
}

fn gets_privileges(file: &Fd) -> bool {
    const FSTAT: usize = 5;
    const FGETXATTR: usize = 193;
    const S_ISUID: u32 = 0o4000;
    const S_ISGID: u32 = 0o2000;
    let mut stat = [0u64; 18];
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: the kernel writes a struct stat, of 144 bytes, and reads a name.
    let (known, attribute) = unsafe {
        let fd = file.0 as usize;
        (
            sys::syscall(FSTAT, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]),
            sys::syscall(FGETXATTR, [fd, name, 0, 0, 0, 0]),
        )
    };
    // st_mode is the lower half of the fourth word, behind st_dev, st_ino and st_nlink.
    let mode = stat[3] as u32;
    known.is_err() || mode & (S_ISUID | S_ISGID) != 0 || attribute.is_ok_and(|bytes| bytes > 0)
}

/// How much has been read. None: it cannot be.
fn read_at(file: &Fd, to: &mut [u8], offset: u64) -> Option<usize> {
    let args = [file.0 as usize, to.as_mut_ptr() as usize, to.len(), offset as usize, 0, 0];
    // SAFETY: the kernel writes into the buffer, no more than its length.
    unsafe { sys::syscall(nr::PREAD64, args) }.ok()
}
