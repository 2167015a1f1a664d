//! Exit codes, as timeout(1) and the shell have them.

/// memspill itself failed.
pub const OWN_FAILURE: i32 = 125;
/// The command could not be started by its loader (a library is missing); the shell: it was not found.
pub const NOT_FOUND: i32 = 127;
/// The tree was killed.
pub const KILLED: i32 = by_signal(libc::SIGKILL);

/// A process that was ended by this signal.
pub const fn by_signal(signal: i32) -> i32 {
    128 + signal
}
