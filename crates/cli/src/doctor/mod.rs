//! `memspill doctor`: what this machine offers and lacks, and the one command that mends each lack.
//!
//! Three steps, apart from each other so that each can be read and tested alone:
//!
//! ```text
//! facts.rs    tries and reads; judges nothing        (probe.rs, machine.rs, /proc)
//! checks.rs   facts in, checks out; touches nothing  (with uffd.rs, and modes.rs: the mode that `run` takes)
//! render.rs   checks in, text out
//! ```
//!
//! A check at FAIL stops `memspill run`, which calls `choose` and prints the same words. A check at warn
//! costs speed, or concerns some programs only; its text says which. Nothing is believed that can be tried:
//! permission on a device, a sysctl and a kernel version are named as reasons, never taken as the result.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use memspill_pager::door::source::Mode;

use crate::args::{self, DoctorArgs};

mod check;
mod checks;
mod facts;
mod modes;
mod render;
#[cfg(test)]
mod tests;
mod uffd;

pub use check::{Check, Level};
pub use modes::{Wanted, described};

use check::reason;
use facts::{Facts, errno};
use modes::{judge_for, possible};
use render::{render, render_short};

/// The subcommand. 0: `run` can start here; 1: something fails.
pub fn doctor(options: &DoctorArgs) -> u8 {
    let facts = Facts::gather(Some(&args::swap_dir(options.swap_dir.clone())));
    let checks = judge_for(&facts, Wanted::AUTO);
    let colour =
        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let render = if options.verbose { render } else { render_short };
    match io::stdout().write_all(render(&checks, colour).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("memspill: cannot write to stdout: {}", reason(errno(&error)));
            1
        }
        _ => u8::from(checks.iter().any(|check| check.level == Level::Fail)),
    }
}

/// The mode that `run` takes here, if the command line asks for `wanted`; and what there is to be said of
/// that. Err: what stops it. Costs about a millisecond.
pub fn choose(wanted: Wanted) -> Result<(Mode, Check), Vec<Check>> {
    let facts = Facts::gather(None);
    let mut checks = judge_for(&facts, wanted);
    if let Some(mode) = possible(&facts, wanted)
        && checks.iter().all(|check| check.level != Level::Fail)
    {
        return Ok((mode, checks.swap_remove(0)));
    }
    checks.retain(|check| check.level == Level::Fail);
    Err(checks)
}

/// The same words on stderr, for `run`.
pub fn refusal(blockers: &[Check]) -> String {
    let mut text = String::new();
    for check in blockers {
        let _ = writeln!(text, "memspill: {}: {}", check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "memspill:   to mend it: {fix}");
        }
    }
    text
}
