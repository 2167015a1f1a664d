//! All that the agent remembers outside its regions, its blocks and its tables.

use crate::common::protocol::Control;
use crate::common::sync::{AtomicPtr, AtomicU32, AtomicUsize};

/// All that the agent remembers outside its regions.
pub struct AgentState {
    /// The control page; null while this process is not managed. Not to be followed before `owner` was
    /// compared.
    pub control: AtomicPtr<Control>,
    /// The process that `control` belongs to. A child that shares or copied this memory without running the
    /// fork handler (vfork, a raw clone) has another id.
    pub owner: AtomicU32,
    /// First doorbell page.
    pub doorbells: AtomicUsize,
    /// One bit for each doorbell in use.
    pub rung: AtomicU32,
    /// Memory was marked with advice on forks, which the child of a fork inherits (see
    /// `Control::fork_advice`).
    pub fork_advice: AtomicU32,
    /// Guards were put over memory, which the child of a fork inherits (see `Control::guards`).
    pub guards: AtomicU32,
    /// The program has a seccomp filter, which the child of a fork inherits.
    pub confined: AtomicU32,
    /// Files of tmpfs are managed in this run (see `Control::files`).
    pub files: AtomicU32,
    /// The agent makes the forks of this run itself (see `Control::forks`).
    pub forks: AtomicU32,
    /// The ident page; one for a whole family of forks, since each child finds it empty.
    pub ident: AtomicUsize,
}

// In .data by force: zeros would land in .bss otherwise. Data that each process writes lie together
// (.data.hot): each page of .data that is written is one of memory that is never swapped.
#[unsafe(link_section = ".data.hot")]
pub static STATE: AgentState = AgentState {
    control: AtomicPtr::new(core::ptr::null_mut()),
    owner: AtomicU32::new(0),
    doorbells: AtomicUsize::new(0),
    rung: AtomicU32::new(0),
    fork_advice: AtomicU32::new(0),
    guards: AtomicU32::new(0),
    confined: AtomicU32::new(0),
    files: AtomicU32::new(0),
    forks: AtomicU32::new(0),
    ident: AtomicUsize::new(0),
};
