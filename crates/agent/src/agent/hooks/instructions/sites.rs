//! The places in a static program that make calls which concern us, and the stubs to which they jump (the
//! picture is in `mod.rs`).

use core::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
use core::ops::ControlFlow;

use super::program::Program;
use crate::machine::sys::{self, PAGE, Result, nr};
use crate::programs::exec::EXECVE;
use crate::programs::site;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const NOP: u8 = 0x90;
/// More than is ever replaced.
const REPLACED_MAX: usize = 8;
/// `mov $N, %eax`, and the same with %rax.
const NUMBER_BYTES: usize = 5;
const LONG_NUMBER_BYTES: usize = 7;
pub const FORK: u32 = 57;
pub const CLONE: u32 = 56;
pub const PRCTL: u32 = 157;
const SECCOMP: u32 = 317;
/// `mov 8(%rsp), %rax`.
const OF_OLD_GO: [u8; 5] = [0x48, 0x8b, 0x44, 0x24, 0x08];
/// `mov 8(%rsp), %r9`.
const OF_GLIBC: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
/// `mov %rsi, %r10 ; mov %rdi, %rdx ; mov %rcx, %rsi ; mov %rbx, %rdi`, of which the last two are replaced.
const OF_GO: [u8; 12] = [0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf];
const OF_GO_REPLACED: usize = 6;

const STUB_BYTES: usize = 64;
/// All in one page. More places than that has no program.
const STUBS: usize = PAGE / STUB_BYTES;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exec,
    Fork,
    Clone,
    /// It may set a filter of system calls.
    Filter,
    /// It makes calls of any number.
    Any,
}

/// From here on, in so many bytes before the syscall, stands what is replaced.
#[derive(Clone, Copy)]
struct Site {
    syscall: usize,
    bytes: usize,
    kind: Kind,
}

impl Site {
    /// `code` ends where a `syscall` begins, at that address.
    fn before(code: &[u8], syscall: usize) -> Option<Site> {
        let site = |bytes, kind| Some(Site { syscall, bytes, kind });
        match *code.last_chunk::<NUMBER_BYTES>()? {
            OF_OLD_GO | OF_GLIBC => return site(OF_GLIBC.len(), Kind::Any),
            _ if code.ends_with(&OF_GO) => return site(OF_GO_REPLACED, Kind::Any),
            _ => {}
        }
        let (before, bytes) = code.split_last_chunk::<4>()?;
        let bytes_replaced = match *before {
            [.., 0x48, 0xc7, 0xc0] => LONG_NUMBER_BYTES,
            [ref before @ .., 0xb8] if !is_end_of_longer(before) => NUMBER_BYTES,
            _ => return None,
        };
        match u32::from_le_bytes(*bytes) {
            number if number as usize == EXECVE => site(bytes_replaced, Kind::Exec),
            FORK => site(bytes_replaced, Kind::Fork),
            CLONE => site(bytes_replaced, Kind::Clone),
            PRCTL | SECCOMP => site(bytes_replaced, Kind::Filter),
            _ => None,
        }
    }

    fn start(&self) -> usize {
        self.syscall - self.bytes
    }

    /// What stands there.
    fn replaced(&self) -> &'static [u8] {
        // SAFETY: the site is code of the program.
        unsafe { core::slice::from_raw_parts(self.start() as *const u8, self.bytes) }
    }
}

/// Is what looks like `mov $N, %eax`, behind these bytes, the end of a longer instruction? It may be one for
/// another register, with a prefix that says so (REX.B); or `movl $N, -72(...)`.
fn is_end_of_longer(before: &[u8]) -> bool {
    matches!(before, [.., 0x41 | 0x43 | 0x45 | 0x47 | 0x49 | 0x4b | 0x4d | 0x4f])
        || matches!(before, [.., 0xc7, 0x40..=0x43 | 0x45..=0x47] | [.., 0xc7, 0x44, _])
}

/// Instructions that lie at `at`.
struct Stub {
    at: usize,
    bytes: [u8; STUB_BYTES],
    len: usize,
}

impl Stub {
    fn of(site: &Site, at: usize, target: usize) -> Stub {
        let mut stub = Stub { at, bytes: [0xcc; STUB_BYTES], len: 0 };
        stub.push(site.replaced());
        match site.kind {
            Kind::Exec | Kind::Fork | Kind::Filter => {}
            // test $CLONE_VM | CLONE_VFORK, %edi, or a stack of the child's own: not a fork.
            Kind::Clone => {
                stub.push(&[0xf7, 0xc7, 0, 0x41, 0, 0]);
                stub.if_not_zero(site.syscall);
                // test %rsi, %rsi
                stub.push(&[0x48, 0x85, 0xf6]);
                stub.if_not_zero(site.syscall);
            }
            Kind::Any => {
                // cmp $317, %rax is the last: from behind the others it is 6 + 6 bytes to what follows, and
                // from the first 8 more.
                for (number, bytes_to_go) in [(EXECVE as u32, 20), (PRCTL, 12)] {
                    stub.compare(number);
                    // je
                    stub.push(&[0x74, bytes_to_go]);
                }
                stub.compare(SECCOMP);
                stub.if_not_zero(site.syscall);
            }
        }
        // mov $behind, %rcx ; mov $target, %r11 ; jmp *%r11
        stub.push(&[0x48, 0xb9]);
        stub.push(&(site.syscall + SYSCALL.len()).to_le_bytes());
        stub.push(&[0x49, 0xbb]);
        stub.push(&target.to_le_bytes());
        stub.push(&[0x41, 0xff, 0xe3]);
        stub
    }

    fn push(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len).zip(bytes) {
            *place = *byte;
        }
        self.len += bytes.len();
    }

    /// cmp $number, %rax
    fn compare(&mut self, number: u32) {
        self.push(&[0x48, 0x3d]);
        self.push(&number.to_le_bytes());
    }

    /// jnz, which is jne.
    fn if_not_zero(&mut self, target: usize) {
        self.push(&[0x0f, 0x85]);
        let behind = self.at + self.len + size_of::<i32>();
        // In reach, by where the page of stubs was put.
        self.push(&(target.wrapping_sub(behind) as i32).to_le_bytes());
    }
}

/// As `crate::hooks::instructions::place`. `target`: to where a stub jumps with a call that concerns us.
pub fn place(entry: usize, target: usize) {
    let Some(program) = Program::of(entry) else { return };
    let mut sites = [Site { syscall: 0, bytes: 0, kind: Kind::Any }; STUBS];
    let mut count = 0;
    program.each_code(|start, code| {
        each_syscall(code, |at| {
            let site = code.get(..at).and_then(|before| Site::before(before, start + at));
            if let Some(site) = site
                && let Some(place) = sites.get_mut(count)
            {
                *place = site;
                count += 1;
            }
            // Nothing else in a program of Go's own makes these calls, and it may be large.
            let is_all = !program.has_c_library && site.is_some_and(|site| site.bytes == OF_GO_REPLACED);
            if is_all { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    rewrite_all(sites.get(..count).unwrap_or_default(), program.lowest, target);
}

/// Sites that cannot be rewritten stay as they are.
fn rewrite_all(sites: &[Site], lowest: usize, target: usize) {
    if sites.is_empty() {
        return;
    }
    let Some(page) = map_below(lowest) else { return };
    let is_near = |site: &Site| site.syscall.abs_diff(page) < i32::MAX as usize - PAGE;
    let is_ready = sites.iter().all(is_near) && make_stubs(sites, page, target).is_ok();
    let stubs = (page..).step_by(STUB_BYTES);
    let rewritten = sites.iter().zip(stubs).filter(|(site, stub)| is_ready && rewrite(site, *stub)).count();
    if rewritten == 0 {
        // No site leads there.
        // SAFETY: the page is ours.
        let _ = unsafe { sys::syscall(nr::MUNMAP, [page, PAGE, 0, 0, 0, 0]) };
    }
}

fn make_stubs(sites: &[Site], page: usize, target: usize) -> Result<usize> {
    const PROT_EXEC: usize = 4;
    for (index, site) in sites.iter().enumerate() {
        let stub = Stub::of(site, page + index * STUB_BYTES, target);
        // SAFETY: within the page, which is new, and writable.
        unsafe { (stub.at as *mut [u8; STUB_BYTES]).write(stub.bytes) };
    }
    // SAFETY: the page is ours.
    unsafe { sys::syscall(nr::MPROTECT, [page, PAGE, sys::PROT_READ | PROT_EXEC, 0, 0, 0]) }
}

fn rewrite(site: &Site, stub: usize) -> bool {
    let Ok(jump) = site::jump(site.start(), stub) else { return false };
    let mut code = [NOP; REPLACED_MAX];
    code.iter_mut().zip(jump).for_each(|(place, byte)| *place = byte);
    site::write(site.start(), code.get(..site.bytes).unwrap_or_default()).is_ok()
}

/// A page for the stubs, near below the program: what lies above it grows.
fn map_below(lowest: usize) -> Option<usize> {
    const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
    const STEP: usize = 16 * PAGE;
    const TRIES: usize = 256;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    (1..=TRIES).map_while(|steps| lowest.checked_sub(steps * STEP)).find_map(|at| {
        // SAFETY: a new mapping where there is none disturbs nobody.
        let mapped = unsafe { sys::syscall(nr::MMAP, [at, PAGE, prot, flags, usize::MAX, 0]) }.ok()?;
        if mapped == at {
            return Some(at);
        }
        // A kernel that does not know the flag has put it elsewhere.
        // SAFETY: it was just mapped.
        let _ = unsafe { sys::syscall(nr::MUNMAP, [mapped, PAGE, 0, 0, 0, 0]) };
        None
    })
}

/// Calls `each` with the index of each pair of bytes that is a `syscall`, until it says that it is all.
fn each_syscall(code: &[u8], mut each: impl FnMut(usize) -> ControlFlow<()>) -> ControlFlow<()> {
    const AT_ONCE: usize = 16;
    let mut from = 0;
    while from + AT_ONCE < code.len() {
        // SAFETY: 17 bytes are there from `from` on. All processors of this kind have these instructions.
        let mut found = unsafe {
            let at = code.as_ptr().add(from);
            let (first, second) = (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(1).cast()));
            let [zero_f, zero_5] = SYSCALL;
            _mm_movemask_epi8(_mm_and_si128(
                _mm_cmpeq_epi8(first, _mm_set1_epi8(zero_f as i8)),
                _mm_cmpeq_epi8(second, _mm_set1_epi8(zero_5 as i8)),
            ))
        };
        while found != 0 {
            each(from + found.trailing_zeros() as usize)?;
            found &= found - 1;
        }
        from += AT_ONCE;
    }
    let rest = code.get(from..).unwrap_or_default();
    for (index, _) in rest.windows(2).enumerate().filter(|(_, pair)| *pair == SYSCALL) {
        each(from + index)?;
    }
    ControlFlow::Continue(())
}
