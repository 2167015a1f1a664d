//! `/proc/PID/mem` and ptrace's PEEK and POKE, in place of the C library's: what of the memory is away is
//! brought, and the call made again.
//!
//! Such accesses make no fault: the kernel answers EIO where a page is not in memory, also of the caller's
//! own (code generators write so what they may not map writable). process_vm_readv, which reads another
//! process's memory too, does make one; and where calls are trapped what it uses of its own process is
//! brought before, and what is away of another's (`calls/other_process.rs`).
//!
//! ```text
//!   pread(/proc/PID/mem) ─ EIO, or a part ─▶ process_vm_readv of a byte there ─ it can be read ─▶ once more
//! ```
//!
//! If calls are trapped, memory of the caller's own stays in place while the call is under way: it is
//! published as what the call uses (`calls/hold.rs`). The kernel looks through protections here, and so would
//! see a page whose bytes are just on their way (`pages/`).
//!
//! A process that has opened such a file by its name asks at each call whether the descriptor is one.
//!
//! Not seen from here: calls inside the C library itself (stdio), system calls by a program's own
//! instructions, descriptors that came by a message or by an exec. All of this may run in a signal handler,
//! in the child of a vfork, in the child of a raw clone.

use crate::common::sync::{AtomicU32, Ordering};
use core::ffi::{CStr, c_char, c_int, c_long};

use super::c_library::libc_result;
use crate::calls::hold::OF_OWN_MEMORY;
use crate::machine::sys::{self, EINVAL, EIO, PAGE, Result, nr};
use crate::thread::trapped;

const PTRACE_PEEKTEXT: usize = 1;
const PTRACE_PEEKDATA: usize = 2;
const PTRACE_PEEKUSER: usize = 3;
const PTRACE_POKETEXT: usize = 4;
const PTRACE_POKEDATA: usize = 5;
const SEEK_SET: usize = 0;
const SEEK_CUR: usize = 1;
/// A page that was brought may be away again before it is used. More in a row means that it cannot stay.
const TRIES: u32 = 1000;
/// The kernel's UIO_MAXIOV.
const VECTORS_MAX: usize = 1024;
/// Large transfers of files would be parted elsewhere (`calls/pieces.rs`).
const PIECE: usize = 1 << 20;
const PATH_BYTES: usize = 64;
const PROC_MAGIC: u64 = 0x9fa0;

/// Not 0: this process, or a parent of it, has opened a file of this name.
#[unsafe(link_section = ".data.hot")]
static MAY_BE_OPEN: AtomicU32 = AtomicU32::new(0);

/// A file was opened by this path.
pub fn note_opened(path: usize) {
    // SAFETY: the kernel has just read the string.
    let path = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes();
    if path == b"mem" || path.ends_with(b"/mem") {
        MAY_BE_OPEN.store(1, Ordering::Relaxed);
    }
}

/// Makes a call that reads or writes the memory of a process by its file. None: it is no such call.
pub fn transfer(number: usize, args: &[usize; 6]) -> Option<Result<usize>> {
    let [file, at, len, offset, ..] = *args;
    if MAY_BE_OPEN.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let (writes, is_vector, is_positioned) = match number {
        nr::READ => (false, false, false),
        nr::WRITE => (true, false, false),
        nr::PREAD64 => (false, false, true),
        nr::PWRITE64 => (true, false, true),
        nr::READV => (false, true, false),
        nr::WRITEV => (true, true, false),
        nr::PREADV => (false, true, true),
        nr::PWRITEV => (true, true, true),
        _ => return None,
    };
    let process = process_of(file)?;
    let from = if is_positioned { Ok(offset) } else { seek(file, 0, SEEK_CUR) };
    let result = from.and_then(|from| {
        let one = Access { process, file, writes };
        let done = if is_vector { one.vector(at, len, from) } else { one.all(at, len, from) };
        if let (Ok(done), false) = (done, is_positioned) {
            seek(file, from.wrapping_add(done), SEEK_SET)?;
        }
        done
    });
    Some(result)
}

struct Access {
    process: usize,
    file: usize,
    writes: bool,
}

impl Access {
    fn vector(&self, at: usize, count: usize, from: usize) -> Result<usize> {
        if count > VECTORS_MAX {
            return Err(EINVAL);
        }
        let mut sum = 0;
        for index in 0..count {
            // SAFETY: an array of so many iovecs, by the caller's own request.
            let [base, len] = unsafe { (at as *const [usize; 2]).add(index).read() };
            match self.all(base, len, from.wrapping_add(sum)) {
                Ok(done) => {
                    sum += done;
                    if done < len {
                        break;
                    }
                }
                Err(errno) if sum == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(sum)
    }

    /// Reads or writes another process that is in `agent` mode, by a call that does not look through
    /// protections, such as those of pages whose bytes are on their way. How many bytes; 0: it cannot be
    /// used.
    fn directly(&self, at: usize, from: usize, len: usize) -> usize {
        let number = if self.writes { nr::PROCESS_VM_WRITEV } else { nr::PROCESS_VM_READV };
        if trapped::traps() { vm_call(number, self.process, at, from, len).unwrap_or(0) } else { 0 }
    }

    /// As the kernel does it with what is in memory: as much as there is, and EIO where there is nothing.
    fn all(&self, at: usize, len: usize, from: usize) -> Result<usize> {
        let number = if self.writes { nr::PWRITE64 } else { nr::PREAD64 };
        let mark = if self.process == sys::getpid() as usize { OF_OWN_MEMORY } else { 0 };
        let (mut done, mut tries) = (0, 0);
        loop {
            let (start, bytes) = (from.wrapping_add(done), (len - done).min(PIECE));
            let rest = [self.file, at.wrapping_add(done), bytes, start, mark, 0];
            let direct = if mark == 0 { self.directly(rest[1], start, bytes) } else { 0 };
            // SAFETY: the caller's own request, a part of it.
            let result = if direct > 0 { Ok(direct) } else { unsafe { sys::syscall(number, rest) } };
            match result {
                Ok(0) => return Ok(done),
                Ok(some) => {
                    done += some;
                    tries = 0;
                    if done >= len {
                        return Ok(done);
                    }
                }
                Err(EIO) if tries < TRIES && is_brought(self.process, from.wrapping_add(done)) => tries += 1,
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Brings a page. False: it cannot be read.
fn is_brought(process: usize, addr: usize) -> bool {
    let mut byte = 0u8;
    vm_call(nr::PROCESS_VM_READV, process, &raw mut byte as usize, addr, 1) == Ok(1)
}

fn vm_call(number: usize, process: usize, at: usize, addr: usize, len: usize) -> Result<usize> {
    let (here, there) = ([at, len], [addr, len]);
    let args = [process, &raw const here as usize, 1, &raw const there as usize, 1, 0];
    // SAFETY: the caller's own request, or a byte of the agent's.
    unsafe { sys::syscall(number, args) }
}

fn seek(file: usize, to: usize, whence: usize) -> Result<usize> {
    // SAFETY: no memory involved.
    unsafe { sys::syscall(nr::LSEEK, [file, to, whence, 0, 0, 0]) }
}

/// Whose memory this file is: /proc/PID/mem, or /proc/PID/task/TID/mem.
fn process_of(file: usize) -> Option<usize> {
    let mut path = [0u8; PATH_BYTES];
    let link = link_of(file);
    let args = [sys::AT_FDCWD, link.as_ptr() as usize, path.as_mut_ptr() as usize, path.len(), 0, 0];
    // SAFETY: the kernel reads a path, and writes into the buffer.
    let len = unsafe { sys::syscall(nr::READLINKAT, args) }.ok()?;
    let path = path.get(..len)?.strip_suffix(b"/mem")?;
    let digits = path.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, digits) = path.split_at_checked(path.len() - digits)?;
    if digits.is_empty()
        || !before.ends_with(b"/")
        || sys::file_system(file).is_none_or(|(kind, _)| kind != PROC_MAGIC)
    {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

/// /proc/self/fd/NUMBER, and a zero.
fn link_of(file: usize) -> [u8; PATH_BYTES] {
    let mut link = [0u8; PATH_BYTES];
    let mut unit = 1_000_000_000;
    let start = b"/proc/self/fd/";
    let mut places = link.iter_mut();
    start.iter().for_each(|byte| places.next().into_iter().for_each(|place| *place = *byte));
    // It is an int: the upper half of the register is not defined.
    let number = file as u32;
    while unit > 0 {
        if number >= unit || unit == 1 {
            places.next().into_iter().for_each(|place| *place = b'0' + (number / unit % 10) as u8);
        }
        unit /= 10;
    }
    link
}

/// Variadic in C: what the caller did not pass is whatever the registers hold, and the kernel ignores it.
#[unsafe(no_mangle)]
pub extern "C" fn ptrace(request: c_int, process: usize, addr: usize, data: usize) -> c_long {
    let request = request as usize;
    if !matches!(request, PTRACE_PEEKTEXT..=PTRACE_PEEKUSER) {
        return libc_result(trace([request, process, addr, data, 0, 0])) as c_long;
    }
    let mut word = 0 as c_long;
    match trace([request, process, addr, &raw mut word as usize, 0, 0]) {
        Ok(_) => {
            // Every word can be a result, so the caller looks at errno.
            libc_result(Err(0));
            word
        }
        Err(errno) => libc_result(Err(errno)) as c_long,
    }
}

/// The system call.
pub fn trace(args: [usize; 6]) -> Result<usize> {
    let [request, process, addr, ..] = args;
    // SAFETY: the caller's own request, passed through.
    let call = || unsafe { sys::syscall(nr::PTRACE, args) };
    let mut result = call();
    if !matches!(request, PTRACE_PEEKTEXT | PTRACE_PEEKDATA | PTRACE_POKETEXT | PTRACE_POKEDATA) {
        return result;
    }
    let last = addr.wrapping_add(size_of::<c_long>() - 1);
    let is_there = || is_brought(process, addr) && (addr / PAGE == last / PAGE || is_brought(process, last));
    let writes = matches!(request, PTRACE_POKETEXT | PTRACE_POKEDATA);
    if writes && result == Err(EIO) && trapped::traps() {
        // A page that is there and protected (`pages/write_protect.rs`) is brought by a call that writes.
        let word = args[3];
        let at = &raw const word as usize;
        if vm_call(nr::PROCESS_VM_WRITEV, process, at, addr, size_of::<usize>()) == Ok(size_of::<usize>()) {
            return Ok(0);
        }
    }
    let mut tries = 0;
    while matches!(result, Err(EIO)) && tries < TRIES && is_there() {
        result = call();
        tries += 1;
    }
    result
}
