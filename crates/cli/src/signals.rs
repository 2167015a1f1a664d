//! SIGINT, SIGTERM and SIGHUP leave a mark. A waiting thread looks at it, ends what it waits for, and
//! returns; on the way back everything that was set up is taken down, and none of that is disturbed by a
//! further signal.
#![allow(unsafe_code, reason = "sigaction with a handler that only stores a number")]

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// Why there is no result, or no more of it.
#[derive(Debug, PartialEq)]
pub enum Stop {
    /// With the reason, and what mends it.
    Refused(String),
    /// By a signal.
    Interrupted(i32),
}

impl Stop {
    pub fn refuse<T>(reason: impl Into<String>) -> Result<T, Stop> {
        Err(Stop::Refused(reason.into()))
    }
}

static SEEN: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    SEEN.store(signal, Ordering::SeqCst);
}

/// From here on signals are noted. Ignored signals (nohup) stay ignored; programs that are executed have the
/// default.
pub fn install() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structs are valid, all-zero ones to start from; the handler only stores to an atomic.
        let result = unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut old);
            if old.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
            new.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &new, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The last signal that came.
pub fn seen() -> Option<i32> {
    match SEEN.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}
