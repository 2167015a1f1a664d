//! System calls of the C library that are made often do without the trap, which costs some µs: the
//! instruction before `syscall`, which says the call's number, becomes a jump to `enter.rs`.
//!
//! ```text
//!   mov $1, %eax ; syscall    ▶   jmp stub               ; syscall    5 bytes for 5
//!   xor %eax, %eax ; syscall  ▶   jmp padding (2 bytes)  ; syscall    padding, never run: jmp stub
//!   mov 16(%rsp), %rax ; syscall      as the first; and so where it is mov %r11, 8(%rsp) or mov 8(%rsp), %r9
//!
//!   stub:  the instruction that was there ; lea behind the syscall, %rcx ; jmp memspill_site
//! ```
//!
//! The last three make calls of many numbers, so it is asked for each call whether it is a plain one
//! (`hold.rs`). Through the first two of them glibc from 2.41 on makes all calls at which a thread can be
//! cancelled, in a process of one thread and in others; the third is its function `syscall`, through which
//! also the agent's makes what is no matter of its own (`open.rs`).
//!
//! The `syscall` stays. A thread that comes to it by another way is trapped; the call goes on behind it as
//! ever, so that what unwinds the stack finds the C library there; and a call that is to be trapped all the
//! same (it is large, or a signal came) jumps to it.
//!
//! *When.* Only while the process has one thread of its own and has not had another: then nobody is in the
//! middle of the bytes that change. A site that has trapped some times is rewritten; and before the first
//! thread is made, those that threads use most. So a process of some ms keeps its C library as it is, and
//! shares it. The child of a fork inherits what is rewritten, with a copy of each page of it.
//!
//! *Where.* Sites in or near the C library, not those of the program or of a JIT compiler. Only calls to
//! which nothing happens but what `hold.rs` does: in `agent` mode, none that change
//! mappings, for these are made alone in its gate.
//!
//! It is all for speed: what cannot be rewritten (/proc is not there, a seccomp filter was set) is trapped.

use crate::common::sync::{AtomicUsize, Ordering};
use core::arch::global_asm;
use core::cell::UnsafeCell;

use super::enter;
use crate::calls::hold::is_plain;
use crate::join::above::above;
use crate::machine::context::Registers;
use crate::machine::gadget;
use crate::machine::region;
use crate::machine::sys::{self, PAGE, nr};
use crate::programs::site::{JUMP_BYTES, jump};

/// A site that has trapped so often is rewritten: by then it is worth it.
const TRAPS: u32 = 8;
/// Sites that are counted at a time.
const SEEN: usize = 64;
const STUBS: usize = 256;
const STUB_BYTES: usize = 32;
/// The C library is not larger, nor are the libraries beside it.
const NEAR: usize = 4 << 20;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const NOP: u8 = 0x90;
/// Functions begin at multiples of it, so that no more is needed before one.
const PADDING_MAX: usize = 16;
/// The number of a site that makes different calls.
const ANY: usize = usize::MAX;
/// `mov %r11, 8(%rsp) ; syscall ; ret`, which is glibc's own assembly.
const CANCELLABLE: [u8; 8] = [0x4c, 0x89, 0x5c, 0x24, 0x08, SYSCALL[0], SYSCALL[1], 0xc3];
/// As far as a short jump reaches, for certain.
const SHORT: usize = 120;

global_asm!(
    ".pushsection .text.memspill_stubs, \"ax\", @progbits",
    ".hidden memspill_stubs",
    ".globl memspill_stubs",
    ".balign 64",
    "memspill_stubs:",
    ".skip {bytes}, 0xcc",
    ".popsection",
    bytes = const STUBS * STUB_BYTES,
);

unsafe extern "C" {
    fn memspill_stubs();
}

#[derive(Clone, Copy)]
struct Seen {
    site: usize,
    /// The number of the call that trapped there last.
    number: usize,
    traps: u32,
}

#[derive(Clone, Copy)]
struct Stub {
    /// Behind its syscall.
    next: usize,
    /// Or `ANY`.
    number: usize,
    /// The jump in the padding that leads to it, or 0.
    padding: usize,
}

struct Sites {
    seen: UnsafeCell<[Seen; SEEN]>,
    stubs: UnsafeCell<[Stub; STUBS]>,
    made: AtomicUsize,
    /// 0, or why nothing is rewritten any more.
    /// Padding that has room for one more jump: from, to.
    padding: UnsafeCell<(usize, usize)>,
}

// SAFETY: all of it is changed by the handler of the only thread of the process.
unsafe impl Sync for Sites {}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data")]
static SITES: Sites = Sites {
    seen: UnsafeCell::new([Seen { site: 0, number: 0, traps: 0 }; SEEN]),
    stubs: UnsafeCell::new([Stub { next: 0, number: 0, padding: 0 }; STUBS]),
    made: AtomicUsize::new(0),
    padding: UnsafeCell::new((0, 0)),
};

/// Not 0: nothing is rewritten any more, for one of these reasons.
#[unsafe(link_section = ".data.hot")]
static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Why nothing is rewritten any more: there are other threads, or were.
const HAS_THREADS: usize = 1;
/// It cannot be done, or a filter of the program's may end the process for it.
pub const FORBIDDEN: usize = 2;

/// From now on all stays as it is.
pub fn stop(why: usize) {
    STOPPED.fetch_or(why, Ordering::Relaxed);
}

/// In the child of a fork, which has one thread.
pub fn forget_threads() {
    STOPPED.fetch_and(!HAS_THREADS, Ordering::Relaxed);
}

/// Has a thread that stands in a stub, or in the padding, stand before its call. False: it stands elsewhere.
pub fn is_left(regs: &mut Registers) -> bool {
    let Some(found) = stub_at(regs.rip) else { return false };
    regs.rip = found.next - SYSCALL.len();
    if found.number == ANY {
        // By the jump, again: what is done before the call may be done twice.
        regs.rip -= JUMP_BYTES;
    } else {
        regs.rax = found.number;
    }
    true
}

fn stub_at(at: usize) -> Option<&'static Stub> {
    let made = SITES.made.load(Ordering::Acquire);
    // SAFETY: the entries were written before they were counted, and are not changed any more.
    let stubs = unsafe { core::slice::from_raw_parts(SITES.stubs.get().cast::<Stub>(), made.min(STUBS)) };
    let index = at.wrapping_sub(stub(0)) / STUB_BYTES;
    stubs.get(index).or_else(|| stubs.iter().find(|stub| stub.padding != 0 && stub.padding == at))
}

fn stub(index: usize) -> usize {
    memspill_stubs as *const () as usize + index * STUB_BYTES
}

/// A call has trapped, and what follows it is at `next`.
pub fn trapped(number: usize, next: usize) {
    if STOPPED.load(Ordering::Relaxed) != 0 || !is_plain(number) || !is_near(next) {
        return;
    }
    let site = next - SYSCALL.len();
    // SAFETY: there is one thread, and its signals are blocked.
    let seen = unsafe { &mut *SITES.seen.get() };
    let Some(seen) = seen.get_mut((site >> 1) % SEEN) else { return };
    if seen.site != site {
        *seen = Seen { site, number, traps: 0 };
    }
    seen.number = number;
    seen.traps += 1;
    if seen.traps == TRAPS
        && let Some(code) = Code::open()
    {
        code.rewrite(site, number);
    }
}

/// The first thread is about to be made: what it will use is rewritten now, or never.
pub fn before_first_thread() {
    if STOPPED.load(Ordering::Relaxed) != 0 {
        return;
    }
    if let Some(code) = Code::open() {
        // SAFETY: there is one thread, and its signals are blocked.
        for seen in unsafe { &*SITES.seen.get() } {
            // More often than at the program's start alone.
            if (2..TRAPS).contains(&seen.traps) {
                code.rewrite(seen.site, seen.number);
            }
        }
        (above().each_function)(&mut |function| code.rewrite_function(function));
        for function in [
            sys::weak!("recv"),
            sys::weak!("recvfrom"),
            sys::weak!("recvmsg"),
            sys::weak!("send"),
            sys::weak!("sendto"),
            sys::weak!("sendmsg"),
            sys::weak!("poll"),
            sys::weak!("epoll_wait"),
            sys::weak!("epoll_ctl"),
            sys::weak!("sched_yield"),
            sys::weak!("clock_nanosleep"),
            sys::weak!("gettid"),
            sys::weak!("mprotect"),
        ] {
            code.rewrite_function(function);
        }
        code.rewrite_around(sys::weak!("pthread_mutex_lock"));
    }
    stop(HAS_THREADS);
}

/// May an instruction that stands before a syscall whose number was set before be copied? `mov N(%rsp),
/// %rax`, `mov %r11, N(%rsp)`, `mov N(%rsp), %r9`. Each does the same wherever it is, and when it is done
/// again: it does not know its own place, and leaves the stack pointer and what it reads as they are.
fn may_be_copied(instruction: [u8; JUMP_BYTES]) -> bool {
    matches!(
        instruction,
        [0x48, 0x8b, 0x44, 0x24, _] | [0x4c, 0x89, 0x5c, 0x24, _] | [0x4c, 0x8b, 0x4c, 0x24, _]
    )
}

fn is_near(at: usize) -> bool {
    let function = sys::weak!("getppid");
    function != 0 && at.abs_diff(function) < NEAR
}

/// The code of this process, as an open file.
struct Code(usize);

impl Code {
    /// None: it may not be written, and is not asked for again.
    fn open() -> Option<Self> {
        const O_RDWR: usize = 2;
        let path = c"/proc/self/mem".as_ptr() as usize;
        // SAFETY: the kernel reads the path.
        let fd = unsafe { gadget::call(nr::OPENAT, [0, path, O_RDWR | sys::O_CLOEXEC, 0, 0, 0]) };
        if fd.is_err() {
            stop(FORBIDDEN);
        }
        Some(Self(fd.ok()?))
    }

    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let args = [self.0, bytes.as_ptr() as usize, bytes.len(), at, 0, 0];
        // SAFETY: the kernel reads the bytes. The written bytes are code that nobody is in the middle of.
        let written = unsafe { gadget::call(nr::PWRITE64, args) } == Ok(bytes.len());
        if !written {
            stop(FORBIDDEN);
        }
        written
    }

    /// Not across two pages, of which the second may not be had.
    fn write_jump(&self, at: usize, to: usize) -> Option<()> {
        let is_within = at % PAGE + JUMP_BYTES <= PAGE;
        (is_within && self.write(at, &jump(at, to).ok()?)).then_some(())
    }

    /// As `rewrite`, of a call whose number the code says, or does not.
    fn rewrite_unknown(&self, site: usize) {
        let number = match gadget::read::<[u8; JUMP_BYTES]>(site.wrapping_sub(JUMP_BYTES)) {
            Some([0xb8, low, high, 0, 0]) => usize::from(low) | usize::from(high) << 8,
            Some([_, _, _, 0x31, 0xc0]) => 0,
            Some(instruction) if may_be_copied(instruction) => nr::FUTEX,
            _ => return,
        };
        self.rewrite(site, number);
    }

    /// The sites in the first bytes of a function.
    fn rewrite_function(&self, function: usize) {
        const BYTES: usize = 128;
        /// The instruction that follows each system call of the C library that may fail: `cmp $-4096, %rax`,
        /// or -4095.
        const COMPARE: [[u8; 6]; 2] =
            [[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff], [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]];
        if function == 0 || !is_near(function) {
            return;
        }
        let Some(code) = gadget::read::<[u8; BYTES]>(function) else { return };
        for (at, window) in code.windows(SYSCALL.len() + COMPARE[0].len()).enumerate() {
            if window.starts_with(&SYSCALL) && COMPARE.iter().any(|compare| window.ends_with(compare)) {
                self.rewrite_unknown(function + at);
            }
        }
    }

    /// The sites of futex, and that of calls at which a thread can be cancelled, which have no name: they lie
    /// where the C library's functions about threads do.
    fn rewrite_around(&self, function: usize) {
        const AROUND: usize = 40 << 10;
        const CHUNK: usize = 512;
        let futex = [0xb8, nr::FUTEX as u8, 0, 0, 0, SYSCALL[0], SYSCALL[1]];
        let whole = CANCELLABLE.len();
        if function == 0 || !is_near(function) {
            return;
        }
        let mut at = function.saturating_sub(AROUND);
        while at < function + AROUND {
            // Memory that is not there is no code.
            let code = gadget::read::<[u8; CHUNK]>(at).unwrap_or([0; CHUNK]);
            for (offset, window) in code.windows(whole).enumerate() {
                let is_site = match window.first() {
                    Some(0xb8) => window.starts_with(&futex),
                    Some(0x4c) => window == CANCELLABLE,
                    _ => false,
                };
                if is_site {
                    self.rewrite(at + offset + JUMP_BYTES, nr::FUTEX);
                }
            }
            at += CHUNK - (whole - 1);
        }
    }

    fn rewrite(&self, site: usize, number: usize) -> Option<()> {
        // The evictor runs the agent's own code, and has no block. Two calls are `malloc.rs`'s to rewrite.
        if !is_plain(number) || matches!(number, nr::BRK | nr::MMAP) || region::is_own_code(site) {
            return None;
        }
        let [prefix, before @ ..] = gadget::read::<[u8; 8]>(site.checked_sub(6)?)?;
        if let Some((first, behind)) = before.split_first_chunk::<JUMP_BYTES>()
            && may_be_copied(*first)
            && behind == SYSCALL
        {
            let stub = self.make_stub(site, ANY, *first, 0)?;
            return self.write_jump(site - JUMP_BYTES, stub);
        }
        // It is a part of the instruction then, which has another register.
        if matches!(prefix, 0x40..=0x4f) {
            return None;
        }
        let sets_number = [0xb8, number as u8, (number >> 8) as u8, 0, 0];
        if before.starts_with(&sets_number) && before.ends_with(&SYSCALL) {
            let stub = self.make_stub(site, number, sets_number, 0)?;
            return self.write_jump(site - JUMP_BYTES, stub);
        }
        if number == 0 && matches!(before, [_, _, _, 0x31, 0xc0, 0x0f, 0x05]) {
            let (from, to) = self.padding_near(site)?;
            let stub = self.make_stub(site, number, sets_number, from)?;
            let short = i8::try_from(from as isize - site as isize).ok()?;
            // SAFETY: there is one thread.
            unsafe { *SITES.padding.get() = (from + JUMP_BYTES, to) };
            // The rest of an instruction is one no more; a second site may need it (read has two).
            let rest = [NOP; PADDING_MAX];
            let rest = rest.get(..to - from - JUMP_BYTES)?;
            if !rest.is_empty() && !self.write(from + JUMP_BYTES, rest) {
                return None;
            }
            self.write_jump(from, stub)?;
            return self.write(site - 2, &[0xeb, short as u8]).then_some(());
        }
        None
    }

    /// `first`: the instruction that is done there in place of that before the site.
    fn make_stub(
        &self,
        site: usize,
        number: usize,
        first: [u8; JUMP_BYTES],
        padding: usize,
    ) -> Option<usize> {
        let index = SITES.made.load(Ordering::Relaxed);
        if index >= STUBS {
            return None;
        }
        let (at, next) = (stub(index), site + SYSCALL.len());
        let mut code = [0xcc; STUB_BYTES];
        let behind = i32::try_from(next as isize - (at + 12) as isize).ok()?.to_le_bytes();
        let parts: [&[u8]; 4] = [&first, &[0x48, 0x8d, 0x0d], &behind, &jump(at + 12, enter::site()).ok()?];
        for (place, byte) in code.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        if !self.write(at, &code) {
            return None;
        }
        // SAFETY: there is one thread, and the index is below STUBS.
        unsafe { SITES.stubs.get().cast::<Stub>().add(index).write(Stub { next, number, padding }) };
        SITES.made.store(index + 1, Ordering::Release);
        Some(at)
    }

    /// Room for a jump that a short one at the site reaches: behind a `ret` to which a system call leads, up
    /// to where the next instruction is aligned.
    fn padding_near(&self, site: usize) -> Option<(usize, usize)> {
        // SAFETY: there is one thread.
        let kept = unsafe { *SITES.padding.get() };
        let has_room = |&(from, to): &(usize, usize)| {
            from + JUMP_BYTES <= to && from.abs_diff(site) < SHORT && from % PAGE + JUMP_BYTES <= PAGE
        };
        // Another library may be there by now.
        let is_padding = |&(from, _): &(usize, usize)| {
            gadget::read::<[u8; 16]>(from).is_some_and(|code| nops(&code) >= JUMP_BYTES)
        };
        if has_room(&kept) && is_padding(&kept) {
            return Some(kept);
        }
        let code = gadget::read::<[u8; 64]>(site)?;
        // syscall ; cmp $-4096, %rax ; ja ; ret
        let [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, _, 0xc3, ..] = code else { return None };
        const BEHIND: usize = 11;
        let len = nops(code.get(BEHIND..)?).min(PADDING_MAX);
        let padding = (site + BEHIND, site + BEHIND + len);
        (padding.1.is_multiple_of(16) && has_room(&padding)).then_some(padding)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        let _ = unsafe { gadget::call(nr::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// How many bytes of padding the code begins with, as assemblers make it.
fn nops(mut code: &[u8]) -> usize {
    let before = code.len();
    loop {
        let len = match code {
            [0x90, ..] => 1,
            [0x66, 0x90, ..] => 2,
            [0x0f, 0x1f, 0x00, ..] => 3,
            [0x0f, 0x1f, 0x40, 0x00, ..] => 4,
            [0x0f, 0x1f, 0x44, 0x00, 0x00, ..] => 5,
            [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, ..] => 6,
            [0x0f, 0x1f, 0x80, 0, 0, 0, 0, ..] => 7,
            [0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0, ..] => 8,
            [0x66, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0, ..] => 9,
            [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0, ..] => 10,
            [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0, ..] => 11,
            _ => return before - code.len(),
        };
        code = code.get(len..).unwrap_or_default();
    }
}
