//! Exit codes, as timeout(1) and the shells have them; those that a run gives itself are the pager's.
//! A command that ran to its end has its own.

/// memspill itself failed, or refused, in `run`.
pub const OWN_FAILURE: u8 = memspill_pager::exit::OWN_FAILURE as u8;
/// The command of `run` is there, and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command of `run` is not there.
pub const NOT_FOUND: u8 = memspill_pager::exit::NOT_FOUND as u8;
/// A wrong command line of any other subcommand.
pub const USAGE: u8 = 2;
/// Another subcommand did not do, or did not get, what it was asked for.
pub const FAILED: u8 = 1;
