//! The evictor gives up ids, capabilities and system calls before the program goes on.
//!
//! The evictor is a thread of the program that the program does not know. When the program drops root
//! (setresuid, capset), enters a sandbox (seccomp, setns, chroot) or is taken over, this thread would stay
//! behind as it was, on a stack that the program can write. So it keeps nothing that is worth taking:
//!
//! | given up     | how                                   | where that is not allowed                       |
//! |--------------|---------------------------------------|-------------------------------------------------|
//! | ids, groups  | `ID` for all of them, no other groups | stays: nothing to drop without CAP_SETUID, or a |
//! |              |                                       | supervisor that could not read it then          |
//! | capabilities | capset: none                          | always allowed                                  |
//! | system calls | a seccomp filter, below               | stays: a sandbox without filters holds it too   |
//!
//! The filter lets through what `evictor.rs` calls, with the arguments that it uses: messages on its socket,
//! UFFDIO_MOVE, emptying and unlocking staging, MADV_POPULATE_READ and _WRITE, futexes, on
//! which CPU it runs, the end of this process. In `agent` mode it lets through the calls that
//! `pages/` needs: reading and writing its own memory by a descriptor, mprotect, guards, and filling and
//! registering by a userfaultfd of the process's own. Anything else kills the process.
//!
//! `ID` is a number that nobody has: were it the number of a user, such as nobody's, all that runs as that
//! user could attach to this thread, and so to the program. Changing it makes the kernel mark the whole
//! process as not dumpable; the mark is taken off again, for the program itself has changed no id.

use crate::common::protocol::STAGING_PAGES;
use crate::machine::region::EvictorBlock;
use crate::machine::seccomp::{
    ADD_X, ARCH, ARCH_X86_64, IF_AT_LEAST, IF_EQUAL, IF_GREATER, Instruction, LOAD, MODE_FILTER, NUMBER,
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, RET_ALLOW, RET_KILL_PROCESS, RETURN, SET_MODE_FILTER, TO_X, high,
    low,
};
use crate::machine::sys::{self, PAGE, nr};
use crate::machine::uffd::{UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE};

/// Above all ranges that users, services and containers get (2^31 to 2^32 - 3 is nobody's).
const ID: usize = 4_000_000_000;

const PR_GET_DUMPABLE: usize = 3;
const PR_SET_DUMPABLE: usize = 4;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// The filter needs no protection from speculation, which would slow this thread down: it keeps no secret.
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: usize = 4;

/// Called by the evictor itself, before anything else. `keeps_ids`: the supervisor has no CAP_SYS_PTRACE, and
/// could not read the memory of another user's thread.
pub fn drop_rights(keeps_ids: bool) {
    let header = [CAPABILITY_VERSION_3, 0];
    let none = [0u32; 6];
    // SAFETY: ids and capabilities of the calling thread alone; the kernel reads the two arrays.
    unsafe {
        let dumpable = sys::syscall(nr::PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0]);
        if !keeps_ids {
            let _ = sys::syscall(nr::SETGROUPS, [0; 6]);
            let _ = sys::syscall(nr::SETRESGID, [ID, ID, ID, 0, 0, 0]);
            let _ = sys::syscall(nr::SETRESUID, [ID, ID, ID, 0, 0, 0]);
        }
        let _ = sys::syscall(nr::CAPSET, [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0]);
        if dumpable == Ok(1) {
            let _ = sys::syscall(nr::PRCTL, [PR_SET_DUMPABLE, 1, 0, 0, 0, 0]);
        }
    }
}

/// Called by the evictor itself, when it has no other preparation left.
pub fn install_filter(block: &EvictorBlock) {
    let filter = Filter::new(block.staging, block.uffd < 0);
    #[repr(C)]
    struct Program {
        len: u16,
        code: *const Instruction,
    }
    let program = Program { len: filter.len as u16, code: filter.code.as_ptr() };
    let program = &raw const program as usize;
    // SAFETY: the kernel reads the program; the filter is for the calling thread alone.
    unsafe {
        let _ = sys::syscall(nr::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]);
        let args = [SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, program, 0, 0, 0];
        if sys::syscall(nr::SECCOMP, args).is_err() {
            let _ = sys::syscall(nr::PRCTL, [PR_SET_SECCOMP, MODE_FILTER, program, 0, 0, 0]);
        }
    }
}

const INSTRUCTIONS_MAX: usize = 168;
/// The ioctl that tells which mapping is where.
const PROCMAP_QUERY: u32 = 0xc068_6611;
/// The ioctl that tells which pages are there.
const PAGEMAP_SCAN: u32 = 0xc060_6610;

struct Filter {
    code: [Instruction; INSTRUCTIONS_MAX],
    len: usize,
}

impl Filter {
    fn new(staging: usize, pages_itself: bool) -> Filter {
        let mut filter = Filter { code: [Instruction::NONE; INSTRUCTIONS_MAX], len: 0 };
        // As a filter is installed, the kernel runs it for each number of a call, to know which calls are
        // always allowed. It gives up where an argument is loaded. This filter is installed far more often
        // than that is worth.
        filter.push(LOAD, 0, 0, low(0));
        filter.push(LOAD, 0, 0, ARCH);
        filter.push(IF_EQUAL, 1, 0, ARCH_X86_64);
        filter.push(RETURN, 0, 0, RET_KILL_PROCESS);
        filter.push(LOAD, 0, 0, NUMBER);
        for call in [nr::RECVFROM, nr::SENDTO, nr::FUTEX, nr::PPOLL, nr::GETPID] {
            filter.allow(call);
        }
        for call in [nr::EXIT, nr::EXIT_GROUP, nr::RESTART_SYSCALL] {
            filter.allow(call);
        }
        if pages_itself {
            // The descriptors that there are were settled before.
            for call in [nr::PREAD64, nr::PWRITE64, nr::MPROTECT, nr::FTRUNCATE] {
                filter.allow(call);
            }
            for place in [0, sys::MAP_FIXED_NOREPLACE] {
                let flags = sys::MAP_SHARED | sys::MAP_NORESERVE | place;
                filter.allow_with(nr::MMAP, &[(3, flags as u32)]);
            }
            for request in [PROCMAP_QUERY, PAGEMAP_SCAN] {
                filter.allow_with(nr::IOCTL, &[(1, request)]);
            }
            for request in [UFFDIO_REGISTER, UFFDIO_COPY, UFFDIO_ZEROPAGE, UFFDIO_WRITEPROTECT] {
                filter.allow_with(nr::IOCTL, &[(1, request as u32)]);
            }
            for advice in [
                sys::MADV_GUARD_INSTALL,
                sys::MADV_GUARD_REMOVE,
                sys::MADV_DONTNEED,
                sys::MADV_DONTNEED_LOCKED,
            ] {
                filter.allow_with(nr::MADVISE, &[(2, advice as u32)]);
            }
        }
        filter.allow_with(nr::IOCTL, &[(1, UFFDIO_MOVE as u32)]);
        // On which CPU it runs itself.
        for call in [nr::SCHED_GETAFFINITY, nr::SCHED_SETAFFINITY] {
            filter.allow_with(call, &[(0, 0)]);
        }
        filter.allow_with(nr::KILL, &[(0, sys::getpid()), (1, sys::SIGKILL as u32)]);
        for advice in [sys::MADV_POPULATE_READ, sys::MADV_POPULATE_WRITE] {
            filter.allow_with(nr::MADVISE, &[(2, advice as u32)]);
        }
        filter.check_staging(staging);
        filter
    }

    fn push(&mut self, code: u16, yes: u8, no: u8, value: u32) {
        if let Some(place) = self.code.get_mut(self.len) {
            *place = Instruction { code, yes, no, value };
            self.len += 1;
        }
    }

    /// The call's number is loaded; it is loaded again where the call goes on to the next rule.
    fn allow(&mut self, call: usize) {
        self.push(IF_EQUAL, 0, 1, call as u32);
        self.push(RETURN, 0, 0, RET_ALLOW);
    }

    /// Allowed if these arguments have these values; only the lower 32 bits are compared, which is all that
    /// these arguments have. Else the next rule decides.
    fn allow_with(&mut self, call: usize, arguments: &[(u32, u32)]) {
        let body = 2 * arguments.len() as u8;
        self.push(IF_EQUAL, 0, body + 1, call as u32);
        for (i, (argument, value)) in arguments.iter().enumerate() {
            self.push(LOAD, 0, 0, low(*argument));
            self.push(IF_EQUAL, 0, body - 2 * i as u8 - 1, *value);
        }
        self.push(RETURN, 0, 0, RET_ALLOW);
        self.push(LOAD, 0, 0, NUMBER);
    }

    /// The remaining calls may only be made on staging, which does not cross a border of 4 GiB (`region.rs`).
    fn check_staging(&mut self, staging: usize) {
        let end = staging + STAGING_PAGES as usize * PAGE;
        // Each of these jumps over the others, and then over the refusal.
        for (i, call) in [nr::MADVISE, nr::MUNLOCK, nr::MPROTECT].into_iter().enumerate() {
            self.push(IF_EQUAL, 3 - i as u8, 0, call as u32);
        }
        self.push(RETURN, 0, 0, RET_KILL_PROCESS);
        // The distance to the refusal at the end is counted from the instruction that follows.
        self.push(LOAD, 0, 0, high(0));
        self.push(IF_EQUAL, 0, 10, (staging >> 32) as u32);
        self.push(LOAD, 0, 0, high(1));
        self.push(IF_EQUAL, 0, 8, 0);
        self.push(LOAD, 0, 0, low(1));
        self.push(IF_GREATER, 6, 0, (end - staging) as u32);
        self.push(TO_X, 0, 0, 0);
        self.push(LOAD, 0, 0, low(0));
        self.push(IF_AT_LEAST, 0, 3, staging as u32);
        // Without this the sum could exceed 32 bits, and be small.
        self.push(IF_GREATER, 2, 0, end as u32);
        self.push(ADD_X, 0, 0, 0);
        // An end at a border of 4 GiB would be 0 here: staging ends before it.
        self.push(IF_GREATER, 0, 1, end as u32);
        self.push(RETURN, 0, 0, RET_KILL_PROCESS);
        self.push(RETURN, 0, 0, RET_ALLOW);
    }
}
