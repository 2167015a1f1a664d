//! Resource limits (setrlimit(2)): memspill takes for itself what the hard ones give, the target has its own back.
//!
//! ```text
//!   raise ─▶ soft limits up to the hard ones, SIGXFSZ ignored ─▶ devices, threads, ... ─▶ restore, in the target before exec
//! ```
//!
//! What is too small even so is said in one line with what mends it: at the start where it is known (`refusal`), else with the
//! error that it has led to (`explained`).
//!
//! Under `vm.overcommit_memory=2` what is not promised to others is a limit like any other (`room_bytes`): the reservations
//! here and the steps in which the target's malloc grows are made to fit.
//!
//! What it does not do: look at cgroups, whose limits are on what is used and not on what is reserved.
#![allow(unsafe_code, reason = "the disposition of a signal")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Those under which memspill itself lives. Not the size of core dumps, and no priorities.
const RAISED: [Resource; 9] = [
    Resource::As,
    Resource::Data,
    Resource::Fsize,
    Resource::Nofile,
    Resource::Nproc,
    Resource::Stack,
    Resource::Cpu,
    Resource::Memlock,
    Resource::Sigpending,
];

/// What memspill itself has to be able to reserve: tables of slots, threads' stacks and heaps, a part of the pool.
const LEAST_BYTES: u64 = 576 << 20;

/// Below this a limit on the size of files makes a swap file of no use.
pub const FILE_BYTES_MIN: u64 = 64 << 20;

/// malloc's steps in the target: large, so that new heap is registered before it is used, and seldom.
const TOP_PAD_BYTES: u64 = 64 << 20;
/// What glibc takes by itself.
const TOP_PAD_BYTES_MIN: u64 = 128 << 10;
/// A process has several heaps, one for each thread perhaps: a step is so small a part of what it may have.
const TOP_PAD_PARTS: u64 = 64;

/// Of what may be reserved, the part that tables may take.
const TABLES_PARTS: u64 = 8;
/// What the kernel still promises is for all processes of the machine: a run counts on a part of it.
const COMMIT_PARTS: u64 = 16;

/// What memspill was started with.
#[derive(Clone, Copy)]
pub struct Limits {
    given: [(Resource, Rlimit); RAISED.len()],
    on_file_size: libc::sighandler_t,
}

impl Limits {
    /// To be called before anything is opened.
    pub fn raise() -> Limits {
        let given = RAISED.map(|resource| (resource, getrlimit(resource)));
        for (resource, limit) in given {
            // To raise a soft limit to the hard one is always allowed.
            let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
        }
        if room_bytes().is_some() {
            few_arenas();
        }
        // SAFETY: a signal that is ignored runs no code of ours; instead of it the system call returns EFBIG.
        let on_file_size = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Limits { given, on_file_size }
    }

    /// In the target, between fork and exec: system calls only.
    pub fn restore(&self) {
        for (resource, limit) in self.given {
            let _ = setrlimit(resource, limit);
        }
        // SAFETY: what `raise` has found, which for a program that was just started is either of ignored and default.
        unsafe { libc::signal(libc::SIGXFSZ, self.on_file_size) };
    }

    /// Why nothing can be run, where a limit on memory leaves too little for memspill itself.
    pub fn refusal() -> Option<String> {
        let room = room_bytes().filter(|room| *room < LEAST_BYTES)?;
        let (what, mends) = scarce_memory();
        Some(format!("{what} {} MiB, and memspill itself needs {} MiB: {mends}", room >> 20, LEAST_BYTES >> 20))
    }

    /// The steps of the target's malloc.
    pub fn top_pad_bytes(&self) -> u64 {
        let of = |wanted: Resource| self.given.iter().find(|(resource, _)| *resource == wanted)?.1.current;
        top_pad_bytes([of(Resource::As), of(Resource::Data), commit_left_bytes().map(|left| left / COMMIT_PARTS)])
    }
}

fn top_pad_bytes(limits: [Option<u64>; 3]) -> u64 {
    let most = limits.into_iter().flatten().min().unwrap_or(u64::MAX);
    (most / TOP_PAD_PARTS).clamp(TOP_PAD_BYTES_MIN, TOP_PAD_BYTES) & !4095
}

/// What memspill may reserve in all. None: there is no limit.
pub fn room_bytes() -> Option<u64> {
    let limits = [getrlimit(Resource::As).current, getrlimit(Resource::Data).current, commit_left_bytes()];
    limits.into_iter().flatten().min()
}

/// What compressed pages may take of `bytes`, so that there is address space left for all else: a pool that is full is an
/// answer, a heap that cannot grow is the end.
pub fn pool_bytes(bytes: u64) -> u64 {
    room_bytes().map_or(bytes, |room| bytes.min(room / 2))
}

/// What the tables of a device whose size is not given may reserve. None: there is no limit.
pub fn tables_bytes() -> Option<u64> {
    let limits = [getrlimit(Resource::As).current, getrlimit(Resource::Data).current, commit_left_bytes().map(|left| left / COMMIT_PARTS)];
    limits.into_iter().flatten().min().map(|bytes| bytes / TABLES_PARTS)
}

/// The largest file that we may write. None: there is no limit.
pub fn file_bytes() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// What the kernel would still promise, where it promises no more than it has.
fn commit_left_bytes() -> Option<u64> {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    if mode.trim() != "2" {
        return None;
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(kib(&meminfo, "CommitLimit")?.saturating_sub(kib(&meminfo, "Committed_AS")?) << 10)
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Each heap of glibc's malloc reserves 64 MiB, and there would be one for each thread.
fn few_arenas() {
    // SAFETY: sets a number that malloc looks at when it makes the next arena.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

/// Which memory is limited, and what mends it.
fn scarce_memory() -> (&'static str, &'static str) {
    let own = "raise it, or set it for the command alone: memspill run ... -- sh -c 'ulimit ...; exec COMMAND'";
    let (space, data, room) = (getrlimit(Resource::As).current, getrlimit(Resource::Data).current, room_bytes());
    if space.is_some() && space == room {
        ("the limit on address space (ulimit -v) is", own)
    } else if data.is_some() && data == room {
        ("the limit on data (ulimit -d) is", own)
    } else {
        ("vm.overcommit_memory is 2, and the kernel promises no more than", "raise vm.overcommit_ratio")
    }
}

/// The error, and what mends it where a limit is behind it.
pub fn explained(what: &str, error: io::Error) -> io::Error {
    match remedy(&error) {
        Some(remedy) => io::Error::other(format!("{what}: {error}; {remedy}")),
        None => io::Error::new(error.kind(), format!("{what}: {error}")),
    }
}

/// What mends an error that a limit leads to.
pub fn remedy(error: &io::Error) -> Option<String> {
    let (resource, what) = match error.raw_os_error()? {
        libc::EMFILE => (Resource::Nofile, "open files (ulimit -n)"),
        libc::EAGAIN => (Resource::Nproc, "processes (ulimit -u)"),
        libc::EFBIG => (Resource::Fsize, "the size of files (ulimit -f), in bytes,"),
        libc::ENOMEM if room_bytes().is_some() => {
            let (limit, mends) = scarce_memory();
            return Some(format!("{limit} {} MiB: {mends}", room_bytes()? >> 20));
        }
        _ => return None,
    };
    let limit = getrlimit(resource).current?;
    Some(format!("the limit on {what} is {limit}: raise it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_malloc_fit_into_what_there_is() {
        assert_eq!(top_pad_bytes([None; 3]), 64 << 20);
        assert_eq!(top_pad_bytes([Some(1 << 40), None, None]), 64 << 20);
        assert_eq!(top_pad_bytes([None, Some(1 << 30), None]), 16 << 20);
        assert_eq!(top_pad_bytes([Some(1 << 40), Some(400 << 20), Some(200 << 20)]), 3200 << 10);
        assert_eq!(top_pad_bytes([None, None, Some(0)]), 128 << 10);
    }

    #[test]
    fn a_limit_is_named_with_what_it_led_to() {
        let error = explained("a thread", io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(error.starts_with("a thread: Too many open files (os error 24); the limit on open files (ulimit -n) is "));
        let error = explained("a thread", io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(error.to_string(), "a thread: No such file or directory (os error 2)");
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24683656 kB\nCommitLimit:    12341828 kB\nCommitted_AS:     316464 kB\n";
        assert_eq!((kib(text, "CommitLimit"), kib(text, "Committed_AS")), (Some(12341828), Some(316464)));
        assert_eq!(kib(text, "Commit"), None);
    }
}
