//! The main thread's part where memory that may not be written is to leave: all of it, while a reclaimer
//! waits (`run/openings.rs`; what is done to the process, `plant/opened.rs`).

use crate::plant;
use crate::run::Run;

/// Serves who has asked.
pub fn serve(run: &Run) {
    while let Some(wanted) = run.openings.asked() {
        let open = |ranges| run.openings.keep_open(ranges);
        let opened = plant::open_for_a_moment(wanted.pid, wanted.evictor, &wanted.ranges, open);
        run.openings.end();
        if let Err(error) = opened
            && run.settings.verbose
        {
            eprintln!("memspill: memory that process {} may not write stays: {error}", wanted.pid);
        }
    }
}
