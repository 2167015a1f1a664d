//! The agent: what memspill puts into every program of a target tree, by LD_PRELOAD.
//!
//! A pager in another process can fill the pages of this one, but only a thread of this one can take pages
//! out of it (UFFDIO_MOVE works on the caller's own memory alone). So the agent hands its process's
//! userfaultfd to the supervisor and then lends it one thread, the *evictor*, which moves pages when told to.
//! Beside that it makes growth visible while memory is tight: it stands before `mmap` and `mremap`.
//!
//! | folder       | what is in it                                                                |
//! |--------------|------------------------------------------------------------------------------|
//! | `main.rs`    | the constructor, the agent's few globals, the panic handler                  |
//! | `planted.rs` | where a program without a loader begins                                      |
//! | `hooks/`     | in place of functions of the C library, and of calls of static programs      |
//! | `trap/`      | system calls are trapped; threads, forks, signals; processes that join late  |
//! | `programs/`  | forks that the agent makes, and programs that the program runs               |
//! | `join/`      | how a process joins: the handshake, and the evictor                          |
//! | `calls/`     | what system calls use is brought before, and stays while they are under way  |
//! | `pages/`     | pages leave and come back without a userfaultfd of the supervisor's          |
//! | `thread/`    | what is kept for one thread of the program                                   |
//! | `readahead/` | which pages come along                                                       |
//! | `machine/`   | system calls, all that depends on the processor, the memory that is our own  |
//!
//! What must hold here, because each breach was once a hang or lost data:
//!
//! - The evictor touches nothing that can be swapped out, or it would wait for itself. Its stack and its
//!   block lie in the private region, which is never managed; globals lie in `.data`, which is backed by the
//!   agent's file, never in `.bss`, which is anonymous memory like any heap; and nothing is called through a
//!   lazily bound symbol.
//! - The program's descriptors, signal mask and errno are as they would be without the agent.
//! - A process whose supervisor is gone must die: its swapped-out pages are gone too, and would read as
//!   zeros.
//! - Everything that runs in the program's threads is async-signal-safe and allocates nothing.
//!
//! What it does not do: it decides nothing (which page, when), it does not talk to the kernel about
//! userfaultfd features (the supervisor issues UFFDIO_API and all registrations), and it does not follow
//! programs that it is not loaded into: set-user-id ones, those started with LD_PRELOAD taken away, static
//! ones that a program starts by its own instructions where these are neither trapped nor found.
#![no_std]
#![allow(
    unsafe_code,
    reason = "system calls, a raw clone, and pages shared with the supervisor are all that it is"
)]
#![deny(unsafe_op_in_unsafe_fn)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

#[allow(dead_code, reason = "names are for tests")]
#[path = "../call_table.rs"]
mod call_table;
mod calls;
mod hooks;
mod join;
#[allow(dead_code, reason = "the other side uses the rest")]
#[path = "../link.rs"]
mod link;
mod machine;
mod pages;
#[path = "../pidfd.rs"]
mod pidfd;
mod planted;
#[path = "../pool.rs"]
mod pool;
mod programs;
#[allow(dead_code, reason = "the other side uses the rest")]
#[path = "../protocol.rs"]
mod protocol;
mod readahead;
mod thread;
mod trap;
#[allow(dead_code, reason = "the other side uses the rest")]
#[path = "../words.rs"]
mod words;
#[path = "../../../backing/src/wordwise/decode.rs"]
mod wordwise;

use hooks::{files, mmap, open, own_thread, threads};
use join::handshake;
use machine::sys;
use programs::{preload, readable};

/// Longest name of an abstract socket: `sun_path` less the leading NUL.
const NAME_MAX: usize = 107;
const TOKEN_LEN: usize = 32;

/// Where the supervisor listens. Written once, by the constructor, before any second thread can exist.
struct Address {
    name: [u8; NAME_MAX],
    name_len: usize,
    token: [u8; TOKEN_LEN],
}

/// All that the agent remembers outside its regions.
struct AgentState {
    /// The control page; null while this process is not managed. Not to be followed before `owner` was
    /// compared.
    control: AtomicPtr<protocol::Control>,
    /// The process that `control` belongs to. A child that shares or copied this memory without running the
    /// fork handler (vfork, a raw clone) has another id.
    owner: AtomicU32,
    /// First doorbell page.
    doorbells: AtomicUsize,
    /// One bit for each doorbell in use.
    rung: AtomicU32,
    /// Memory was marked with advice on forks, which the child of a fork inherits (see
    /// `Control::fork_advice`).
    fork_advice: AtomicU32,
    /// Guards were put over memory, which the child of a fork inherits (see `Control::guards`).
    guards: AtomicU32,
    /// The program has a seccomp filter, which the child of a fork inherits.
    confined: AtomicU32,
    /// Files of tmpfs are managed in this run (see `Control::files`).
    files: AtomicU32,
    /// The agent makes the forks of this run itself (see `Control::forks`).
    forks: AtomicU32,
    /// The ident page; one for a whole family of forks, since each child finds it empty.
    ident: AtomicUsize,
    address: UnsafeCell<Address>,
}

// SAFETY: `address` is written before the process has a second thread and only read afterwards; the rest is
// atomic.
unsafe impl Sync for AgentState {}

// In .data by force: zeros would land in .bss otherwise. What each process writes lies together (.data.hot):
// each page of .data that is written is one of memory that is never swapped.
#[unsafe(link_section = ".data.hot")]
static STATE: AgentState = AgentState {
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
    address: UnsafeCell::new(Address { name: [0; NAME_MAX], name_len: 0, token: [0; TOKEN_LEN] }),
};

type Constructor = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: Constructor = constructor;

/// Runs when the dynamic linker has loaded everything, before `main`. The GNU C library passes what `main`
/// gets. Others pass nothing, and the registers hold anything: musl has the environment in a variable by now.
unsafe extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, passed: *const *const c_char) {
    let envp = match (sys::weak!("gnu_get_libc_version"), sys::weak!("__environ")) {
        (0, 0) => core::ptr::null(),
        // SAFETY: the C library's variable of this name, of a pointer.
        (0, place) => unsafe { (place as *const *const *const c_char).read() },
        _ => passed,
    };
    // SAFETY: an array of strings that ends with a null pointer, or null.
    unsafe { begin(envp) };
}

/// # Safety
/// As for `find_variable`; and the process has one thread.
unsafe fn begin(envp: *const *const c_char) {
    // Programs in valgrind are memory of valgrind's own process, a static program, which has its own agent.
    if sys::is_in_valgrind() {
        return;
    }
    open::find_next();
    files::find_next();
    own_thread::find_next();
    threads::note_thread();
    // SAFETY: the caller's promise.
    if let Some(address) = unsafe { find_address(envp) } {
        // SAFETY: constructors run one after the other, and nothing reads the address before the line after
        // this one.
        unsafe { STATE.address.get().write(address) };
        // SAFETY: as above.
        unsafe {
            readable::learn(envp);
            preload::learn(envp);
        }
        planted::address_is_known();
        if !trap::program_begins() {
            handshake::join(protocol::KIND_EXEC);
        }
    }
    // SAFETY: as above.
    if unsafe { find_variable(envp, protocol::ENV_DISPATCH) } == Some(b"1") {
        let control = mmap::own_control();
        // SAFETY: the page stays mapped for as long as the process lives.
        let board = control.map(|control| unsafe { &raw mut (*control).board });
        // SAFETY: as above.
        if let Some(asked) = unsafe { find_variable(envp, words::ENV_WINDOWS) }
            && pages::start(asked).is_err()
        {
            handshake::write_stderr_line("is not paged by windows: that is not possible here");
        }
        let armed = || trap::prepare(control.is_some().into()).and_then(|_| trap::arm(board));
        if !trap::is_armed() && armed().is_err() {
            handshake::write_stderr_line("does not trap its system calls: that is not possible here");
        }
    }
}

/// Looks for `MEMSPILL_AGENT=NAME:TOKEN`. Anything malformed counts as absent.
///
/// # Safety
/// As for `find_variable`.
unsafe fn find_address(envp: *const *const c_char) -> Option<Address> {
    // SAFETY: the caller's promise.
    unsafe { find_variable(envp, protocol::ENV_NAME) }.and_then(parse_address)
}

/// The value of a variable in the environment.
///
/// # Safety
/// `envp` is null or a null-terminated array of C strings that stay as they are.
unsafe fn find_variable(envp: *const *const c_char, name: &str) -> Option<&'static [u8]> {
    if envp.is_null() {
        return None;
    }
    let mut next = envp;
    loop {
        // SAFETY: `next` has not passed the terminating null pointer.
        let entry = unsafe { next.read() };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the entries are C strings.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if value.is_some() {
            return value;
        }
        // SAFETY: the entry was not the terminator, so there is one more.
        next = unsafe { next.add(1) };
    }
}

fn parse_address(value: &[u8]) -> Option<Address> {
    let name_len = value.len().checked_sub(TOKEN_LEN + 1)?;
    let (name, rest) = value.split_at_checked(name_len)?;
    let token: [u8; TOKEN_LEN] = rest.strip_prefix(b":")?.try_into().ok()?;
    let mut address = Address { name: [0; NAME_MAX], name_len, token };
    if name.is_empty() {
        return None;
    }
    address.name.get_mut(..name_len)?.copy_from_slice(name);
    Some(address)
}

/// Nothing here is meant to panic. If it does, the memory is in doubt: end at once.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    sys::die()
}
