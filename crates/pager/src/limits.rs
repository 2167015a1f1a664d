//! Resource limits (setrlimit(2)): memspill raises its own soft limits to the hard ones, and gives the target
//! back those that it was started with.
//!
//! ```text
//!   raise ─▶ soft limits up to the hard ones, SIGXFSZ ignored ─▶ devices, threads, ...
//!                                                               └─▶ restore, in the target before exec
//! ```
//!
//! If a limit is too small even so, the user gets one line that names it and what mends it: before the start
//! if it is known by then (`refusal`), else with the error that it has led to (`explained`).
//!
//! Under `vm.overcommit_memory=2` the kernel promises only as much memory as it has. The part that it has not
//! yet promised is then treated as one more limit (`room_bytes`): memspill's reservations and the steps in
//! which the target's malloc grows are made to fit into it.
//!
//! What it does not do: look at cgroups. Their limits are on memory that is used, not on what is reserved.
#![allow(unsafe_code, reason = "the disposition of a signal")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The limits that memspill's own work can meet. The size of core dumps and priorities are not among them.
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

/// What memspill itself must be able to reserve: for tables of slots, for stacks and heaps of its threads,
/// and for a part of the pool.
const NEEDED_BYTES: u64 = 576 << 20;

/// Below this a limit on the size of files makes a swap file of no use.
pub const FILE_BYTES_MIN: u64 = 64 << 20;

/// Descriptors that must be free when the command starts: each managed process takes about four, and some are
/// open for a moment only. If the first process never got its own, it would wait for ever.
const FILES_FREE_MIN: u64 = 24;
/// And when any process joins: half of them for it, and half for what reads /proc meanwhile.
const FILES_TO_JOIN: usize = 12;
/// More than memspill has open for itself, on many CPUs, and for a process that has joined. If the limit is
/// higher than what these come to, nobody looks how many are left: with 3000 children that joined, to look
/// took a fifth of the time.
const FILES_OF_OURS_MAX: u64 = 2048;
const FILES_OF_A_PROCESS_MAX: u64 = 16;

/// Tables may take this part of what may be reserved.
const TABLES_PARTS: u64 = 8;
/// All processes of the machine share what the kernel can still promise; a run counts on this part of it.
const COMMIT_PARTS: u64 = 16;

/// The limits that memspill was started with.
#[derive(Clone, Copy)]
pub struct Limits {
    inherited: [(Resource, Rlimit); RAISED.len()],
    on_file_size: libc::sighandler_t,
}

impl Limits {
    /// Raise the soft limits. To be called before anything is opened.
    pub fn raise() -> Limits {
        let inherited = RAISED.map(|resource| (resource, getrlimit(resource)));
        for (resource, limit) in inherited {
            // This is always allowed.
            let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
        }
        keep_malloc_small();
        // SAFETY: an ignored signal runs no code of ours; the write that would raise it returns EFBIG.
        let on_file_size = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Limits { inherited, on_file_size }
    }

    /// Set the limits as they were. Runs in the target between fork and exec, so it makes system calls only.
    pub fn restore(&self) {
        for (resource, limit) in self.inherited {
            let _ = setrlimit(resource, limit);
        }
        // SAFETY: this is the disposition that `raise` has found. A program that was just started has no
        // handlers, so the signal was either ignored or at its default.
        unsafe { libc::signal(libc::SIGXFSZ, self.on_file_size) };
    }

    /// Why nothing can be run: a limit on memory leaves too little for memspill itself. None: there is
    /// enough.
    pub fn refusal() -> Option<String> {
        let room = room_bytes().filter(|room| *room < NEEDED_BYTES)?;
        let (what, mends) = scarce_memory();
        Some(format!(
            "{what} {} MiB, and memspill itself needs {} MiB: {mends}",
            room >> 20,
            NEEDED_BYTES >> 20
        ))
    }

    /// Fails (EMFILE) if the descriptors that are open by now leave too few for the processes to come. How
    /// many memspill opens for itself depends on the CPUs and the devices, so this is called once they are
    /// open.
    pub fn leave_room_for_processes() -> io::Result<()> {
        let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let free = soft_limit(Resource::Nofile).map(|limit| limit.saturating_sub(open));
        if free.is_some_and(|free| free < FILES_FREE_MIN) {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        } else {
            Ok(())
        }
    }

    /// Fails (EMFILE, ENFILE) where no process can join now beside so many that do so already. One that finds
    /// no descriptor half way would run outside the budget, and the child of a fork would be killed.
    /// `managed`: how many there are in all. `any`: a descriptor.
    pub fn have_room_for_a_process(joining: usize, managed: usize, any: impl AsFd) -> io::Result<()> {
        let most = FILES_OF_OURS_MAX + FILES_OF_A_PROCESS_MAX * (joining + managed) as u64;
        if soft_limit(Resource::Nofile).is_none_or(|limit| limit > most) {
            return Ok(());
        }
        let needed = (joining + 1) * FILES_TO_JOIN;
        let taken: rustix::io::Result<Vec<OwnedFd>> =
            (0..needed).map(|_| rustix::io::fcntl_dupfd_cloexec(&any, 0)).collect();
        Ok(taken.map(drop)?)
    }
}

/// The smallest of the two limits on memory, which `of` returns, and of a part of what the kernel can still
/// promise. None: there is no limit.
fn least_bytes(of: impl Fn(Resource) -> Option<u64>, commit_parts: u64) -> Option<u64> {
    let commit_bytes = commit_left_bytes().map(|left| left / commit_parts);
    [of(Resource::As), of(Resource::Data), commit_bytes].into_iter().flatten().min()
}

fn soft_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

/// How much memory memspill may reserve in all. None: there is no limit.
pub fn room_bytes() -> Option<u64> {
    least_bytes(soft_limit, 1)
}

/// How much of `bytes` compressed pages may take, so that address space is left for everything else. A full
/// pool is something memspill can deal with; a heap that cannot grow would end the run.
pub fn pool_bytes(bytes: u64) -> u64 {
    room_bytes().map_or(bytes, |room| bytes.min(room / 2))
}

/// How much memory the tables of a device may reserve whose size the user has not given. None: there is
/// no limit.
pub fn tables_bytes() -> Option<u64> {
    least_bytes(soft_limit, COMMIT_PARTS).map(|bytes| bytes / TABLES_PARTS)
}

/// The size of the largest file that memspill may write. None: there is no limit.
pub fn file_bytes() -> Option<u64> {
    soft_limit(Resource::Fsize)
}

/// How much memory the kernel can still promise. None: it promises more than it has (overcommit), so there is
/// no limit.
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

/// Memory that glibc's malloc keeps for itself counts against the budget, and its reserves count against
/// limits on address space. So it has two arenas: by default there are up to eight for each CPU, of 64 MiB
/// each. And blocks of 128 KiB and more always go back to the kernel: by default it keeps those that are as
/// large as the largest that was ever given back. (musl, with which a static memspill can be linked, does
/// neither.)
fn keep_malloc_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: this sets numbers that malloc reads before it makes another arena, or a large block.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10)
    };
}

/// The limit on memory that is the smallest, and what mends it.
fn scarce_memory() -> (&'static str, &'static str) {
    let raise =
        "raise it, or set it for the command alone: memspill run ... -- sh -c 'ulimit ...; exec COMMAND'";
    let (space, data, room) = (soft_limit(Resource::As), soft_limit(Resource::Data), room_bytes());
    if space.is_some() && space == room {
        ("the limit on address space (ulimit -v) is", raise)
    } else if data.is_some() && data == room {
        ("the limit on data (ulimit -d) is", raise)
    } else {
        ("vm.overcommit_memory is 2, and the kernel promises no more than", "raise vm.overcommit_ratio")
    }
}

/// The error with what failed, and with what mends it where a limit is the cause.
pub fn explained(what: &str, error: io::Error) -> io::Error {
    match remedy(&error) {
        Some(remedy) => io::Error::other(format!("{what}: {error}; {remedy}")),
        None => io::Error::new(error.kind(), format!("{what}: {error}")),
    }
}

/// What mends an error whose cause is a limit. None: no limit is known to be its cause.
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
    let limit = soft_limit(resource)?;
    Some(format!("the limit on {what} is {limit}: raise it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_what_it_led_to() {
        let error = explained("a thread", io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(error.starts_with(
            "a thread: Too many open files (os error 24); the limit on open files (ulimit -n) is "
        ));
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
