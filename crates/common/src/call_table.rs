//! What memory the kernel touches in each system call of x86-64: the pointers among its arguments, whether it
//! writes there, and how far each reaches. The agent (`calls/`) brings that memory before the call; a test
//! makes each of these calls on absent memory.
//!
//! One line a call, in the order of numbers. A line may name more than the kernel touches, for what is named
//! is only brought and kept in place; it must not name less. So where an argument is a pointer only with some
//! commands (fcntl, prctl), it is named as one, and sizes that depend on a command are the largest.
//!
//! Not here: calls that the dispatch answers by itself (see agent/trap/handler.rs). A number that is not here
//! is taken to have six arguments that may be pointers, each to 4 KiB.

/// How many bytes there are behind a pointer.
#[derive(Clone, Copy)]
pub enum Size {
    Bytes(u32),
    /// As many as this argument says.
    Arg(u8),
    /// As many elements as this argument says, each so many bytes.
    Array(u8, u32),
    /// A byte for each page of as many bytes as this argument says.
    Pages(u8),
    /// As many as the 32-bit word says that this argument points to.
    Word(u8),
    /// Up to a NUL.
    Text,
    /// What the number of an ioctl says, which is this argument; at least 64. It may hold pointers.
    Ioctl(u8),
    /// As many as this argument says, with pointers among them whose meaning is not looked at: where one
    /// leads to managed memory, 4 KiB there are taken to be used.
    Struct(u8),
    /// `struct sock_fprog`: a pointer to a filter, with its length before it.
    Filter,
    /// A set of file descriptors, of which this argument tells the number.
    Descriptors(u8),
    /// An array of `struct iovec`, of which this argument tells the number, and the memory that they name.
    Vector(u8),
    /// A `struct msghdr`, and the memory that it names.
    Message,
    /// An array of `struct mmsghdr`, of which this argument tells the number.
    Messages(u8),
    /// A list of texts that ends with a null pointer.
    Texts,
    /// An array of `struct futex_waitv`, of which this argument tells the number, and the words they name.
    Waits(u8),
    /// Two of them.
    TwoWaits,
    /// pselect6's sixth argument: a pointer to a set of signals, and the size of the set.
    MaskPair,
}

/// An argument that is a pointer.
#[derive(Clone, Copy)]
pub struct Pointer {
    pub arg: u8,
    pub writes: bool,
    pub size: Size,
}

pub struct Call {
    pub number: u16,
    pub name: &'static str,
    pub pointers: &'static [Pointer],
}

/// The line of a call.
pub fn find(number: usize) -> Option<&'static Call> {
    let number = u16::try_from(number).ok()?;
    CALLS.binary_search_by_key(&number, |call| call.number).ok().and_then(|index| CALLS.get(index))
}

/// The kernel reads what the argument points to.
const fn r(arg: u8, size: Size) -> Pointer {
    Pointer { arg, writes: false, size }
}

/// The kernel writes what the argument points to; it may read it too.
const fn w(arg: u8, size: Size) -> Pointer {
    Pointer { arg, writes: true, size }
}

macro_rules! calls {
    ($($number:literal $name:ident: $($pointer:expr),*;)*) => {
        &[$(Call { number: $number, name: stringify!($name), pointers: &[$($pointer),*] }),*]
    };
}

use Size::{
    Arg, Array, Bytes, Descriptors, Filter, Ioctl, MaskPair, Message, Messages, Pages, Struct, Text, Texts,
    TwoWaits, Vector, Waits, Word,
};

const SIGINFO: Size = Bytes(128);
const STAT: Size = Bytes(144);
const STATFS: Size = Bytes(120);
const TIME: Size = Bytes(16);
const TIMER: Size = Bytes(32);
const RUSAGE: Size = Bytes(144);
const MASK: Size = Bytes(8);
const INT: Size = Bytes(4);
const LONG: Size = Bytes(8);

pub static CALLS: &[Call] = calls! {
    0 read: w(1, Arg(2));
    1 write: r(1, Arg(2));
    2 open: r(0, Text);
    3 close: ;
    4 stat: r(0, Text), w(1, STAT);
    5 fstat: w(1, STAT);
    6 lstat: r(0, Text), w(1, STAT);
    7 poll: w(0, Array(1, 8));
    8 lseek: ;
    9 mmap: ;
    10 mprotect: ;
    11 munmap: ;
    12 brk: ;
    16 ioctl: w(2, Ioctl(1));
    17 pread64: w(1, Arg(2));
    18 pwrite64: r(1, Arg(2));
    19 readv: w(1, Vector(2));
    20 writev: r(1, Vector(2));
    21 access: r(0, Text);
    22 pipe: w(0, Bytes(8));
    23 select: w(1, Descriptors(0)), w(2, Descriptors(0)), w(3, Descriptors(0)), w(4, TIME);
    24 sched_yield: ;
    25 mremap: ;
    26 msync: ;
    27 mincore: w(2, Pages(1));
    28 madvise: ;
    29 shmget: ;
    30 shmat: ;
    31 shmctl: w(2, Bytes(128));
    32 dup: ;
    33 dup2: ;
    34 pause: ;
    35 nanosleep: r(0, TIME), w(1, TIME);
    36 getitimer: w(1, TIMER);
    37 alarm: ;
    38 setitimer: r(1, TIMER), w(2, TIMER);
    39 getpid: ;
    40 sendfile: w(2, LONG);
    41 socket: ;
    42 connect: r(1, Arg(2));
    43 accept: w(1, Word(2)), w(2, INT);
    44 sendto: r(1, Arg(2)), r(4, Arg(5));
    45 recvfrom: w(1, Arg(2)), w(4, Word(5)), w(5, INT);
    46 sendmsg: r(1, Message);
    47 recvmsg: w(1, Message);
    48 shutdown: ;
    49 bind: r(1, Arg(2));
    50 listen: ;
    51 getsockname: w(1, Word(2)), w(2, INT);
    52 getpeername: w(1, Word(2)), w(2, INT);
    53 socketpair: w(3, Bytes(8));
    54 setsockopt: r(3, Struct(4));
    55 getsockopt: w(3, Word(4)), w(4, INT);
    59 execve: r(0, Text), r(1, Texts), r(2, Texts);
    61 wait4: w(1, INT), w(3, RUSAGE);
    62 kill: ;
    63 uname: w(0, Bytes(390));
    64 semget: ;
    65 semop: r(1, Array(2, 6));
    66 semctl: w(3, Bytes(128));
    67 shmdt: ;
    68 msgget: ;
    69 msgsnd: r(1, Array(2, 1)), r(1, Bytes(8));
    70 msgrcv: w(1, Array(2, 1)), w(1, Bytes(8));
    71 msgctl: w(2, Bytes(128));
    72 fcntl: w(2, Bytes(32));
    73 flock: ;
    74 fsync: ;
    75 fdatasync: ;
    76 truncate: r(0, Text);
    77 ftruncate: ;
    78 getdents: w(1, Arg(2));
    79 getcwd: w(0, Arg(1));
    80 chdir: r(0, Text);
    81 fchdir: ;
    82 rename: r(0, Text), r(1, Text);
    83 mkdir: r(0, Text);
    84 rmdir: r(0, Text);
    85 creat: r(0, Text);
    86 link: r(0, Text), r(1, Text);
    87 unlink: r(0, Text);
    88 symlink: r(0, Text), r(1, Text);
    89 readlink: r(0, Text), w(1, Arg(2));
    90 chmod: r(0, Text);
    91 fchmod: ;
    92 chown: r(0, Text);
    93 fchown: ;
    94 lchown: r(0, Text);
    95 umask: ;
    96 gettimeofday: w(0, TIME), w(1, Bytes(8));
    97 getrlimit: w(1, TIME);
    98 getrusage: w(1, RUSAGE);
    99 sysinfo: w(0, Bytes(112));
    100 times: w(0, Bytes(32));
    101 ptrace: w(2, Bytes(4096)), w(3, Bytes(4096));
    102 getuid: ;
    103 syslog: w(1, Arg(2));
    104 getgid: ;
    105 setuid: ;
    106 setgid: ;
    107 geteuid: ;
    108 getegid: ;
    109 setpgid: ;
    110 getppid: ;
    111 getpgrp: ;
    112 setsid: ;
    113 setreuid: ;
    114 setregid: ;
    115 getgroups: w(1, Array(0, 4));
    116 setgroups: r(1, Array(0, 4));
    117 setresuid: ;
    118 getresuid: w(0, INT), w(1, INT), w(2, INT);
    119 setresgid: ;
    120 getresgid: w(0, INT), w(1, INT), w(2, INT);
    121 getpgid: ;
    122 setfsuid: ;
    123 setfsgid: ;
    124 getsid: ;
    125 capget: w(0, Bytes(8)), w(1, Bytes(24));
    126 capset: r(0, Bytes(8)), r(1, Bytes(24));
    127 rt_sigpending: w(0, MASK);
    128 rt_sigtimedwait: r(0, MASK), w(1, SIGINFO), r(2, TIME);
    129 rt_sigqueueinfo: r(2, SIGINFO);
    130 rt_sigsuspend: r(0, MASK);
    132 utime: r(0, Text), r(1, TIME);
    133 mknod: r(0, Text);
    135 personality: ;
    136 ustat: w(1, Bytes(32));
    137 statfs: r(0, Text), w(1, STATFS);
    138 fstatfs: w(1, STATFS);
    139 sysfs: r(1, Text), w(2, Bytes(256));
    140 getpriority: ;
    141 setpriority: ;
    142 sched_setparam: r(1, INT);
    143 sched_getparam: w(1, INT);
    144 sched_setscheduler: r(2, INT);
    145 sched_getscheduler: ;
    146 sched_get_priority_max: ;
    147 sched_get_priority_min: ;
    148 sched_rr_get_interval: w(1, TIME);
    149 mlock: r(0, Arg(1));
    150 munlock: ;
    151 mlockall: ;
    152 munlockall: ;
    153 vhangup: ;
    155 pivot_root: r(0, Text), r(1, Text);
    157 prctl: w(1, Bytes(256)), w(2, Filter), w(3, Bytes(256)), w(4, Bytes(256));
    158 arch_prctl: w(1, LONG);
    159 adjtimex: w(0, Bytes(208));
    160 setrlimit: r(1, TIME);
    161 chroot: r(0, Text);
    162 sync: ;
    163 acct: r(0, Text);
    164 settimeofday: r(0, TIME), r(1, Bytes(8));
    165 mount: r(0, Text), r(1, Text), r(2, Text), r(4, Bytes(4096));
    166 umount2: r(0, Text);
    167 swapon: r(0, Text);
    168 swapoff: r(0, Text);
    169 reboot: r(3, Text);
    170 sethostname: r(0, Arg(1));
    171 setdomainname: r(0, Arg(1));
    175 init_module: r(0, Arg(1)), r(2, Text);
    176 delete_module: r(0, Text);
    186 gettid: ;
    187 readahead: ;
    188 setxattr: r(0, Text), r(1, Text), r(2, Arg(3));
    189 lsetxattr: r(0, Text), r(1, Text), r(2, Arg(3));
    190 fsetxattr: r(1, Text), r(2, Arg(3));
    191 getxattr: r(0, Text), r(1, Text), w(2, Arg(3));
    192 lgetxattr: r(0, Text), r(1, Text), w(2, Arg(3));
    193 fgetxattr: r(1, Text), w(2, Arg(3));
    194 listxattr: r(0, Text), w(1, Arg(2));
    195 llistxattr: r(0, Text), w(1, Arg(2));
    196 flistxattr: w(1, Arg(2));
    197 removexattr: r(0, Text), r(1, Text);
    198 lremovexattr: r(0, Text), r(1, Text);
    199 fremovexattr: r(1, Text);
    200 tkill: ;
    201 time: w(0, LONG);
    202 futex: w(0, INT), r(3, TIME), w(4, INT);
    203 sched_setaffinity: r(2, Arg(1));
    204 sched_getaffinity: w(2, Arg(1));
    213 epoll_create: ;
    216 remap_file_pages: ;
    217 getdents64: w(1, Arg(2));
    218 set_tid_address: w(0, INT);
    219 restart_syscall: ;
    220 semtimedop: r(1, Array(2, 6)), r(3, TIME);
    221 fadvise64: ;
    222 timer_create: r(1, Bytes(64)), w(2, INT);
    223 timer_settime: r(2, TIMER), w(3, TIMER);
    224 timer_gettime: w(1, TIMER);
    225 timer_getoverrun: ;
    226 timer_delete: ;
    227 clock_settime: r(1, TIME);
    228 clock_gettime: w(1, TIME);
    229 clock_getres: w(1, TIME);
    230 clock_nanosleep: r(2, TIME), w(3, TIME);
    231 exit_group: ;
    232 epoll_wait: w(1, Array(2, 12));
    233 epoll_ctl: r(3, Bytes(12));
    234 tgkill: ;
    235 utimes: r(0, Text), r(1, Bytes(32));
    237 mbind: r(3, Bytes(128));
    238 set_mempolicy: r(1, Bytes(128));
    239 get_mempolicy: w(0, INT), w(1, Bytes(128));
    240 mq_open: r(0, Text), r(3, Bytes(64));
    241 mq_unlink: r(0, Text);
    242 mq_timedsend: r(1, Arg(2)), r(4, TIME);
    243 mq_timedreceive: w(1, Arg(2)), w(3, INT), r(4, TIME);
    244 mq_notify: r(1, Bytes(64));
    245 mq_getsetattr: r(1, Bytes(64)), w(2, Bytes(64));
    247 waitid: w(2, SIGINFO), w(4, RUSAGE);
    248 add_key: r(0, Text), r(1, Text), r(2, Arg(3));
    249 request_key: r(0, Text), r(1, Text), r(2, Text);
    250 keyctl: w(1, Bytes(4096)), w(2, Bytes(4096)), w(3, Bytes(4096)), w(4, Bytes(4096));
    251 ioprio_set: ;
    252 ioprio_get: ;
    253 inotify_init: ;
    254 inotify_add_watch: r(1, Text);
    255 inotify_rm_watch: ;
    256 migrate_pages: r(2, Bytes(128)), r(3, Bytes(128));
    257 openat: r(1, Text);
    258 mkdirat: r(1, Text);
    259 mknodat: r(1, Text);
    260 fchownat: r(1, Text);
    261 futimesat: r(1, Text), r(2, Bytes(32));
    262 newfstatat: r(1, Text), w(2, STAT);
    263 unlinkat: r(1, Text);
    264 renameat: r(1, Text), r(3, Text);
    265 linkat: r(1, Text), r(3, Text);
    266 symlinkat: r(0, Text), r(2, Text);
    267 readlinkat: r(1, Text), w(2, Arg(3));
    268 fchmodat: r(1, Text);
    269 faccessat: r(1, Text);
    270 pselect6: w(1, Descriptors(0)), w(2, Descriptors(0)), w(3, Descriptors(0)), w(4, TIME),
        r(5, MaskPair);
    271 ppoll: w(0, Array(1, 8)), w(2, TIME), r(3, MASK);
    272 unshare: ;
    273 set_robust_list: r(0, Arg(1));
    274 get_robust_list: w(1, LONG), w(2, LONG);
    275 splice: w(1, LONG), w(3, LONG);
    276 tee: ;
    277 sync_file_range: ;
    278 vmsplice: w(1, Vector(2));
    279 move_pages: r(2, Array(1, 8)), r(3, Array(1, 4)), w(4, Array(1, 4));
    280 utimensat: r(1, Text), r(2, Bytes(32));
    281 epoll_pwait: w(1, Array(2, 12)), r(4, MASK);
    282 signalfd: r(1, MASK);
    283 timerfd_create: ;
    284 eventfd: ;
    285 fallocate: ;
    286 timerfd_settime: r(2, TIMER), w(3, TIMER);
    287 timerfd_gettime: w(1, TIMER);
    288 accept4: w(1, Word(2)), w(2, INT);
    289 signalfd4: r(1, MASK);
    290 eventfd2: ;
    291 epoll_create1: ;
    292 dup3: ;
    293 pipe2: w(0, Bytes(8));
    294 inotify_init1: ;
    295 preadv: w(1, Vector(2));
    296 pwritev: r(1, Vector(2));
    297 rt_tgsigqueueinfo: r(3, SIGINFO);
    298 perf_event_open: w(0, Bytes(136));
    299 recvmmsg: w(1, Messages(2)), w(4, TIME);
    300 fanotify_init: ;
    301 fanotify_mark: r(4, Text);
    302 prlimit64: r(2, TIME), w(3, TIME);
    303 name_to_handle_at: r(1, Text), w(2, Bytes(136)), w(3, INT);
    304 open_by_handle_at: r(1, Bytes(136));
    305 clock_adjtime: w(1, Bytes(208));
    306 syncfs: ;
    307 sendmmsg: w(1, Messages(2));
    308 setns: ;
    309 getcpu: w(0, INT), w(1, INT);
    310 process_vm_readv: w(1, Vector(2)), r(3, Array(4, 16));
    311 process_vm_writev: r(1, Vector(2)), r(3, Array(4, 16));
    312 kcmp: ;
    313 finit_module: r(1, Text);
    314 sched_setattr: r(1, Bytes(256));
    315 sched_getattr: w(1, Arg(2));
    316 renameat2: r(1, Text), r(3, Text);
    317 seccomp: w(2, Filter);
    318 getrandom: w(0, Arg(1));
    319 memfd_create: r(0, Text);
    320 kexec_file_load: r(3, Arg(2));
    321 bpf: w(1, Struct(2));
    322 execveat: r(1, Text), r(2, Texts), r(3, Texts);
    323 userfaultfd: ;
    324 membarrier: ;
    325 mlock2: r(0, Arg(1));
    326 copy_file_range: w(1, LONG), w(3, LONG);
    327 preadv2: w(1, Vector(2));
    328 pwritev2: r(1, Vector(2));
    329 pkey_mprotect: ;
    330 pkey_alloc: ;
    331 pkey_free: ;
    332 statx: r(1, Text), w(4, Bytes(256));
    334 rseq: w(0, Arg(1));
    424 pidfd_send_signal: r(2, SIGINFO);
    428 open_tree: r(1, Text);
    429 move_mount: r(1, Text), r(3, Text);
    430 fsopen: r(0, Text);
    431 fsconfig: r(2, Text), r(3, Bytes(4096));
    432 fsmount: ;
    433 fspick: r(1, Text);
    434 pidfd_open: ;
    436 close_range: ;
    437 openat2: r(1, Text), r(2, Arg(3));
    438 pidfd_getfd: ;
    439 faccessat2: r(1, Text);
    440 process_madvise: r(1, Array(2, 16));
    441 epoll_pwait2: w(1, Array(2, 12)), r(3, TIME), r(4, MASK);
    442 mount_setattr: r(1, Text), r(3, Arg(4));
    443 quotactl_fd: w(3, Bytes(256));
    444 landlock_create_ruleset: r(0, Arg(1));
    445 landlock_add_rule: r(2, Bytes(64));
    446 landlock_restrict_self: ;
    447 memfd_secret: ;
    448 process_mrelease: ;
    449 futex_waitv: r(0, Waits(1)), r(3, TIME);
    450 set_mempolicy_home_node: ;
    451 cachestat: r(1, Bytes(16)), w(2, Bytes(40));
    452 fchmodat2: r(1, Text);
    453 map_shadow_stack: ;
    454 futex_wake: w(0, INT);
    455 futex_wait: w(0, INT), r(4, TIME);
    456 futex_requeue: r(0, TwoWaits);
    462 mseal: ;
};
