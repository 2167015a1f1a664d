//! The agent in a process that runs already: the supervisor has it do one thing after the other
//! (`crates/pager/src/plant/running.rs`, `agent/running.rs`). The structs lie in memory that it maps there,
//! and are written and read by ptrace.
//!
//! ```text
//!   one thread:   JOIN   relocates, learns, joins; all others stand still
//!   each thread:  TRAP   its calls are trapped from now on
//!   ... later, when all pages are back ...
//!   one thread:   WHOLE  may the process be let go at all?
//!   each thread:  LOOK   EBUSY: it is inside the agent, and is to go on first
//!   each thread:  LEAVE  trapped no more
//!   one thread:   END    the kernel has the program's signal actions again; what is to be unmapped
//! ```
//!
//! The entry is called as `entry(what, struct)`, on a stack of the supervisor's, with all signals blocked but
//! SIGTRAP. It ends with a breakpoint, its result in rax.

/// The entry lies so many bytes before the one that the ELF header tells of.
pub const BEFORE_ENTRY: u64 = 16;

pub const JOIN: u64 = 1;
pub const TRAP: u64 = 2;
pub const WHOLE: u64 = 3;
pub const LOOK: u64 = 4;
pub const LEAVE: u64 = 5;
pub const END: u64 = 6;

/// [start, start + bytes).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Range {
    pub start: u64,
    pub bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Joining {
    /// As `envp`: of what the programs are to have that this one runs.
    pub environment: u64,
    /// An array of ranges that the kernel touches by itself.
    pub kept: u64,
    pub kept_count: u64,
    /// 1: what was never touched is closed, so that a touch asks for room.
    pub closes: u64,
}

/// A thread, as the program has it, and as it is to go on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Thread {
    /// Signals that it blocks.
    pub mask: u64,
    /// TRAP: the number of the call in which it was stopped, and that the kernel goes on with by its own
    /// means (restart_syscall); `NO_CALL` if there is none.
    pub call: u64,
    pub rip: u64,
    pub rsp: u64,
    pub rax: u64,
    pub rcx: u64,
    pub args: [u64; 6],
    /// rbx, rbp, r12 to r15.
    pub rest: [u64; 6],
}

pub const NO_CALL: u64 = u64::MAX;

pub const LEFT_MAX: usize = 24;

/// What is the agent's no more.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Left {
    pub count: u64,
    pub ranges: [Range; LEFT_MAX],
}
