//! One run of a command, from its start to the end of all that it started.
//!
//! It runs in a process group of its own, so that a Ctrl-C is ours to pass on, and joins its memory cgroup
//! before it is executed. Its CPU time is what the kernel adds to ours when it is waited for: all of its tree
//! that was waited for. Work that kernel threads do for it is in nobody's time.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::bench::cgroup::Group;
use crate::bench::flat;
use memspill_cli::child::{LINE_BYTES_MAX, drain, last_line, when_ended};
use memspill_cli::signals::{self, Stop};

const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// For output of what was killed and is on its way out.
const OUTPUT_WAIT: Duration = Duration::from_secs(5);

/// The figures of a command that has ended.
#[derive(Clone, Default, Debug)]
pub struct CommandRun {
    pub command: Vec<String>,
    pub wall_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    /// CPU time that a virtual machine wanted meanwhile, of all its CPUs, and its host gave to others.
    pub stolen_s: f64,
    /// The peak of the cgroup: the command and, if it runs under memspill, memspill.
    pub peak_bytes: Option<u64>,
    /// Numbers in the first line of its output, where that is JSON.
    pub printed: Vec<(String, f64)>,
    pub failed: Option<String>,
}

impl CommandRun {
    pub fn printed(&self, name: &str) -> Option<f64> {
        self.printed.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// Runs to the end or the timeout; `sample` is called every 20 ms meanwhile. A signal to us ends it.
pub fn run(
    command: &[OsString],
    group: Option<&Group>,
    timeout: Duration,
    mut sample: impl FnMut(),
) -> Result<CommandRun, Stop> {
    let named: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (user_before, system_before) = children_cpu_s();
    let stolen_before = stolen_s();
    let start = Instant::now();
    let mut child = prepare(command, group)
        .spawn()
        .or_else(|error| Stop::refuse(format!("{}: {error}", named.first().map_or("", |word| word))))?;
    let pid = Pid::from_child(&child);
    let output = drain(child.stdout.take(), first_line);
    let errors = drain(child.stderr.take(), last_line);
    let ended = when_ended(pid, start);
    let mut failed = None;
    let wall = loop {
        match ended.recv_timeout(SAMPLE_EVERY) {
            Ok(wall) => break wall,
            Err(RecvTimeoutError::Disconnected) => break start.elapsed(),
            Err(RecvTimeoutError::Timeout) => sample(),
        }
        if failed.is_none() && (start.elapsed() > timeout || signals::seen().is_some()) {
            failed = Some(format!("timeout after {} s", timeout.as_secs()));
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    };
    // Not waited for yet, so the id is still that of the group that was started here.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let status = child.wait();
    if let Some(group) = group {
        group.kill();
    }
    if let Some(signal) = signals::seen() {
        return Err(Stop::Interrupted(signal));
    }
    let (user_after, system_after) = children_cpu_s();
    let said = errors.recv_timeout(OUTPUT_WAIT).unwrap_or_default();
    let killed_for_memory = group.is_some_and(|group| group.oom_kills() > 0);
    let failed = failed.or_else(|| match status {
        _ if killed_for_memory => Some("killed for memory".to_string()),
        Ok(status) => failure(status, &said),
        Err(error) => Some(error.to_string()),
    });
    let printed =
        output.recv_timeout(OUTPUT_WAIT).ok().and_then(|line| flat::numbers(&line)).unwrap_or_default();
    Ok(CommandRun {
        command: named,
        wall_s: wall.as_secs_f64(),
        user_s: user_after - user_before,
        system_s: system_after - system_before,
        stolen_s: stolen_s() - stolen_before,
        peak_bytes: group.and_then(Group::peak_bytes),
        printed,
        failed,
    })
}

/// A shell puts itself into the group and becomes the command.
fn prepare(command: &[OsString], group: Option<&Group>) -> Command {
    let mut prepared = match group {
        Some(group) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.procs()).args(command);
            shell
        }
        None => {
            let mut plain = Command::new(&command[0]);
            plain.args(&command[1..]);
            plain
        }
    };
    prepared.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    prepared
}

fn first_line<R: Read>(mut pipe: BufReader<R>) -> String {
    let mut line = Vec::new();
    let _ = (&mut pipe).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    String::from_utf8_lossy(&line).into_owned()
}

fn failure(status: ExitStatus, said: &str) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) if said.is_empty() => Some(format!("exit code {code}")),
        (Some(code), _) => Some(format!("exit code {code}: {said}")),
        (None, signal) => Some(format!("killed by signal {}", signal.unwrap_or_default())),
    }
}

/// User and system seconds of all children waited for so far, theirs included.
fn children_cpu_s() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let (user, system) = children_ticks(&stat).unwrap_or_default();
    (user as f64 / ticks_per_s, system as f64 / ticks_per_s)
}

fn stolen_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stolen_ticks(&stat).unwrap_or_default() as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The ticks of all CPUs: the eighth number of the first line of proc_stat(5).
fn stolen_ticks(stat: &str) -> Option<u64> {
    stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// cutime and cstime, fields 16 and 17 of proc_pid_stat(5); the second, a name in brackets, may hold
/// anything.
fn children_ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_sh(text: &str, timeout_ms: u64) -> CommandRun {
        let command = ["sh", "-c", text].map(OsString::from);
        run(&command, None, Duration::from_millis(timeout_ms), || {}).unwrap()
    }

    #[test]
    fn the_end_of_a_command() {
        let good = run_sh("echo '{\"ops_per_s\":5}'; echo more; sleep 0.1", 10_000);
        assert_eq!((good.failed.clone(), good.printed("ops_per_s")), (None, Some(5.0)));
        assert!(good.wall_s >= 0.1 && good.wall_s < 5.0, "{}", good.wall_s);
        assert_eq!(run_sh("echo why >&2; echo >&2; exit 3", 10_000).failed.unwrap(), "exit code 3: why");
        assert_eq!(run_sh("kill -9 $$", 10_000).failed.unwrap(), "killed by signal 9");
        let slow = run_sh("sleep 100 & sleep 100", 300);
        assert_eq!(slow.failed.unwrap(), "timeout after 0 s");
        assert!(slow.wall_s < 5.0);
    }

    #[test]
    fn cpu_time_of_a_tree() {
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        let ran = run_sh(&format!("( {burn} ); true"), 60_000);
        assert!(ran.user_s + ran.system_s > 0.02, "{ran:?}");
    }

    #[test]
    fn fields_after_an_odd_name() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 77 88 20";
        assert_eq!(children_ticks(stat), Some((77, 88)));
        assert_eq!(children_ticks(""), None);
    }

    #[test]
    fn what_the_host_took() {
        let stat = "cpu  10 20 30 40 50 60 70 812 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!((stolen_ticks(stat), stolen_ticks("")), (Some(812), None));
    }

    #[test]
    fn a_command_that_is_not_there_is_refused() {
        let command = [OsString::from("/no/such/command")];
        let stop = run(&command, None, Duration::from_secs(1), || {}).unwrap_err();
        assert!(matches!(&stop, Stop::Refused(reason) if reason.contains("/no/such/command")), "{stop:?}");
    }
}
