//! `memspill attach`: a run whose program is there already.
//!
//! What may be attached to is looked at first (pager/src/attach.rs), then all is as in run.rs. A library that
//! has started this for its own process is told by `--ready-fd` what has become of it.

use crate::args::{self, AttachArgs};
use crate::exit;
use crate::message::plain;
use crate::run;
use memspill_pager::attach::{Ready, Running};
use memspill_pager::limits::Limits;
use memspill_pager::run::Shared;
use memspill_pager::supervisor::Root;

/// Returns the exit code.
pub fn attach(mut args: AttachArgs) -> u8 {
    if args.arena.is_some() {
        // That is none of the arena's.
        args.options.shared = Shared::None;
    }
    let ready = Ready::new(args.ready_fd);
    attached(&args, &ready).unwrap_or_else(|reason| {
        let reason = plain(&reason);
        eprintln!("memspill: {reason}");
        ready.tell(&format!("error: {reason}"));
        exit::OWN_FAILURE
    })
}

fn attached(AttachArgs { options, pid, ready_fd, arena }: &AttachArgs, ready: &Ready) -> Result<u8, String> {
    if options.mode == args::Mode::Kernel {
        return Err("attach is agent mode in any case: leave out --mode=kernel".into());
    }
    let running = Running::find(*pid, ready_fd.is_some(), ready)?.within(*arena);
    let limits = Limits::raise();
    let no_mode = "no mode is possible here, see above";
    let mode = run::mode_found(options, args::Mode::Agent).ok_or(no_mode)?;
    let what = format!("memspill attach: {}", running.name());
    run::carry_out(options, mode, limits, Root::Running(running), &what)
}
