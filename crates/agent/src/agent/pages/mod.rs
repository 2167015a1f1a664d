//! The process pages by itself, where the supervisor gets no userfaultfd of it: the pages of plain anonymous
//! memory are taken out and brought back here, and the supervisor keeps the bytes.
//!
//! A page that is away is a hole (`holes.rs`). With a userfaultfd of the process's own nothing stands there,
//! and a fault is SIGBUS. Else it is a guard marker (MADV_GUARD_INSTALL, Linux 6.13), and a fault is SIGSEGV.
//! System calls find their pages by the dispatch, which sees them all. A *window* is the moment in which
//! pages have no protection, so that whoever touches them faults, and waits: only inside of one do pages
//! change between there and away. Each page has a word (`common/src/words.rs`) that says what is known of it,
//! in memory that a supervisor can share.
//!
//! ```text
//!   fault ─▶ fault.rs ─ word ─┬─▶ fill.rs ── a slot's bytes ◀── supervisor.rs, from_pool.rs   gate: together
//!   trapped call ─ uses ──────┘    from a rewritten site: one that finds a page away is trapped then
//!   evictor ─▶ evict.rs ─ looks at words, uses.rs ─ moves or copies ─▶ staging                gate: together
//!   trapped munmap, mprotect, ... ─▶ calls/mappings.rs;  fork ─▶ fork.rs                      gate: alone
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `gate.rs` | who may be at work at the same time |
//! | `table.rs` | the words: where they are, which steps they take |
//! | `holes.rs` | what stands where a page is away; memory that is registered |
//! | `moving.rs` | mremap there |
//! | `kernel.rs` | what is asked of the kernel |
//! | `uses.rs`, `exclude.rs` | what must stay, for now and for ever |
//! | `evict.rs`, `fill.rs`, `run.rs`, `fault.rs` | out, in, and SIGSEGV |
//! | `reconcile.rs`, `fork.rs` | mappings that change, and their words |
//! | `grow.rs`, `emptied.rs` | new memory, and what was emptied |
//! | `source.rs` | where bytes are kept, in tests |
//! | `supervisor.rs` | the same, by a supervisor |
//! | `channel.rs` | what is shared with it |
//! | `from_pool.rs`, `notes.rs` | a page read out of its pool, by the thread that needs it |
//! | `rules.rs` | the switch |
//!
//! What must hold:
//!
//! - Each change of mappings is made alone in the gate, with its words: a call that is not seen would bring
//!   old bytes back.
//! - The thread that sets a word to EVICTING or FILLING must clear it, and must not block before it has.
//! - Inside the gate nothing is touched that may be away.
//! - A call's pages are said to be in use before their words are looked at, and words are marked before it is
//!   looked who uses the pages. So no call meets a window.
//!
//! Not covered: programs that register a userfaultfd over such memory or have a seccomp filter of their own;
//! others that look into the process or write to it (ptrace, process_vm_writev); guests of KVM; the
//! descriptors of a program that has reached its limit of them; main stacks stay, so do memory with a
//! protection key and what is advised not to be forked. A program at vm.max_map_count ends, where a window
//! finds no room.

use crate::common::words::{self, FOR_KERNEL};
use crate::machine::context::{Context, Info};
use crate::machine::sys::{self, EIO, PAGE, PROT_NONE, Result, nr};

pub mod channel;
pub mod emptied;
pub mod evict;
pub mod exclude;
pub mod fault;
pub mod fill;
pub mod fork;
pub mod from_pool;
pub mod gate;
pub mod grow;
pub mod holes;
pub mod kernel;
mod maps_text;
pub mod moving;
pub mod notes;
pub mod reconcile;
pub mod rules;
pub mod run;
pub mod source;
pub mod supervisor;
pub mod table;
pub mod uses;

pub use channel::{is_there as has_supervisor, staging};
pub use evict::{empty_staging, install_delivered, take_run};
pub use fork::{begins as fork_begins, ends as fork_ends, in_child, is_all_here};
pub use from_pool::leave as leave_pool;
pub use notes::take_hints_outside as take_hints;
pub use rules::is_on;
pub use supervisor::{is_tight, take_word};

/// Pages are kept by the supervisor that has sent these descriptors, and perhaps that of its pool, to a new
/// program or to the child of a fork, which pages itself. Before the evictor is made, which needs the
/// descriptors.
pub fn connect(control: i32, bell: i32, pool: Option<i32>, registers: bool) -> Result<()> {
    if !is_on() {
        start(registers)?;
    }
    channel::connect(control, bell)?;
    from_pool::connect(pool);
    Ok(())
}

/// The agent has not joined.
pub fn disconnect() {
    channel::disconnect();
    from_pool::forget();
    rules::switch_off();
}

/// Where the agent's region and its ident page are.
pub fn keep_region(start: usize, len: usize, ident: usize) {
    uses::keep(uses::REGION, start, len);
    uses::keep(uses::IDENT, ident, PAGE);
}

/// Private memory that is the agent's: where it is, and how long.
pub fn own_memory() -> (usize, usize) {
    uses::kept(uses::WINDOWS)
}

/// The descriptors that the evictor needs.
pub fn descriptors() -> [i32; 5] {
    let [mem, maps, pagemap, words, .., uffd] = kernel::DESCRIPTORS.all();
    [mem, maps, pagemap, words, uffd]
}

/// Makes the process one that can page itself. `registers`: pages are away in memory that is
/// registered with a userfaultfd of the process's own. Before its calls are trapped, while it has one thread.
/// Err: it cannot be done here.
pub fn start(registers: bool) -> Result<()> {
    kernel::open_own()?;
    if registers {
        holes::open_descriptor()?;
    }
    let own = kernel::map_private(table::OWN_BYTES + evict::OWN_BYTES)?;
    table::make(own)?;
    let staging = own + table::OWN_BYTES;
    evict::use_staging(staging);
    uses::keep(uses::WINDOWS, own, table::OWN_BYTES + evict::OWN_BYTES);
    try_out(staging)?;
    // What the kernel knows of the first thread: its id, its robust list, rseq. A program without a loader
    // tells it later.
    let thread = thread_pointer()?;
    if thread != 0 {
        exclude::exclude(thread.wrapping_sub(PAGE), 2 * PAGE, FOR_KERNEL);
    }
    rules::switch_on();
    Ok(())
}

/// 0: it has none yet.
fn thread_pointer() -> Result<usize> {
    const ARCH_PRCTL: usize = 158;
    const ARCH_GET_FS: usize = 0x1003;
    let mut pointer = 0usize;
    // SAFETY: the kernel writes a word.
    unsafe { sys::syscall(ARCH_PRCTL, [ARCH_GET_FS, &raw mut pointer as usize, 0, 0, 0, 0]) }?;
    Ok(pointer)
}

/// Does with a page of the agent's all that is done with pages later.
fn try_out(page: usize) -> Result<()> {
    if holes::are_registered() {
        holes::try_out()?;
        return is_seen(page);
    }
    let bytes = [7u8; 64];
    // SAFETY: the page is the agent's, and nobody touches it meanwhile.
    unsafe {
        kernel::protect(page, PAGE, PROT_NONE)?;
        kernel::install_guards(page, PAGE)?;
        kernel::remove_guards(page, PAGE)?;
        if !kernel::write_through(page, bytes.as_ptr() as usize, bytes.len()) {
            return Err(EIO);
        }
        kernel::protect(page, PAGE, kernel::READ_WRITE)?;
        if (page as *const [u8; 64]).read_volatile() != bytes {
            return Err(EIO);
        }
    }
    is_seen(page)
}

/// Can it be asked where a mapping lies? (Not before Linux 6.11.)
fn is_seen(page: usize) -> Result<()> {
    let is_seen = kernel::mapping_from(page).is_some_and(|mapping| mapping.start <= page && mapping.is_plain);
    if is_seen { Ok(()) } else { Err(EIO) }
}

/// SIGSEGV. True: the thread goes on where `context` says.
pub fn fault(info: &Info, context: &mut Context) -> bool {
    fault::handle(info, context)
}

pub use exclude::{before_call, keep_locks_held, needed_by};

/// Is all of [start, end) in its place, which the caller has said to be in use? Then it stays. Nothing is
/// begun or waited for here, so a signal may come in the middle of it.
pub fn is_there(start: usize, end: usize) -> bool {
    let mut at = start;
    while let Some((page, word)) = table::next(at, end) {
        if table::load(word).state() != words::EXCLUDED {
            return false;
        }
        at = page + PAGE;
    }
    true
}

/// What a thread of the program calls to bring a page, or where it changes a mapping, on the descriptors that
/// are the agent's: numbers, and the first argument. A filter of system calls must let these pass.
pub fn calls_on_descriptors() -> [(usize, Option<usize>); 7] {
    let [mem, maps, pagemap, _, bell, pool, uffd] = kernel::DESCRIPTORS.all().map(|fd| Some(fd as usize));
    [
        (nr::IOCTL, uffd),
        (nr::IOCTL, maps),
        (nr::IOCTL, pagemap),
        (nr::PREAD64, pool),
        (nr::PREAD64, mem),
        (nr::PWRITE64, mem),
        (nr::WRITE, bell),
    ]
}

/// Is what calls from rewritten sites use left unsaid? In a test, to show that it would be found.
pub fn is_site_unsaid() -> bool {
    !rules::holds(rules::Rule::Sites)
}

/// Brings all of [start, end), which the caller has said to be in use.
pub fn bring(start: usize, end: usize) {
    fill::settle_all(start, end);
}

/// May the page at an address be away, or be taken out meanwhile?
pub fn may_be_away(addr: usize) -> bool {
    // Most words that are asked about are small numbers.
    (PAGE..table::TOP).contains(&addr)
        && kernel::mapping_from(addr).is_some_and(|mapping| mapping.start <= addr && mapping.is_plain)
}

/// The kernel will write there when a thread ends.
pub fn exclude_word(addr: usize) {
    exclude::exclude(addr, size_of::<u32>(), FOR_KERNEL);
}

const _: () = assert!(words::SLOTS_MAX > 1 << 40);
