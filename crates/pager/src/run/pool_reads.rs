//! Pages that threads of a process have read out of a pool by themselves are noted (`common/src/link.rs`
//! draws it): the engine takes such a page for resident, and the fault is counted as any other.
//!
//! ```text
//!   a pager      when the bell rings, or a fault is asked for
//!   a reclaimer  before and after each batch of the process, and while it spins (reclaim/spin.rs): then
//!                the bell seldom rings, and the pager that hears it would take the CPU of the thread that
//!                faults; and now and then of all processes, for what is too little to be told of
//! ```
//!
//! Each page is noted by one of them (`Port::note_pool_reads`).
//!
//! Such threads do not wait for room, so their pages may pass the limit. Therefore they are told when there
//! is none: they ask for their pages then, and wait as others do.

use crate::process::Process;
use crate::process::port::PoolRead;
use crate::run::rates::Rates;
use crate::run::sampling::Countdown;
use crate::run::token::Faulter;
use crate::run::{Run, watch};
use crate::times::now_us;
use memspill_engine::fault_trace::Touch;
use memspill_engine::units::{CpuId, Vpn};
use std::sync::Arc;

/// Counts the faults that one thread of the supervisor has seen.
pub struct FaultMeter {
    /// To the next fault that is noted for a report.
    pub countdown: Countdown,
    pub rates: Rates,
}

impl FaultMeter {
    /// `seed`: another for each thread.
    pub fn new(seed: u32) -> FaultMeter {
        FaultMeter { countdown: Countdown::new(seed), rates: Rates::default() }
    }

    /// Note the pages that threads of the process have brought, and tell them whether they may go on.
    pub fn note_pool_reads(&mut self, run: &Run, cpu: CpuId, process: &Arc<Process>) {
        let port = &process.memory.port;
        if !port.waits_for_note() {
            return;
        }
        let now_us = now_us();
        let serves_alone = run.token.serves_alone();
        let group = process.space.group(run.engine.swap());
        port.note_pool_reads(|read| {
            let vpn = Vpn::from_addr(read.page);
            // The reader of its events notes the rest then.
            let Some(inside) = process.space.gate.try_enter_fill() else { return false };
            // A change that was made before, and is not told yet, may have moved the page to where it is.
            if port.is_changing() || !run.engine.note_there(cpu, &process.space, vpn, read.comes_along) {
                return false;
            }
            drop(inside);
            if let Some((beside, pages)) = read.left_out {
                run.engine.leave_out(cpu, &process.space, Vpn::from_addr(beside), pages);
            }
            if read.comes_along {
                return true;
            }
            let PoolRead { page, tid, .. } = read;
            memspill_engine::stats::add(&run.engine.stats().on(cpu).pgfault, 1);
            process.count_fault();
            watch::note_fault(&run.cpus, process, tid);
            let often = serves_alone && self.rates.note(tid, vpn, now_us);
            run.token.note_fault(Faulter::new(tid, group, often), now_us);
            run.recording.note(Touch { space: process.space.id, vpn, write: true });
            if run.sampling.is_due(&mut self.countdown) {
                run.sampling.note(process.key, page);
            }
            true
        });
        process.tell_room(run.engine.swap());
        port.tell_distrusted(process.space.distrusted_windows());
        port.tell_token(|| run.token.served_alone(group.id, crate::times::now_us()));
    }
}
