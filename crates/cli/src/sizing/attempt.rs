//! One run of the command under a budget: a `memspill run` of its own, in a process group of its own.
//!
//! Its output is thrown away, and of what it says on stderr the last line is kept, for it tells why a run
//! failed. One that is too slow is stopped as a person would (SIGTERM, and again), so that it still writes
//! its statistics. These go to a memfd: nothing is on disk.

use crate::child::{drain, last_line, when_ended};
use crate::signals::{self, Stop};
use memspill_pager::working_set::Point;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Between two looks whether it is to be stopped.
const LOOK: Duration = Duration::from_millis(20);
/// Stopped, it has ended by then, or is killed. Also for its last words.
const ENDS: Duration = Duration::from_secs(15);
/// Between the two signals: the supervisor counts those that it has seen.
const SECOND_SIGNAL: Duration = Duration::from_millis(50);

/// How a run ended, and what it has told.
pub struct Ran {
    pub wall_s: f64,
    /// It was stopped for the deadline.
    pub is_stopped: bool,
    pub status: ExitStatus,
    pub said: String,
    statistics: Value,
}

impl Ran {
    pub fn number(&self, name: &str) -> u64 {
        self.statistics[name].as_u64().unwrap_or(0)
    }

    /// As a shell has it.
    pub fn exit_code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    pub fn curve(&self) -> Vec<Point> {
        let point = |value: &Value| {
            let budget_bytes = value["memory_max_bytes"].as_u64()?;
            Some(Point { budget_bytes, refaults_left: value["refaults_left"].as_f64()? })
        };
        self.statistics["budgets"].as_array().into_iter().flatten().filter_map(point).collect()
    }
}

/// Run it to its end, or until the deadline; `look` is called with the time so far. A signal to us ends it.
pub fn run(
    command: &[OsString],
    options: &[OsString],
    budget_bytes: u64,
    deadline: Duration,
    mut look: impl FnMut(Duration),
) -> Result<Ran, Stop> {
    let refused = |what: &str, error: std::io::Error| Stop::Refused(format!("{what}: {error}"));
    let statistics = rustix::fs::memfd_create("memspill-size", MemfdFlags::CLOEXEC)
        .map_err(|e| refused("cannot make a file in memory", e.into()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), statistics.as_raw_fd());
    let own = std::env::current_exe().map_err(|e| refused("cannot find the program memspill", e))?;
    let start = Instant::now();
    let mut child = Command::new(own)
        .args(["run", "--memory-max", &budget_bytes.to_string(), "--stats-json", &path])
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| refused("cannot start a run", e))?;
    let pid = Pid::from_child(&child);
    let said = drain(child.stderr.take(), last_line);
    let ended = when_ended(pid, start);
    let mut stopped_at = None;
    let wall = loop {
        match ended.recv_timeout(LOOK) {
            Ok(wall) => break wall,
            Err(RecvTimeoutError::Disconnected) => break start.elapsed(),
            Err(RecvTimeoutError::Timeout) => look(start.elapsed()),
        }
        match stopped_at {
            None if start.elapsed() > deadline || signals::seen().is_some() => {
                stopped_at = Some(Instant::now());
                let _ = rustix::process::kill_process(pid, Signal::TERM);
                std::thread::sleep(SECOND_SIGNAL);
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
            Some(at) if at.elapsed() > ENDS => _ = rustix::process::kill_process(pid, Signal::KILL),
            _ => {}
        }
    };
    let status = child.wait().map_err(|e| refused("cannot wait for a run", e))?;
    if let Some(signal) = signals::seen() {
        return Err(Stop::Interrupted(signal));
    }
    let said = said.recv_timeout(ENDS).unwrap_or_default();
    let mut file = std::fs::File::from(statistics);
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let statistics = read.ok().and_then(|_| serde_json::from_str(&text).ok()).unwrap_or_default();
    Ok(Ran { wall_s: wall.as_secs_f64(), is_stopped: stopped_at.is_some(), status, said, statistics })
}
