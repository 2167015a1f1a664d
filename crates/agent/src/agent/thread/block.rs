//! The *block*: all that the dispatch keeps for one thread of the program.
//!
//! ```text
//!   arena:  ‖ alternate stack 64 KiB | block 4 KiB ‖ alternate stack | block ‖ ...          ‖: no access
//! ```
//!
//! A handler finds the block by the stack on which it runs. The instructions that run on the program's stack
//! (`enter.rs`, `clone.rs`) find it by %gs. But the program may point %gs elsewhere by an instruction
//! (wrgsbase), of which nobody is told. So the way to them from a handler points %gs to the block, and the
//! way back to the program gives %gs its own value (`Block::gs`); the way from a rewritten site goes by the
//! handler where %gs is not the block. A program that has never set %gs finds it where its block is, and may
//! put back what it has found.
//!
//! A block is never given back, only used again by a later thread, so that the evictor can go through the
//! list of them whenever it likes. None of this memory may ever be managed: the kernel writes signal frames
//! there. So all blocks lie in one reservation, of which the supervisor is told (`Ready`); a process has no
//! more threads than have room in it.
//!
//! A thread that ends leaves its block before the kernel is done with it: the word that its end clears is
//! written last. So the block is used again only when no thread has its number any more. A process with the
//! same memory (CLONE_VM without CLONE_THREAD) may end, or be killed, without a word: its block is used again
//! by its number alone, where its parent and it itself see the same one.
//!
//! If calls are trapped only until the process has joined there is one block, which is the program's memory
//! as any other from then on (`leave.rs`).
//!
//! The child of a vfork uses its parent's block, since the parent sleeps until it is gone. The child of a
//! fork has a copy of all blocks, of which only its own is in use.

use crate::common::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
#[cfg(not(shuttle))]
use core::arch::asm;
use core::mem::offset_of;

use crate::common::protocol::{RangeInUse, SLOT_RANGES, Slot};
use crate::common::streams::Streams;
use crate::machine::context::{AltStack, NO_STACK};
use crate::machine::gadget;
use crate::machine::sys::{self, PAGE, Result, nr};
use crate::supervisor::address;

const STACK_BYTES: usize = 16 * PAGE;
/// vforks inside the children of vforks.
pub const VFORKS: usize = 4;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// The thread is about to end.
pub const LEFT: u32 = 2;
/// Somebody is about to take it.
const CLAIMED: u32 = 3;

const ROOM_BYTES: usize = STACK_BYTES + PAGE;
const BLOCK_PAGES: usize = 1 + ROOM_BYTES / PAGE;
/// There are fewer if a limit on the address space leaves no room for so many.
const BLOCKS_MAX: usize = 8192;
const BLOCKS_MIN: usize = 64;

/// The system call that is being made, as the program wrote it: enough to show the program as it was before,
/// or as it is after the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    pub number: usize,
    pub args: [usize; 6],
    /// Behind the program's instruction.
    pub next: usize,
    /// With which stack pointer, and with which result the program goes on, where the call is of the clone
    /// family: such a call comes back twice.
    pub stack: usize,
    pub result: usize,
}

const NO_FRAME: Frame = Frame { number: 0, args: [0; 6], next: 0, stack: 0, result: 0 };

/// A vfork under way, whose child uses its parent's block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parent {
    pub frame: Frame,
    pub child_stack: usize,
    pub mask: u64,
    pub reserved_mask: u64,
    pub alternate: AltStack,
    pub gs: usize,
    pub filters: usize,
}

/// The registers that the preparation of a call may change, and a call does not.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Saved {
    pub general: [usize; 6],
    pub vectors: [[u64; 2]; 16],
}

const NOTHING_SAVED: Saved = Saved { general: [0; 6], vectors: [[0; 2]; 16] };

const NO_PARENT: Parent = Parent {
    frame: NO_FRAME,
    child_stack: 0,
    mask: 0,
    reserved_mask: 0,
    alternate: NO_STACK,
    gs: 0,
    filters: 0,
};

#[repr(C)]
pub struct Block {
    /// The address of this block itself.
    pub address: usize,
    /// End of the alternate stack, on which also the first steps of a new thread run.
    pub stack_top: usize,
    pub frame: Frame,
    pub state: AtomicU32,
    pub vforks: AtomicU32,
    /// The mask that the thread gets back when a call is over that is made with signals blocked.
    pub mask: u64,
    /// The dispatch's own signals that the program thinks it has blocked (`signals.rs`).
    pub reserved_mask: u64,
    /// Sets of signals for the kernel, in place of the program's: one, and the pair that pselect6 takes.
    pub set: u64,
    pub set_and_size: [usize; 2],
    /// The program's alternate stack.
    pub alternate: AltStack,
    /// The flags of a clone that is under way, and the stack pointer of its child.
    pub flags: usize,
    pub child_stack: usize,
    /// A fork is under way: its child joins.
    pub joins: bool,
    /// The same, but it joins late (`late.rs`).
    pub is_late: bool,
    pub parents: [Parent; VFORKS],
    /// The thread's number.
    pub tid: u32,
    /// The same of a process of its own, as its parent sees it; 0: it is a thread.
    pub process: AtomicU32,
    /// The program's %gs, while %gs is the block's address for a call: see `gadget::gs`.
    pub gs: usize,
    /// The address in %fs when the thread trapped last.
    pub fs: usize,
    pub slot: Slot,
    /// The head of the list of robust locks that the thread holds.
    pub robust_list: usize,
    /// Not 0 while a call from a rewritten site is prepared (`enter.rs`): the registers are in `saved`.
    pub preparing: u32,
    /// Its calls are trapped no more (`traced.rs`; a test has asked for it).
    pub has_left: bool,
    /// It has asked to be traced (`traced.rs`).
    pub is_to_be_traced: bool,
    /// rbx, rbp, r12 to r15 of the program, and xmm0 to xmm15.
    pub saved: Saved,
    /// The page on which the thread looks whether its fault is the program's own (`pages/uses.rs`); or 0.
    pub hazard: AtomicUsize,
    /// Where it goes through memory in order (`streams.rs` of common/).
    pub streams: Streams,
    /// The last seccomp filter that the thread has set itself, and the one that it is to set before its next
    /// call (`filters.rs`); or 0.
    pub filters: AtomicUsize,
    pub wanted_filters: AtomicUsize,
}

const _: () = assert!(core::mem::size_of::<Block>() <= PAGE);

/// What there is once in a process.
pub struct Shared {
    first: AtomicUsize,
    is_armed: AtomicBool,
    /// The address of the blocks, their bytes, how many have room, and how many were made.
    arena: AtomicUsize,
    bytes: AtomicUsize,
    blocks_max: AtomicUsize,
    blocks: AtomicUsize,
    /// The address of more room in the one that was made for `room`; 0: there is none.
    room: AtomicUsize,
}

// In .data by force: this is not to be swapped out.
#[unsafe(link_section = ".data.hot")]
pub static SHARED: Shared = Shared {
    first: AtomicUsize::new(0),
    is_armed: AtomicBool::new(false),
    arena: AtomicUsize::new(0),
    bytes: AtomicUsize::new(0),
    blocks_max: AtomicUsize::new(0),
    blocks: AtomicUsize::new(0),
    room: AtomicUsize::new(0),
};

/// For the instructions that look whether %gs points into it.
pub const SHARED_ARENA: usize = offset_of!(Shared, arena);
pub const SHARED_BYTES: usize = offset_of!(Shared, bytes);

/// Are calls trapped in this process?
pub fn is_armed() -> bool {
    SHARED.is_armed.load(Ordering::Acquire)
}

pub fn set_armed(is_armed: bool) {
    SHARED.is_armed.store(is_armed, Ordering::Release);
}

/// The calling thread's block: beside the stack on which this runs.
///
/// # Safety
/// The thread is armed and stands on its alternate stack, as in each handler; and the reference is not used
/// after the call or handler that it belongs to.
#[cfg(shuttle)]
pub unsafe fn current<'a>() -> &'a mut Block {
    // SAFETY: the caller's promise.
    unsafe { &mut *crate::kernel::block() }
}

/// # Safety
/// As above.
#[cfg(not(shuttle))]
pub unsafe fn current<'a>() -> &'a mut Block {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    let arena = SHARED.arena.load(Ordering::Relaxed);
    let index = pointer.wrapping_sub(arena) / (BLOCK_PAGES * PAGE);
    if index >= SHARED.blocks_max.load(Ordering::Relaxed) {
        // A thread of the agent's own, which has no block.
        sys::die();
    }
    // SAFETY: the block of that stack, which is the calling thread's and is never given back.
    unsafe { &mut *((arena + index * BLOCK_PAGES * PAGE + PAGE + STACK_BYTES) as *mut Block) }
}

/// Reserves the memory of all blocks, once: (address, bytes). Only while the process has one thread.
pub fn reserve() -> Result<(usize, usize)> {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    // A process that makes a second thread has left before.
    let mut blocks = if address::is_then_free() { 1 } else { BLOCKS_MAX };
    while SHARED.arena.load(Ordering::Relaxed) == 0 {
        let len = blocks * BLOCK_PAGES * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
        match unsafe { gadget::call(nr::MMAP, [0, len, sys::PROT_NONE, flags, usize::MAX, 0]) } {
            Ok(arena) => {
                SHARED.blocks_max.store(blocks, Ordering::Relaxed);
                SHARED.bytes.store(len, Ordering::Relaxed);
                SHARED.arena.store(arena, Ordering::Relaxed);
            }
            Err(errno) if blocks <= BLOCKS_MIN => return Err(errno),
            Err(_) => blocks /= 2,
        }
    }
    let len = SHARED.blocks_max.load(Ordering::Relaxed) * BLOCK_PAGES * PAGE;
    Ok((SHARED.arena.load(Ordering::Relaxed), len))
}

/// How many addresses are reserved for blocks.
pub fn reserved_bytes() -> usize {
    SHARED.bytes.load(Ordering::Relaxed)
}

/// A block for a new thread.
pub fn take() -> Result<*mut Block> {
    blocks().find(|block| claim(*block)).map_or_else(make, Ok)
}

/// Does nobody use the block? Then it is the caller's.
fn claim(block: *mut Block) -> bool {
    // SAFETY: blocks are never given back; the fields are atomic, or read as they are, whoever writes them.
    let (state, process, tid) = unsafe { (&(*block).state, &(*block).process, &raw const (*block).tid) };
    // SAFETY: as above.
    let number = || unsafe { tid.read_volatile() };
    let (before, of) = (state.load(Ordering::Acquire), number());
    let is_left = match before {
        FREE => true,
        LEFT => has_ended(of),
        TAKEN => of != 0 && of == process.load(Ordering::Acquire) && has_ended(of),
        _ => false,
    };
    if !is_left || state.compare_exchange(before, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    if before == TAKEN && number() != of {
        // Another one was faster, and somebody has the block by now; or has left it already.
        let _ = state.compare_exchange(CLAIMED, TAKEN, Ordering::Release, Ordering::Relaxed);
        return false;
    }
    process.store(0, Ordering::Relaxed);
    // SAFETY: the block is nobody's else.
    unsafe {
        (&raw mut (*block).tid).write_volatile(0);
        (&raw mut (*block).slot.count).write_volatile(0);
        (*block).robust_list = 0;
        (*block).hazard.store(0, Ordering::Relaxed);
        (*block).preparing = 0;
        (*block).has_left = false;
        (*block).filters.store(0, Ordering::Relaxed);
        (*block).wanted_filters.store(0, Ordering::Relaxed);
        (*block).is_to_be_traced = false;
    }
    state.store(TAKEN, Ordering::Release);
    true
}

/// Whether no thread has this number.
fn has_ended(tid: u32) -> bool {
    const TKILL: usize = 200;
    const ESRCH: i32 = 3;
    // SAFETY: numbers only, and no signal.
    unsafe { gadget::call(TKILL, [tid as usize, 0, 0, 0, 0, 0]) == Err(ESRCH) }
}

/// Memory for one more: where it begins. It is never given back.
fn make_room() -> Result<usize> {
    let index = SHARED.blocks.fetch_add(1, Ordering::Relaxed);
    if index >= SHARED.blocks_max.load(Ordering::Relaxed) {
        SHARED.blocks.fetch_sub(1, Ordering::Relaxed);
        return Err(sys::EAGAIN);
    }
    let base = SHARED.arena.load(Ordering::Relaxed) + index * BLOCK_PAGES * PAGE;
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: this part of the reservation is nobody's else. (A part that cannot be made accessible is lost.)
    unsafe { gadget::call(nr::MPROTECT, [base + PAGE, ROOM_BYTES, prot, 0, 0, 0]) }?;
    Ok(base + PAGE)
}

/// Room for something of the dispatch's that stays as long as the process, of at most ROOM_BYTES.
pub fn room(bytes: usize) -> Result<usize> {
    let bytes = bytes.next_multiple_of(16);
    if bytes > ROOM_BYTES {
        return Err(sys::ENOMEM);
    }
    loop {
        let at = SHARED.room.load(Ordering::Acquire);
        // The address says where it ends: rooms lie in a row, and each is a whole number of blocks.
        let used = at.wrapping_sub(SHARED.arena.load(Ordering::Relaxed));
        let left = used.next_multiple_of(BLOCK_PAGES * PAGE).wrapping_sub(used);
        let from = match at != 0 && left >= bytes {
            true => at,
            false => make_room().map_err(|_| sys::ENOMEM)?,
        };
        if SHARED.room.compare_exchange(at, from + bytes, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Ok(from);
        }
    }
}

fn make() -> Result<*mut Block> {
    let block = (make_room()? + STACK_BYTES) as *mut Block;
    let none = RangeInUse { start: 0, end: 0 };
    let new = Block {
        address: block as usize,
        stack_top: block as usize,
        frame: NO_FRAME,
        state: AtomicU32::new(TAKEN),
        vforks: AtomicU32::new(0),
        mask: 0,
        reserved_mask: 0,
        set: 0,
        set_and_size: [0; 2],
        alternate: NO_STACK,
        flags: 0,
        child_stack: 0,
        joins: false,
        is_late: false,
        parents: [NO_PARENT; VFORKS],
        tid: 0,
        process: AtomicU32::new(0),
        gs: block as usize,
        fs: 0,
        robust_list: 0,
        slot: Slot { next: 0, count: 0, reserved: 0, ranges: [none; SLOT_RANGES] },
        preparing: 0,
        has_left: false,
        is_to_be_traced: false,
        saved: NOTHING_SAVED,
        hazard: AtomicUsize::new(0),
        streams: Streams::empty(),
        filters: AtomicUsize::new(0),
        wanted_filters: AtomicUsize::new(0),
    };
    // SAFETY: the page is ours, large enough and aligned.
    unsafe { block.write(new) };
    push(block);
    Ok(block)
}

/// Puts a new block at the head of the list.
fn push(block: *mut Block) {
    // SAFETY: the block was just made.
    let slot = unsafe { &raw mut (*block).slot };
    let mut head = SHARED.first.load(Ordering::Acquire);
    loop {
        // SAFETY: nobody else sees the block yet.
        unsafe { (&raw mut (*slot).next).write_volatile(head as u64) };
        match SHARED.first.compare_exchange_weak(head, slot as usize, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

fn of_slot(slot: usize) -> Option<*mut Block> {
    (slot != 0).then(|| (slot - offset_of!(Block, slot)) as *mut Block)
}

/// All blocks, those of threads that are gone too.
pub fn blocks() -> impl Iterator<Item = *mut Block> {
    // SAFETY: blocks are never given back, and `next` does not change once the block is in the list.
    let next = |block: &*mut Block| unsafe { (&raw const (**block).slot.next).read_volatile() } as usize;
    core::iter::successors(of_slot(SHARED.first.load(Ordering::Acquire)), move |block| of_slot(next(block)))
}

/// Where a block and its stack are: from, to.
pub fn memory_of(block: *mut Block) -> (usize, usize) {
    let block = block as usize;
    (block - STACK_BYTES, block + PAGE)
}

/// The address of all blocks, and their bytes; 0 and 0 if there are none.
pub fn arena() -> (usize, usize) {
    (SHARED.arena.load(Ordering::Relaxed), SHARED.bytes.load(Ordering::Relaxed))
}

/// Does an address lie in the memory of all blocks?
pub fn is_memory_of_blocks(at: usize) -> bool {
    at.wrapping_sub(SHARED.arena.load(Ordering::Relaxed)) < SHARED.bytes.load(Ordering::Relaxed)
}

/// The blocks that threads have.
pub fn taken() -> impl Iterator<Item = *mut Block> {
    // SAFETY: blocks are never unmapped; the field is atomic.
    blocks().filter(|block| unsafe { (**block).state.load(Ordering::SeqCst) } == TAKEN)
}

/// The blocks of the program's other threads.
pub fn others(own: &Block) -> impl Iterator<Item = *mut Block> {
    let own = &raw const *own;
    // SAFETY: blocks are never unmapped; the field is atomic.
    let is_taken = |block: *mut Block| unsafe { (*block).state.load(Ordering::SeqCst) } == TAKEN;
    blocks().filter(move |block| is_taken(*block) && !core::ptr::eq(*block, own))
}

/// Is the calling thread the only one of the program?
pub fn is_alone() -> bool {
    // SAFETY: blocks are never unmapped; the field is atomic.
    let is_taken = |block: &*mut Block| unsafe { (**block).state.load(Ordering::SeqCst) } == TAKEN;
    blocks().filter(is_taken).nth(1).is_none()
}

/// Gives back a block that no thread has begun to use, or uses any more.
pub fn give_back(block: *mut Block) {
    // SAFETY: blocks are never unmapped; the fields are the caller's until the state changes.
    unsafe {
        (&raw mut (*block).slot.count).write_volatile(0);
        (*block).robust_list = 0;
        (*block).hazard.store(0, Ordering::Relaxed);
        (*block).state.store(FREE, Ordering::Release);
    }
}

/// In the child of a fork: the other threads are not there.
pub fn forget_others(own: *mut Block) {
    blocks().filter(|block| *block != own).for_each(give_back);
}

impl Block {
    /// Has the thread a seccomp filter of the program's? Then nothing is done by other calls that can be done
    /// by its own (`filters.rs`).
    pub fn is_confined(&self) -> bool {
        self.filters.load(Ordering::Relaxed) != 0
    }

    /// The alternate stack, as the kernel is told of it.
    pub fn kernel_stack(&self) -> AltStack {
        AltStack { at: self.stack_top - STACK_BYTES, flags: 0, unused: 0, len: STACK_BYTES }
    }
}
