//! Notes the pages that threads of a process have brought by themselves, out of a pool (`agent/src/link.rs`
//! draws it): the engine takes such a page for resident, and the fault is counted as any other.
//!
//! ```text
//!   a pager      when the bell rings, or a fault is asked for
//!   a reclaimer  before and after each batch of the process, and while it lingers (reclaim/linger.rs): then
//!                the bell seldom rings, and the pager that hears it would take the CPU of the thread that
//!                faults; and now and then of all processes, for what is too little to be told of
//! ```
//!
//! Whoever does it: each page is noted by one of them (`AgentLink::note_early`).
//!
//! Nobody waits for room by himself, so such pages may pass the limit. Therefore threads are told when there
//! is none: they ask for their pages then, and wait as others do.

use crate::process::Process;
use crate::process::link::Early;
use crate::run::rates::Rates;
use crate::run::sampling::Countdown;
use crate::run::token::Faulter;
use crate::run::{Run, watch};
use crate::times::now_us;
use memspill_engine::fault_trace::Touch;
use memspill_engine::units::{CpuId, Vpn};
use std::sync::Arc;

/// The faults that one thread of the supervisor has seen.
pub struct Seen {
    /// To the next fault that is noted for a report.
    pub countdown: Countdown,
    pub rates: Rates,
}

impl Seen {
    /// `seed`: another for each thread.
    pub fn new(seed: u32) -> Seen {
        Seen { countdown: Countdown::new(seed), rates: Rates::default() }
    }

    /// Note what threads of the process have brought by themselves, and tell them whether they may go on.
    pub fn note_early(&mut self, run: &Run, cpu: CpuId, process: &Arc<Process>) {
        let link = process.memory.port.agent().filter(|link| link.waits_for_note());
        let Some(link) = link else { return };
        let now_us = now_us();
        let serves_alone = run.token.serves_alone();
        let group = process.space.group(run.engine.swap());
        link.note_early(|early| {
            let vpn = Vpn::from_addr(early.page);
            // The reader of its events notes what is left then.
            let Some(inside) = process.space.gate.try_enter_fill() else { return false };
            // A change that was made before, and is not told yet, may have moved the page to where it is.
            if link.is_changing() || !run.engine.note_there(cpu, &process.space, vpn, early.comes_along) {
                return false;
            }
            drop(inside);
            if let Some((beside, pages)) = early.left_out {
                run.engine.leave_out(cpu, &process.space, Vpn::from_addr(beside), pages);
            }
            if early.comes_along {
                return true;
            }
            let Early { page, tid, .. } = early;
            memspill_engine::stats::add(&run.engine.stats().on(cpu).pgfault, 1);
            process.count_fault();
            watch::note_fault(&run.cpus, process, tid);
            let often = serves_alone && self.rates.note(tid, vpn, now_us);
            run.token.note_fault(Faulter::new(tid, group, often), now_us);
            run.recording.note(Touch { space: process.space.id, vpn, write: true });
            if run.sampling.is_due(&mut self.countdown) {
                // The thread has gone on.
                run.sampling.note(process.key, page, || None);
            }
            true
        });
        process.show_room(run.engine.swap());
        link.show_distrusted(process.space.distrusted_windows());
        link.show_token(run.token.served_alone(group.id, crate::times::now_us()));
    }
}
