//! The agent's own pages, which are not managed: a fault there is a call, or says something.
//!
//! ```text
//!   doorbell   a thread of the process calls, and waits: its page is filled when the work is done, by the
//!              pager or by whoever was given the work
//!   ident      the child of a fork touches it first, by which it has become known
//!   staging    somebody reads all memory that there is
//! ```

use crate::USER_END;
use crate::advice;
use crate::faults::files::{self, Answer};
use crate::faults::{guards, shared};
use crate::monitor::register::register_announced;
use crate::process::Process;
use crate::run::Run;
use crate::run::advice::{Advice, What};
use memspill_common::link::DELIVERY_PAGES;
use memspill_common::protocol::{
    CALL_BRING, CALL_COLD, CALL_FILE_MAPPED, CALL_FILE_USED, CALL_GROWN, CALL_MAPPED, CALL_PAGEOUT,
    CALL_REMOVE, CALL_WILLNEED, DOORBELLS, Doorbell, STAGING_PAGES,
};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use memspill_uffd::shmem::Id;
use std::sync::Arc;

/// A fault on one of the agent's own pages: a doorbell (a call to us), the ident page of a forked child
/// (which has done its work by faulting), or staging (somebody reads all memory that there is). None of them
/// is managed. Answers it and returns true.
pub fn is_agent_call(run: &Arc<Run>, process: &Arc<Process>, addr: u64, tid: u32) -> bool {
    let page = addr & !(PAGE_SIZE as u64 - 1);
    let index_in = |from: u64, pages: u64| {
        let index = page.checked_sub(from)? / PAGE_SIZE as u64;
        (index < pages).then_some(index as usize)
    };
    let agent = process.memory.attached_agent();
    let mut put_off = false;
    if let Some(agent) = agent
        && let Some(doorbell) = index_in(agent.ready.doorbell_addr, DOORBELLS as u64)
    {
        match agent.evictor.control.take_call(doorbell) {
            Some(call) => match carry_out(run, process, doorbell, call) {
                Done::Now => agent.evictor.control.answer_call(doorbell),
                Done::NotNow => {
                    agent.evictor.control.put_call_back(doorbell);
                    put_off = true;
                }
                Done::InVain => agent.evictor.control.refuse_call(doorbell),
                Done::Later => return true,
            },
            // The thread that has taken it fills the page.
            None if agent.evictor.control.call_is_taken(doorbell) => return true,
            None => {}
        }
    } else if agent
        .is_some_and(|agent| index_in(agent.ready.staging_addr, u64::from(STAGING_PAGES)).is_some())
    {
        process.memory.staging_was_read(tid);
    } else if !(process.descent.as_ref().is_some_and(|descent| descent.proof.addr == page)
        || agent.is_some_and(|agent| agent.ready.ident_addr == page))
    {
        return false;
    }
    if !process.memory.port.has_doorbells() {
        return true;
    }
    // A call that is put off comes again: the page is missing still.
    if !put_off {
        process.memory.port.zeropage(page, PAGE_SIZE as u64);
    }
    process.memory.port.wake(page, PAGE_SIZE as u64);
    true
}

/// What becomes of a call.
enum Done {
    Now,
    /// It cannot be done now.
    NotNow,
    /// There is nothing to be done.
    InVain,
    /// Others do it, and answer.
    Later,
}

/// What a thread of the process wants, at a doorbell.
fn carry_out(run: &Arc<Run>, process: &Arc<Process>, doorbell: usize, call: Doorbell) -> Done {
    if !process.memory.port.has_doorbells() && call.call != CALL_BRING {
        return Done::Now;
    }
    let is_done = match call.call {
        CALL_MAPPED | CALL_GROWN => {
            register_announced(run, process, call.addr, call.len, call.call == CALL_GROWN)
        }
        CALL_REMOVE => shared::remove(run, process, call.addr, call.len),
        CALL_PAGEOUT => return pass_on(run, process, What::Pageout, Some(doorbell), call),
        CALL_COLD => return pass_on(run, process, What::Cold, Some(doorbell), call),
        // The kernel does not wait for the pages either.
        CALL_WILLNEED => return pass_on(run, process, What::WillNeed, None, call),
        CALL_BRING => {
            let len = call.len.min((DELIVERY_PAGES * PAGE_SIZE) as u64);
            return pass_on(run, process, What::Bring, Some(doorbell), Doorbell { len, ..call });
        }
        CALL_FILE_USED => {
            return done(files::used(run, process, doorbell, Id { dev: call.len, ino: call.addr }));
        }
        CALL_FILE_MAPPED => return done(files::mapped(run, process, doorbell, call.addr, call.len)),
        _ => guards::answer_call(run, process, call),
    };
    if is_done { Done::Now } else { Done::NotNow }
}

fn done(answer: Answer) -> Done {
    match answer {
        Answer::Now => Done::Now,
        Answer::NotNow => Done::NotNow,
        Answer::Later => Done::Later,
    }
}

/// Advice is followed by other threads: it may take long.
fn pass_on(run: &Run, caller: &Arc<Process>, what: What, doorbell: Option<usize>, call: Doorbell) -> Done {
    let (next, end) = (Vpn(call.addr.div_ceil(PAGE_SIZE as u64)), call.addr.saturating_add(call.len));
    let end = Vpn(end.min(USER_END) / PAGE_SIZE as u64);
    let advice = Advice::new(what, caller, doorbell, next..end, call.pid);
    if what == What::Bring && !advice::may_be_away(run, &advice) {
        return Done::InVain;
    }
    if next < end && run.advice.admit(advice) && doorbell.is_some() { Done::Later } else { Done::Now }
}
