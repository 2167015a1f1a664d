//! While a fork is under way that the agent makes (`forks.rs`), no mapping of the process is to change: a
//! range that is unmapped and mapped anew between the copying of the supervisor's table and that of the
//! kernel's would be in doubt in the child.
//!
//! ```text
//!   readers   the hooks of mmap, munmap, mremap, madvise     as many as there are, nested ones too
//!   writer    a fork                                         alone
//! ```
//!
//! Readers have preference: a signal handler may come in the middle of one and be a reader itself, which must
//! not wait for a writer who waits for the first. A reader who finds a fork waiting gives it a moment, and
//! then goes on, lest many readers keep a fork from its turn.
//!
//! What it does not do: keep out calls inside the C library itself, or by a program's own instructions. A
//! child in which they have put pages in doubt is ended (`door/inherit.rs`). So a writer need not wait for
//! ever either (a reader whose handler left by longjmp never ends).

use crate::common::sync::{AtomicU32, Ordering};
use crate::machine::sys;
use crate::supervisor::state::STATE;

const WRITER: u32 = 1 << 31;
/// Far longer than any call of a reader takes.
const WRITER_WAITS_MS: u32 = 10_000;
/// How long a reader lets a waiting writer go first.
const READER_YIELDS_MS: u32 = 1;

/// The readers that are inside, or `WRITER`.
#[unsafe(link_section = ".data")]
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Writers that wait.
#[unsafe(link_section = ".data")]
static WAITING: AtomicU32 = AtomicU32::new(0);

pub struct Reader;

/// None: the kernel tells of forks, and nobody needs to be kept out.
pub fn read() -> Option<Reader> {
    if STATE.forks.load(Ordering::Relaxed) == 0 {
        return None;
    }
    if WAITING.load(Ordering::Relaxed) != 0 {
        let _ = sys::futex_wait(&INSIDE, INSIDE.load(Ordering::Relaxed), READER_YIELDS_MS);
    }
    loop {
        let inside = INSIDE.load(Ordering::Relaxed);
        if inside & WRITER != 0 {
            let _ = sys::futex_wait(&INSIDE, inside, 0);
        } else if INSIDE.compare_exchange(inside, inside + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Some(Reader);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A writer that did not wait any longer has taken the word over: then this reader is not counted.
        let leave = |inside: u32| (inside & WRITER == 0).then(|| inside.saturating_sub(1));
        let _ = INSIDE.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
        if WAITING.load(Ordering::Relaxed) != 0 {
            sys::futex_wake_all(&INSIDE);
        }
    }
}

/// Keeps readers and other writers out, until `done`. All signals of the caller are blocked.
pub fn write() {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let mut waited_ms = 0;
    loop {
        let inside = INSIDE.load(Ordering::Relaxed);
        // Another fork ends by itself.
        let free = inside == 0 || inside & WRITER == 0 && waited_ms >= WRITER_WAITS_MS;
        if free && INSIDE.compare_exchange(inside, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break;
        }
        if !free {
            let _ = sys::futex_wait(&INSIDE, inside, 1);
            waited_ms += 1;
        }
    }
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// The fork is over; in its child, too, which has none of the others.
pub fn done(is_child: bool) {
    if is_child {
        WAITING.store(0, Ordering::Relaxed);
    }
    INSIDE.store(0, Ordering::Release);
    sys::futex_wake_all(&INSIDE);
}
