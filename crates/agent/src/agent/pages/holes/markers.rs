//! Holes that are guard markers (MADV_GUARD_INSTALL).
//!
//! Taking a marker away shows a page of zeros before any byte is there, so another thread must not be able to
//! look: in a *window*, without protection, it faults, finds FILLING, and waits.

use core::ptr::copy_nonoverlapping;

use crate::common::rules::{Rule, holds};
use crate::common::words::Word;
use crate::machine::sys::{EIO, PAGE, PROT_NONE, Result};
use crate::pages::kernel::{self, end};
use crate::pages::table;
use crate::thread::block;

/// Brings pages with these bytes, which are FILLING by the caller. `prot`: that of their mapping. True: by a
/// window.
pub fn fill(at: usize, len: usize, prot: usize, bytes: usize, by_window: bool) -> bool {
    if !by_window && block::is_alone() {
        open(at, len);
        if kernel::is_writable(prot) {
            // SAFETY: the pages are there, and nobody else touches them; the bytes are as many.
            unsafe { copy_nonoverlapping(bytes as *const u8, at as *mut u8, len) };
        } else {
            write(at, len, bytes);
        }
        return false;
    }
    if prot != 0 && holds(Rule::Window) {
        protect(at, len, 0);
    }
    open(at, len);
    write(at, len, bytes);
    if prot != 0 {
        protect(at, len, if holds(Rule::GiveBack) { prot } else { kernel::READ_WRITE });
    }
    true
}

/// Brings pages of zeros: nobody need be kept from looking.
pub fn fill_zeros(at: usize, len: usize, prot: usize) {
    open(at, len);
    // If several pages come at once the next are about to be touched: one call for all is cheaper than a
    // fault of the kernel's for each. Where it fails they come by that.
    if len > PAGE && kernel::is_writable(prot) {
        kernel::populate_all(at, len, true);
    }
}

/// Brings pages back that nobody can touch, as they were taken out halfway.
pub fn put_back(at: usize, bytes: usize, len: usize) {
    // SAFETY: nobody can touch the pages, and their bytes come back.
    let done = unsafe { kernel::remove_guards(at, len).is_ok() && kernel::write_through(at, bytes, len) };
    if !done {
        end("loses a page: it was taken out halfway");
    }
}

/// New memory that nobody has touched is closed, or stays open, as what is locked does.
pub fn close(from: usize, to: usize, prot: usize) {
    let pages = || (from..to).step_by(PAGE);
    // SAFETY: nobody has touched the memory.
    let is_marked = pages().all(|page| table::obtain(page).is_ok())
        && unsafe { kernel::install_guards(from, to - from) }.is_ok();
    if !is_marked {
        // SAFETY: as above.
        if unsafe { kernel::remove_guards(from, to - from) }.is_err() {
            end("cannot open new memory");
        }
        return;
    }
    for word in pages().filter_map(table::find) {
        table::finish(word, Word::closed(prot as u64));
    }
}

/// The program has given the bytes up.
pub fn drop_from(start: usize, end_at: usize) {
    // SAFETY: nobody needs the bytes, and nobody is filling.
    if unsafe { kernel::remove_guards(start, end_at - start) }.is_err() {
        end("cannot empty pages: their guards stay");
    }
}

/// Does with a page of the agent's own all that is done with others later.
pub fn try_out(page: usize) -> Result<()> {
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
        if (page as *const [u8; 64]).read_volatile() == bytes { Ok(()) } else { Err(EIO) }
    }
}

fn open(at: usize, len: usize) {
    // SAFETY: the pages are FILLING, and whoever else could look waits for them, or there is nobody else.
    if unsafe { kernel::remove_guards(at, len) }.is_err() {
        end("cannot bring a page back: its guard stays");
    }
}

fn protect(at: usize, len: usize, prot: usize) {
    // SAFETY: the pages are FILLING, and whoever faults on them waits.
    if unsafe { kernel::protect(at, len, prot) }.is_err() {
        end("cannot bring a page back: no room for a mapping (vm.max_map_count)");
    }
}

/// Whatever the protection is.
fn write(at: usize, len: usize, bytes: usize) {
    // SAFETY: the pages are FILLING; the bytes are as many.
    if !unsafe { kernel::write_through(at, bytes, len) } {
        end("cannot bring a page back: /proc/self/mem does not write it");
    }
}
