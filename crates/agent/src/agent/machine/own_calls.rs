//! The system calls that the agent makes in a process: the program's seccomp filters must let them pass.

use super::gadget::PR_SET_SYSCALL_USER_DISPATCH;
use super::numbers::nr;
use super::seccomp::{PR_GET_SECCOMP, PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER};

/// A call, and the first argument that it must have (its lower half), if any.
pub type Call = (usize, Option<usize>);

/// rt_sigaction, rt_sigprocmask, rt_sigreturn, rt_sigpending, sigaltstack; what brings pages and changes
/// mappings; waiting; gettid; pkey_mprotect; and what is needed to set filters, and to trap calls.
pub const ALWAYS: [Call; 22] = [
    (13, None),
    (14, None),
    (15, None),
    (127, None),
    (131, None),
    (nr::FUTEX, None),
    (nr::SCHED_YIELD, None),
    (nr::PPOLL, None),
    (nr::RESTART_SYSCALL, None),
    (nr::GETPID, None),
    (186, None),
    (nr::EXIT_GROUP, None),
    (nr::MMAP, None),
    (nr::MUNMAP, None),
    (nr::MPROTECT, None),
    (nr::MREMAP, None),
    (nr::MADVISE, None),
    (nr::BRK, None),
    (nr::SECCOMP, Some(SET_MODE_FILTER)),
    (nr::PRCTL, Some(PR_SET_SYSCALL_USER_DISPATCH)),
    (nr::PRCTL, Some(PR_GET_SECCOMP)),
    (nr::PRCTL, Some(PR_SET_NO_NEW_PRIVS)),
];

/// A new thread, and whoever makes one after another has ended: tkill, arch_prctl.
pub const THREADS: [Call; 2] = [(200, None), (158, Some(0x1001))];

/// A fork, and its child, which joins, with an evictor of its own: read, write, open, close, fstat; getppid,
/// geteuid; timers; what an evictor gives up; memfd_create; prlimit64; tgkill.
pub const FORKS: [Call; 45] = [
    (0, None),
    (1, None),
    (2, None),
    (3, None),
    (5, None),
    (nr::IOCTL, None),
    (nr::PREAD64, None),
    (nr::PWRITE64, None),
    (nr::SOCKET, Some(1)),
    (nr::CONNECT, None),
    (nr::SENDTO, None),
    (nr::RECVFROM, None),
    (nr::SENDMSG, None),
    (nr::RECVMSG, None),
    (55, None),
    (nr::CLONE, None),
    (nr::WAITID, None),
    (nr::EXIT, None),
    (nr::KILL, None),
    (nr::FCNTL, None),
    (nr::FTRUNCATE, None),
    (nr::CHDIR, None),
    (107, None),
    (110, None),
    (nr::SETGROUPS, None),
    (nr::SETRESUID, None),
    (nr::SETRESGID, None),
    (nr::CAPSET, None),
    (138, None),
    (149, None),
    (nr::MUNLOCK, None),
    (nr::PRCTL, None),
    (158, None),
    (nr::SCHED_SETAFFINITY, None),
    (nr::SCHED_GETAFFINITY, None),
    (222, None),
    (223, None),
    (226, None),
    (234, None),
    (nr::OPENAT, None),
    (302, None),
    (319, None),
    (nr::USERFAULTFD, None),
    (nr::STATX, None),
    (nr::CLOSE_RANGE, None),
];
