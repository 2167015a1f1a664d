//! The process pages by itself, where the supervisor gets no userfaultfd of it: the pages of plain anonymous
//! memory are taken out and brought back here, and the supervisor keeps the bytes.
//!
//! A page that is away is a hole (`holes/`). With a userfaultfd of the process's own nothing stands there,
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
//! | `holes/` | what stands where a page is away; memory that is registered |
//! | `moving.rs` | mremap there |
//! | `kernel.rs` | what is asked of the kernel |
//! | `uses.rs`, `exclude.rs` | what must stay, for now and for ever |
//! | `evict.rs`, `fill.rs`, `run.rs`, `fault.rs` | out, in, and SIGSEGV |
//! | `reconcile.rs`, `fork.rs` | mappings that change, and their words |
//! | `grow.rs`, `emptied.rs` | new memory, and what was emptied |
//! | `write_protect.rs` | writes to what a fork has left shared |
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
use crate::machine::sys::{self, EIO, PAGE, Result, nr};
use rules::{is_on, switch_off};

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
mod readahead;
pub mod reconcile;
pub mod rules;
pub mod run;
pub mod source;
pub mod supervisor;
pub mod table;
pub mod uses;
pub mod write_protect;

pub use channel::{is_there as has_supervisor, staging};
pub use evict::{empty_staging, install_delivered, take_run};
pub use fork::is_all_here;
pub use from_pool::leave as leave_pool;
pub use notes::take_hints_outside as take_hints;
pub use supervisor::{is_large, is_tight, take_word};
pub use write_protect::{child_is_let_go, protect};

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
    if has_supervisor() {
        channel::disconnect();
        from_pool::forget();
        rules::switch_off();
    }
}

/// Closes what a program that runs already has mapped, and not touched (`grow.rs`).
pub fn close_all_untouched() {
    if is_on() {
        grow::close_all_untouched();
    }
}

/// Notes where the agent's region and its ident page are: none of that is to be taken out.
pub fn keep_region(start: usize, len: usize, ident: usize) {
    uses::keep(uses::REGION, start, len);
    uses::keep(uses::IDENT, ident, PAGE);
}

/// Private memory that is kept here: where it is, and how long. None where the process does not page itself.
pub fn own_memory() -> (usize, usize) {
    uses::kept(uses::TABLES)
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
    holes::begin(registers)?;
    let own = kernel::map_private(table::OWN_BYTES + evict::OWN_BYTES)?;
    table::make(own)?;
    let staging = own + table::OWN_BYTES;
    evict::use_staging(staging);
    uses::keep(uses::TABLES, own, table::OWN_BYTES + evict::OWN_BYTES);
    holes::try_out(staging)?;
    is_seen(staging)?;
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

/// Can it be asked where a mapping lies? (Not before Linux 6.11.)
fn is_seen(page: usize) -> Result<()> {
    let is_seen = kernel::mapping_from(page).is_some_and(|mapping| mapping.start <= page && mapping.is_plain);
    if is_seen { Ok(()) } else { Err(EIO) }
}

/// SIGSEGV or SIGBUS. True: the thread goes on where `context` says.
pub fn fault(info: &Info, context: &mut Context) -> bool {
    is_on() && fault::handle(info, context)
}

/// The result of a trapped call that `answer` answers. None: it is made as the program asked.
pub fn answered(
    number: usize,
    args: [usize; 6],
    answer: impl FnOnce(usize, [usize; 6]) -> Option<Result<usize>>,
) -> Option<Result<usize>> {
    if !is_on() {
        return None;
    }
    let answered = answer(number, args);
    if answered.is_none() {
        exclude::before_call(number, &args);
    }
    answered
}

/// Memory that a call needs in its place, beside what it touches.
pub fn needed_by(number: usize, args: &[usize; 6]) -> Option<(usize, usize)> {
    exclude::needed_by(number, args).filter(|_| is_on())
}

/// mmap or munmap by the agent's own hooks: trapped where the words of pages must follow it.
///
/// # Safety
/// As for `sys::syscall`.
pub unsafe fn call_that_maps(number: usize, args: [usize; 6]) -> Result<usize> {
    if is_on() {
        // SAFETY: the caller's promise.
        return unsafe { sys::syscall(number, args) };
    }
    // SAFETY: the caller's promise.
    unsafe { sys::syscall_untrapped(number, args) }
}

/// Processes with the same descriptors, and each its own memory, would have the other's memory for theirs.
pub fn may_share_descriptors() -> bool {
    !is_on()
}

/// Is no page on its way? Where a word says that one is away the supervisor knows that nothing was there.
pub fn may_end() -> bool {
    !is_on() || fork::is_nothing_on_its_way()
}

/// Memory that is the agent's own: address, bytes.
pub fn each_own(add: &mut dyn FnMut((usize, usize))) {
    add(uses::kept(uses::TABLES));
    add(uses::kept(uses::REGION));
}

/// The process pages itself no more: nothing is away, no call is trapped, and nothing is taken out. What is
/// mapped stays.
pub fn end() {
    if is_on() {
        holes::end();
        switch_off();
    }
    kernel::close_all();
}

/// Before a fork (`fork.rs`). Err: it must not be made.
pub fn fork_begins(ready: impl FnOnce() -> Result<()>) -> Result<()> {
    if is_on() { fork::begins(ready) } else { Ok(()) }
}

/// In the parent.
pub fn fork_ends(is_made: bool) {
    if is_on() {
        fork::ends(is_made);
    }
}

pub fn in_child() {
    if is_on() {
        fork::in_child();
    }
}

/// A thread ends, whose list of robust locks this is: the kernel writes to those that it holds.
pub fn keep_locks_held(list: usize) {
    if is_on() {
        exclude::keep_locks_held(list);
    }
}

/// Is all of [start, end) in its place, which the caller has said to be in use? Then it stays. Nothing is
/// begun or waited for here, so a signal may come in the middle of it.
pub fn is_there(start: usize, end: usize, writes: bool) -> bool {
    if !is_on() {
        return true;
    }
    let mut at = start;
    while let Some((page, word)) = table::next(at, end) {
        match table::load(word).state() {
            words::EXCLUDED => {}
            words::PROTECTED if !writes => {}
            _ => return false,
        }
        at = page + PAGE;
    }
    true
}

/// What a thread of the program calls to bring a page, or where it changes a mapping, on the descriptors that
/// are the agent's: numbers, and the first argument. A filter of system calls must let these pass.
pub fn calls_on_descriptors() -> impl Iterator<Item = (usize, Option<usize>)> {
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
    .into_iter()
    .filter(|_| is_on())
}

/// Is what calls from rewritten sites use left unsaid? In a test, to show that it would be found.
pub fn is_site_unsaid() -> bool {
    !rules::holds(rules::Rule::Sites)
}

/// Brings all of [start, end), which the caller has said to be in use.
pub fn bring(start: usize, end: usize, writes: bool) {
    if is_on() {
        fill::settle_all(start, end, writes);
    }
}

/// May the page at an address be away, or be taken out meanwhile?
pub fn may_be_away(addr: usize) -> bool {
    // Most words that are asked about are small numbers.
    is_on()
        && (PAGE..table::TOP).contains(&addr)
        && kernel::mapping_from(addr).is_some_and(|mapping| mapping.start <= addr && mapping.is_plain)
}

/// The kernel will write there when a thread ends.
pub fn exclude_word(addr: usize) {
    if is_on() {
        exclude::exclude(addr, size_of::<u32>(), FOR_KERNEL);
    }
}

const _: () = assert!(words::SLOTS_MAX > 1 << 40);
