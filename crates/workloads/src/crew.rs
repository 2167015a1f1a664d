//! Processes that start their work together and end together, as 16 × pmbench or `usemem -y -x -n 70` do.
//!
//! ```text
//!   parent   fork … ── a byte from each ── go ── an answer from each ── leave ── wait
//!   child    prepare ─▶ ready ───────────▶ work ─▶ answer ────────────▶ exit
//! ```
//!
//! (`go` and `leave` are a byte for each child.)
//!
//! Nobody works before all are prepared, and nobody gives memory back before all have worked. A single
//! process does it all itself, without a fork. If one dies, the others are killed and the outcome says which
//! and how.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use crate::os::{self, Ended, Pid};
use crate::report::{Failure, Meter, Report};

/// Gives the times of the work alone and the answers, `answer_bytes` each, in the order of the processes.
pub fn together<S>(
    processes: usize,
    answer_bytes: usize,
    prepare: impl Fn(usize) -> io::Result<S>,
    work: impl Fn(&S) -> Vec<u8>,
) -> Result<(Report, Vec<Vec<u8>>), Failure> {
    if processes == 1 {
        let state = prepare(0)?;
        let meter = Meter::start();
        let answer = work(&state);
        return Ok((meter.report(), vec![answer]));
    }
    let (mut ready, ready_writer) = io::pipe()?;
    let (go, go_writer) = io::pipe()?;
    let (leave, leave_writer) = io::pipe()?;
    let mut crew = Crew { children: Vec::new() };
    // A child holds no writing end but its own, so the parent reads the end of that pipe when the child dies;
    // and the children read the end of the parent's pipes when the parent dies.
    let mut writers = Some((go_writer, leave_writer));
    let mut ready_writer = Some(ready_writer);
    let mut answers = Vec::new();
    for number in 0..processes {
        let (answer, answer_writer) = io::pipe()?;
        let pid = os::fork(|| {
            writers = None;
            let outcome = (|| -> io::Result<()> {
                let state = prepare(number)?;
                if let Some(mut writer) = ready_writer.take() {
                    writer.write_all(b"r")?;
                }
                (&go).read_exact(&mut [0])?;
                (&answer_writer).write_all(&work(&state))?;
                (&leave).read_exact(&mut [0])
            })();
            i32::from(outcome.is_err()) * 3
        })?;
        crew.children.push(pid);
        answers.push(OwnedFd::from(answer));
    }
    drop(ready_writer.take());
    if ready.read_exact(&mut vec![0; processes]).is_err() {
        return Err(crew.kill_all("before all were ready"));
    }
    let (mut go_writer, mut leave_writer) = writers.expect("only children close them");
    let meter = Meter::start();
    go_writer.write_all(&vec![b'g'; processes])?;
    let mut found = Vec::new();
    for answer in answers {
        let mut bytes = vec![0; answer_bytes];
        if io::PipeReader::from(answer).read_exact(&mut bytes).is_err() {
            return Err(crew.kill_all("at work"));
        }
        found.push(bytes);
    }
    let seconds = meter.seconds();
    leave_writer.write_all(&vec![b'l'; processes])?;
    crew.wait_for_all()?;
    Ok((meter.report_of(seconds), found))
}

struct Crew {
    children: Vec<Pid>,
}

impl Crew {
    fn wait_for_all(&mut self) -> Result<(), Failure> {
        while let Some(pid) = self.children.pop() {
            match os::wait(pid, true)? {
                Some(Ended::Code(0)) => {}
                ended => return Err(self.failure_of(pid, ended, "on its way out")),
            }
        }
        Ok(())
    }

    /// Kills the others after one has died; says which one, and how.
    fn kill_all(&mut self, when: &str) -> Failure {
        loop {
            for at in 0..self.children.len() {
                let pid = self.children[at];
                match os::wait(pid, false) {
                    Ok(None | Some(Ended::Code(0))) => {}
                    Ok(ended) => {
                        self.children.swap_remove(at);
                        return self.failure_of(pid, ended, when);
                    }
                    Err(error) => return Failure::System(error.to_string()),
                }
            }
            // Its pipe was closed a moment before it ended.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn failure_of(&self, pid: Pid, ended: Option<Ended>, when: &str) -> Failure {
        let how = match ended {
            Some(Ended::Signal(9)) => "was killed (by SIGKILL: out of memory, most likely)".to_string(),
            Some(Ended::Signal(signal)) => format!("was killed by signal {signal}"),
            Some(Ended::Code(code)) => format!("ended with code {code}"),
            None => "is still there".to_string(),
        };
        Failure::Bad(format!("process {pid} {how}, {when}"))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for pid in &self.children {
            os::kill(*pid);
            os::wait(*pid, true).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_order() {
        for processes in [1, 5] {
            let prepare = |number: usize| Ok(number as u8);
            let (_, answers) = together(processes, 2, prepare, |n| vec![*n, 7]).ok().unwrap();
            assert_eq!(answers, (0..processes as u8).map(|n| vec![n, 7]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_death_of_one_is_told() {
        let die_early =
            together(3, 1, |number| if number == 1 { os::exit_now(5) } else { Ok(number) }, |_| vec![0]);
        assert!(die_early.err().unwrap().to_string().contains("ended with code 5, before all were ready"));
        let die_late = together(3, 1, Ok, |number| if *number == 2 { os::exit_now(1) } else { vec![0] });
        assert!(die_late.err().unwrap().to_string().contains("ended with code 1, at work"));
    }
}
