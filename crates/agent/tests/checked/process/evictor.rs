//! Commands to the evictor. It is waited for as long as it takes, or only for a moment.

use super::control::ControlPage;
use crate::kernel;
use memspill_common::protocol::{Command, MoveRun};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(PartialEq, Eq)]
pub enum Failed {
    Broken,
    Late,
}

/// The number of the last command, and of the last that was answered: words to sleep on.
pub struct Evictor {
    pub control: Arc<ControlPage>,
    command: std::sync::Mutex<Command>,
    sent: AtomicU32,
    answered: AtomicU32,
}

/// No more commands will come.
const END: u32 = u32::MAX;

impl Evictor {
    pub fn new(control: Arc<ControlPage>) -> Evictor {
        let (command, sent, answered) = Default::default();
        Evictor { control, command, sent, answered }
    }

    pub fn deadline(&self) {}

    pub fn call_after(
        &self,
        op: u32,
        runs: &[MoveRun],
        arg2: u32,
        _deadline: (),
        before: impl FnOnce(u32),
    ) -> Result<(), Failed> {
        let seq = self.sent.load(Ordering::SeqCst) + 1;
        if self.answered.load(Ordering::SeqCst) + 1 != seq {
            return Err(Failed::Late);
        }
        self.control.write_runs(runs);
        before(seq);
        *self.command.lock().unwrap() = Command { op, seq, arg: runs.len() as u32, arg2 };
        self.send(seq);
        if thread_rng().gen_bool(0.5) {
            self.wait_for_answer();
            return Ok(());
        }
        let answers = (0..thread_rng().gen_range(0..40)).any(|_| {
            thread::yield_now();
            self.answered.load(Ordering::SeqCst) == seq
        });
        if answers { Ok(()) } else { Err(Failed::Late) }
    }

    fn send(&self, seq: u32) {
        kernel::step();
        self.sent.store(seq, Ordering::SeqCst);
        kernel::wake_all(self.sent.as_ptr() as usize);
    }

    pub fn wait_for_answer(&self) {
        loop {
            kernel::step();
            let (sent, answered) = (self.sent.load(Ordering::SeqCst), self.answered.load(Ordering::SeqCst));
            if sent == answered {
                return;
            }
            kernel::sleep(self.answered.as_ptr() as usize, answered);
        }
    }

    pub fn end(&self) {
        self.send(END);
    }

    // -- The other side --

    /// The command after that one.
    pub fn next(&self, last: u32) -> Option<Command> {
        while self.sent.load(Ordering::SeqCst) == last {
            kernel::sleep(self.sent.as_ptr() as usize, last);
        }
        let is_end = self.sent.load(Ordering::SeqCst) == END;
        (!is_end).then(|| *self.command.lock().unwrap())
    }

    pub fn answer(&self, seq: u32) {
        self.answered.store(seq, Ordering::SeqCst);
        kernel::wake_all(self.answered.as_ptr() as usize);
    }
}
