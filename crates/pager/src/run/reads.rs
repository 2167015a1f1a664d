//! Reads by a thread that is no pager: nobody else looks at its queue, so it waits for their ends itself.
//!
//! What it does not do: decide what becomes of a fill that met an event or found no room; its caller does.

use crate::run::Run;
use crate::run::cpus::wait_readable;
use crate::times::SWAPOFF_READ;
use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::fill::{Outcome, Scratch};

/// Puts in place what was read, until no read of this queue is under way, or `is_enough`. `tell` hears of
/// each.
pub fn finish(
    run: &Run,
    queue: QueueId,
    scratch: &mut Scratch,
    is_enough: impl Fn() -> bool,
    mut tell: impl FnMut(Outcome),
) {
    let engine = &run.engine;
    let mut done = Vec::new();
    while engine.reads(queue) && !is_enough() {
        for device in engine.devices().iter() {
            device.backing.reap(queue, &mut done);
        }
        if done.is_empty() {
            let fd_of = |device: &Device| device.backing.poll_fd(queue).ok().flatten();
            match engine.devices().iter().find_map(fd_of) {
                Some(fd) => wait_readable(&fd, SWAPOFF_READ),
                None => std::thread::sleep(SWAPOFF_READ),
            }
        }
        for done in done.drain(..) {
            tell(engine.read_done(crate::cpu(), done, scratch));
        }
    }
}
