//! A panic is a broken invariant: one line, then the end of the supervisor, and with it of the tree.
//!
//! The build aborts on panic. The hook runs before that, on the thread that panicked, with all its locks
//! held, so that nobody can go on with what is broken.

use crate::exit;
use crate::run::Run;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub fn install(run: &Arc<Run>) {
    // Weak: a hook lives for ever, and what the run owns has an end to see to.
    let run = Arc::downgrade(run);
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let checking = run.upgrade().is_some_and(|run| run.quiet.checking.load(Ordering::Relaxed));
        let whence = if checking { "--check has found a broken invariant" } else { "internal error" };
        eprintln!("memspill: killed: {whence}: {}", one_line(info));
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            default(info);
        }
        std::process::exit(exit::OWN_FAILURE);
    }));
}

/// The words of an assertion are in lines.
fn one_line(info: &PanicHookInfo<'_>) -> String {
    let text = info.payload_as_str().unwrap_or("no message");
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(", ");
    match info.location() {
        Some(at) => format!("{text} ({}:{})", at.file(), at.line()),
        None => text,
    }
}
