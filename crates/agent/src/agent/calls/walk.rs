//! Finds what memory a call uses, by its line in the table (`common/src/call_table.rs`) and by what lies
//! behind its pointers.
//!
//! The program's memory is read as the kernel is about to read it, and guarded: where something is not there
//! the walk ends, and the kernel says EFAULT. A list that another thread changes meanwhile is a race of the
//! program's own.

use core::mem::size_of;

use crate::common::call_table::{self, Pointer, Size};
use crate::machine::gadget;
use crate::machine::sys::{PAGE, nr};
use crate::pages;

/// What is used: (address, bytes, whether the kernel writes).
pub type Sink<'a> = &'a mut dyn FnMut(usize, usize, bool);

/// The kernel's UIO_MAXIOV.
const VECTORS_MAX: usize = 1024;
/// Longest text (MAX_ARG_STRLEN), and how many there may be in a list.
const TEXT_MAX: usize = 32 * PAGE;
const TEXTS_MAX: usize = 1 << 20;
/// The kernel's FUTEX_WAITV_MAX.
const WAITS_MAX: usize = 128;
const IOCTL_MIN: usize = 64;
/// As far as a struct is searched for pointers, in bytes.
const STRUCT_MAX: usize = 512;
/// For a pointer of a call that is not in the table.
const UNKNOWN: u32 = 4096;

const PROCESS_VM_READV: usize = 310;
const PROCESS_VM_WRITEV: usize = 311;

/// Tells `sink` of all that the call uses.
pub fn walk(number: usize, args: &[usize; 6], sink: Sink<'_>) {
    if matches!(number, PROCESS_VM_READV | PROCESS_VM_WRITEV) && args[0] == own_process() {
        // A range of another process's memory is taken for this one's.
        vector(args[3], args[4], number == PROCESS_VM_WRITEV, sink);
    }
    if let Some(call) = call_table::find(number) {
        for pointer in call.pointers {
            follow(*pointer, args, sink);
        }
    } else {
        for arg in 0..6 {
            follow(Pointer { arg, writes: true, size: Size::Bytes(UNKNOWN) }, args, sink);
        }
    }
}

fn own_process() -> usize {
    // SAFETY: no memory involved.
    unsafe { gadget::call(nr::GETPID, [0; 6]) }.unwrap_or(0)
}

fn argument(args: &[usize; 6], index: u8) -> usize {
    args.get(usize::from(index)).copied().unwrap_or(0)
}

fn follow(pointer: Pointer, args: &[usize; 6], sink: Sink<'_>) {
    let addr = argument(args, pointer.arg);
    let number_of = |arg| argument(args, arg);
    let len = match pointer.size {
        // No call has anything in the first page, and small numbers are no pointers.
        _ if addr < PAGE => return,
        Size::Bytes(len) => len as usize,
        Size::Arg(arg) => number_of(arg),
        Size::Array(arg, unit) => (number_of(arg) as u32 as usize).saturating_mul(unit as usize),
        Size::Pages(arg) => number_of(arg).div_ceil(PAGE),
        Size::Word(arg) => gadget::read::<u32>(number_of(arg)).unwrap_or(0) as usize,
        Size::Text => return text(addr, sink),
        Size::Ioctl(arg) => return pointers(addr, (number_of(arg) >> 16 & 0x3fff).max(IOCTL_MIN), sink),
        Size::Struct(arg) => return pointers(addr, number_of(arg), sink),
        Size::Filter => return filter(addr, sink),
        Size::Descriptors(arg) => (number_of(arg) as u32 as usize).div_ceil(64) * 8,
        Size::Vector(arg) => return vector(addr, number_of(arg), pointer.writes, sink),
        Size::Message => return message(addr, pointer.writes, sink),
        Size::Messages(arg) => return messages(addr, number_of(arg), sink),
        Size::Texts => return texts(addr, sink),
        Size::Waits(arg) => return waits(addr, number_of(arg), sink),
        Size::TwoWaits => return waits(addr, 2, sink),
        Size::MaskPair => {
            sink(addr, 16, false);
            if let Some([mask, _]) = gadget::read::<[usize; 2]>(addr) {
                sink(mask, 8, false);
            }
            return;
        }
    };
    sink(addr, len, pointer.writes);
}

/// A struct of which is not known what it holds: whatever looks like a pointer to managed memory is one.
/// Other memory behind it is not protected from becoming managed meanwhile.
fn pointers(addr: usize, len: usize, sink: Sink<'_>) {
    sink(addr, len, true);
    for index in 0..len.min(STRUCT_MAX) / size_of::<usize>() {
        let Some(word) = gadget::read::<usize>(addr.wrapping_add(index * size_of::<usize>())) else {
            return;
        };
        if pages::may_be_away(word) {
            sink(word, UNKNOWN as usize, true);
        }
    }
}

fn filter(addr: usize, sink: Sink<'_>) {
    // If it is none, it is a struct of other calls that take it in the same place.
    sink(addr, UNKNOWN as usize, true);
    if let Some([count, code]) = gadget::read::<[usize; 2]>(addr) {
        /// `struct sock_filter`.
        const EACH: usize = 8;
        sink(code, (count as u16 as usize) * EACH, false);
    }
}

fn vector(addr: usize, count: usize, writes: bool, sink: Sink<'_>) {
    let count = count.min(VECTORS_MAX);
    sink(addr, count * size_of::<[usize; 2]>(), false);
    for index in 0..count {
        let Some([base, len]) = gadget::read::<[usize; 2]>(addr.wrapping_add(index * 16)) else {
            return;
        };
        sink(base, len, writes);
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    name: usize,
    name_len: u32,
    unused: u32,
    vector: usize,
    vector_len: usize,
    control: usize,
    control_len: usize,
    flags: usize,
}
const _: () = assert!(size_of::<Message>() == 56);

fn message(addr: usize, writes: bool, sink: Sink<'_>) {
    // The lengths of received parts are written into the struct too.
    sink(addr, size_of::<Message>(), writes);
    let Some(message) = gadget::read::<Message>(addr) else {
        return;
    };
    // Where there is none, nobody looks at its length.
    if message.name != 0 {
        sink(message.name, message.name_len as usize, writes);
    }
    if message.control != 0 {
        sink(message.control, message.control_len, writes);
    }
    vector(message.vector, message.vector_len, writes, sink);
}

fn messages(addr: usize, count: usize, sink: Sink<'_>) {
    /// `struct mmsghdr`.
    const EACH: usize = 64;
    let count = (count as u32 as usize).min(VECTORS_MAX);
    sink(addr, count * EACH, true);
    for index in 0..count {
        message(addr.wrapping_add(index * EACH), true, sink);
    }
}

fn text(addr: usize, sink: Sink<'_>) {
    sink(addr, text_len(addr), false);
}

/// How far a text reaches, with its NUL; as far as it can be read.
fn text_len(addr: usize) -> usize {
    let mut len = 0;
    while len < TEXT_MAX {
        let at = addr.wrapping_add(len);
        // Words do not cross pages.
        if at.is_multiple_of(8) {
            match gadget::read::<u64>(at) {
                None => return len,
                Some(word) if has_zero(word) => return len + zero_at(word) + 1,
                Some(_) => len += 8,
            }
        } else {
            match gadget::read::<u8>(at) {
                None => return len,
                Some(0) => return len + 1,
                Some(_) => len += 1,
            }
        }
    }
    len
}

fn has_zero(word: u64) -> bool {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
}

fn zero_at(word: u64) -> usize {
    let zeros = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
    zeros.trailing_zeros() as usize / 8
}

fn texts(addr: usize, sink: Sink<'_>) {
    let mut count = 0;
    while count < TEXTS_MAX {
        match gadget::read::<usize>(addr.wrapping_add(count * 8)) {
            Some(at) if at != 0 => text(at, sink),
            _ => break,
        }
        count += 1;
    }
    sink(addr, (count + 1) * 8, false);
}

fn waits(addr: usize, count: usize, sink: Sink<'_>) {
    /// `struct futex_waitv`: value, address, flags, reserved.
    const EACH: usize = 24;
    let count = (count as u32 as usize).min(WAITS_MAX);
    sink(addr, count * EACH, false);
    for index in 0..count {
        if let Some(word) = gadget::read::<usize>(addr.wrapping_add(index * EACH + 8)) {
            sink(word, 4, true);
        }
    }
}
