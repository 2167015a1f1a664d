//! The command's own process: is it managed?
//!
//! Its agent comes in before the program's first instruction, so a command without one would run outside the
//! budget. The loader may have ignored the agent (it could not open it, LD_PRELOAD was taken away), the
//! program may have no loader (it is static), the agent may have been refused. In each case the run ends: a
//! budget that does not hold is worse than none.
//!
//! ```text
//!   started ──▶ without ── agent comes in ──▶ with ── its socket closes: exit, or exec ──▶ without
//!                  └─ it is static, other libraries are mapped and the agent is not, or nothing came for
//!                     long: refuse
//! ```
//!
//! A process that was attached to is no command: it ran before, and goes on if its agent is refused. Its
//! number and user are kept here for the door.
//!
//! This is for the one process that was asked for. Programs that it starts may be unmanaged (docs: what is
//! managed).

use crate::exit;
use crate::proc;
use crate::process::ranges::Range;
use crate::process::standstill;
use crate::times::{
    COMMAND_LOOK, COMMAND_LOOK_NEW, COMMAND_LOOK_OLD, COMMAND_NEW, COMMAND_STATIC, COMMAND_UNCONNECTED,
    COMMAND_UNLOADED,
};
use memspill_common::protocol::is_agent;
use std::fs;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

pub struct Target {
    state: Mutex<CommandState>,
    attached: OnceLock<Attached>,
}

/// The process that runs already.
struct Attached {
    pid: u32,
    uid: u32,
    arena: Option<Range>,
    refused: Mutex<Option<String>>,
}

struct CommandState {
    /// 0: not started.
    pid: u32,
    /// Key of the managed process that it is now.
    agent: Option<u64>,
    was_managed: bool,
    /// Since when it has had no agent.
    since: Instant,
}

impl Target {
    pub fn new() -> Target {
        let state = CommandState { pid: 0, agent: None, was_managed: false, since: Instant::now() };
        Target { state: Mutex::new(state), attached: OnceLock::new() }
    }

    /// Start the command. Its agent may knock before its pid is known here: `is_command` waits for that.
    pub fn start<E>(&self, spawn: impl FnOnce() -> Result<std::process::Child, E>) -> Result<u32, E> {
        let mut state = self.state.lock().expect("target");
        let child = spawn()?;
        state.pid = child.id();
        state.since = Instant::now();
        Ok(state.pid)
    }

    /// The run is attached to this process. To be called once, before its agent may knock.
    pub fn set_attached(&self, pid: u32, uid: u32, arena: Option<Range>) {
        let _ = self.attached.set(Attached { pid, uid, arena, refused: Mutex::default() });
    }

    /// Only memory in this range is managed, of the process that is attached to and of its forks.
    pub fn arena(&self) -> Option<Range> {
        self.attached.get()?.arena
    }

    /// May processes of this user be of the run, wherever they are in the tree of processes? Whoever is
    /// attached to is not below us, nor is what it starts.
    pub fn admits_user(&self, uid: u32) -> bool {
        let mine = rustix::process::geteuid().as_raw();
        self.attached.get().is_some_and(|attached| uid == attached.uid || uid == mine)
    }

    /// Its agent was refused. False: it is another process.
    pub fn note_refused(&self, pid: u32, why: &str) -> bool {
        let attached = self.attached.get().filter(|attached| attached.pid == pid);
        attached.inspect(|attached| *attached.refused.lock().expect("refused") = Some(why.into())).is_some()
    }

    /// Why the agent of the process that was to be attached to was refused.
    pub fn refusal(&self) -> Option<String> {
        self.attached.get()?.refused.lock().expect("refused").clone()
    }

    pub fn is_command(&self, pid: u32) -> bool {
        self.state.lock().expect("target").pid == pid
    }

    pub fn joined(&self, pid: u32, key: u64) {
        let mut state = self.state.lock().expect("target");
        if state.pid == pid {
            state.agent = Some(key);
            state.was_managed = true;
        }
    }

    /// The socket of the agent `key` has closed. After an exec the next agent may have come in already.
    pub fn left(&self, key: u64) {
        let mut state = self.state.lock().expect("target");
        if state.agent == Some(key) {
            state.agent = None;
            state.since = Instant::now();
        }
    }

    /// How long the main thread waits before it looks again.
    pub fn pause_before_look(&self) -> Duration {
        let state = self.state.lock().expect("target");
        match state.agent {
            Some(_) => COMMAND_LOOK,
            None if state.since.elapsed() < COMMAND_NEW => COMMAND_LOOK_NEW,
            None => COMMAND_LOOK_OLD,
        }
    }

    /// Why the command is not managed, if that is certain.
    pub fn unmanaged(&self) -> Option<String> {
        let mut state = self.state.lock().expect("target");
        if state.agent.is_some() {
            return None;
        }
        let pid = state.pid;
        if standstill::of(pid).is_some() {
            state.since = Instant::now();
            return None;
        }
        let waited = state.since.elapsed();
        drop(state);
        let executed = || fs::read_link(format!("/proc/{pid}/exe")).ok();
        let program = executed()?;
        let maps = proc::text(format!("/proc/{pid}/maps")).ok()?;
        // It may have ended, or called exec, between two pieces of its maps: then the agent's is in none.
        if executed()? != program {
            return None;
        }
        let program = program.to_string_lossy();
        let base = loader_base(pid);
        let limit = match loaded(&maps, &program, base) {
            // On its way out, or in the middle of an exec.
            Loaded::Nothing => return None,
            Loaded::Agent => COMMAND_UNCONNECTED,
            Loaded::Unclear if !is_loader(&program) && base == Some(0) => COMMAND_STATIC,
            Loaded::Unclear => COMMAND_UNLOADED,
            Loaded::Others if has_auditors() => COMMAND_UNLOADED,
            Loaded::Others => Duration::ZERO,
        };
        (waited >= limit).then(|| match limit {
            COMMAND_UNCONNECTED => {
                format!("killed: the agent in {program} did not connect in {} s", limit.as_secs())
            }
            COMMAND_STATIC => format!(
                "killed: {program} is statically linked and runs without memspill's agent, outside the \
                 budget: use a dynamically linked build"
            ),
            _ => format!(
                "killed: {program} runs without memspill's agent, outside the budget: it was started \
                 without LD_PRELOAD, or its loader did not follow it"
            ),
        })
    }

    /// The exit code of the command, or why it is none: it has never been managed.
    pub fn judge_exit(&self, code: i32, by_signal: bool) -> Result<i32, String> {
        let was_managed = self.state.lock().expect("target").was_managed;
        if was_managed || by_signal || code == exit::NOT_FOUND {
            return Ok(code);
        }
        Err(format!("the command ran without memspill's agent, outside the budget; it ended with {code}"))
    }
}

/// Auditing libraries (rtld-audit(7)) are mapped before the agent.
fn has_auditors() -> bool {
    std::env::var_os("LD_AUDIT").is_some_and(|value| !value.is_empty())
}

/// By the kernel's own word on what it has executed: the address of the loader, AT_BASE, is 0. The loader,
/// run as a command, has none either.
pub fn has_no_loader(pid: u32) -> bool {
    loader_base(pid) == Some(0)
}

fn loader_base(pid: u32) -> Option<u64> {
    fs::read(format!("/proc/{pid}/auxv")).ok().and_then(|auxv| auxiliary(&auxv, libc::AT_BASE))
}

/// A value of the vector of pairs in /proc/PID/auxv, which is empty while a program starts.
fn auxiliary(auxv: &[u8], key: u64) -> Option<u64> {
    let words = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let words: Vec<u64> = words.collect();
    words.as_chunks::<2>().0.iter().find(|[name, _]| *name == key).map(|[_, value]| *value)
}

fn is_loader(file: &str) -> bool {
    file.rsplit('/').next().is_some_and(|name| name.starts_with("ld-"))
}

#[derive(PartialEq, Eq, Debug)]
enum Loaded {
    Nothing,
    /// The program, perhaps its loader.
    Unclear,
    /// More than the program and its loader, and not the agent, which is mapped before all else.
    Others,
    Agent,
}

/// `base`: where the loader lies. Its file may be called anything: musl's is the C library itself.
fn loaded(maps: &str, program: &str, base: Option<u64>) -> Loaded {
    // `start-end perms offset dev inode path`
    let lines = maps.lines().filter_map(|line| Some((line, line.splitn(6, ' ').nth(5)?.trim())));
    let lines: Vec<(&str, &str)> = lines.filter(|(_, file)| file.starts_with('/')).collect();
    let start = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
    let at_base = |(line, _): &&(&str, &str)| base.is_some_and(|base| base != 0 && start(line) == Some(base));
    let loader = lines.iter().find(at_base).map(|(_, file)| *file);
    let mut files: Vec<&str> = lines.iter().map(|(_, file)| *file).collect();
    files.dedup();
    let is_loader = |file: &str| is_loader(file) || Some(file) == loader;
    if files.is_empty() {
        return Loaded::Nothing;
    }
    if files.iter().any(|file| is_agent(file)) {
        Loaded::Agent
    } else if !is_loader(program) && files.iter().any(|file| *file != program && !is_loader(file)) {
        Loaded::Others
    } else {
        Loaded::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(files: &[&str]) -> String {
        let line = |(at, file): (usize, &&str)| {
            format!("7f000000{at}000-7f000001{at}000 r-xp 00000000 08:01 1234                 {file}\n")
        };
        files.iter().enumerate().map(line).collect::<String>()
            + "7ffc0000-7ffd0000 rw-p 00000000 00:00 0          [stack]\n"
    }

    #[test]
    fn what_the_maps_tell() {
        let (program, loader) = ("/usr/bin/with space", "/usr/lib64/ld-linux-x86-64.so.2");
        let agent = "/memfd:memspill-agent (deleted)";
        let look = |files: &[&str]| loaded(&maps(files), program, None);
        assert_eq!(look(&[]), Loaded::Nothing);
        assert_eq!(look(&[program]), Loaded::Unclear);
        assert_eq!(look(&[program, program, loader]), Loaded::Unclear);
        assert_eq!(look(&[program, loader, agent]), Loaded::Agent);
        assert_eq!(look(&[program, "/lib/libc.so.6", loader, agent]), Loaded::Agent);
        assert_eq!(look(&[program, "/lib/libc.so.6", loader]), Loaded::Others);
        // The loader run as a command maps the program before the agent.
        assert_eq!(loaded(&maps(&[loader, program]), loader, None), Loaded::Unclear);
        // A loader by another name.
        let musl = maps(&[program, "/usr/lib/musl/lib/libc.so"]);
        assert_eq!(loaded(&musl, program, Some(0x7f00_0000_1000)), Loaded::Unclear);
        assert_eq!(loaded(&musl, program, Some(0x7f00_0000_2000)), Loaded::Others);
    }

    #[test]
    fn a_program_has_a_loader_by_the_kernels_word() {
        let vector = |pairs: &[(u64, u64)]| -> Vec<u8> {
            pairs.iter().flat_map(|(name, value)| [*name, *value]).flat_map(u64::to_le_bytes).collect()
        };
        let with = |base| vector(&[(libc::AT_PAGESZ, 4096), (libc::AT_BASE, base), (0, 0)]);
        assert_eq!(auxiliary(&with(0x7f00_0000_0000), libc::AT_BASE), Some(0x7f00_0000_0000));
        assert_eq!(auxiliary(&with(0), libc::AT_BASE), Some(0));
        assert_eq!(auxiliary(&[], libc::AT_BASE), None, "while it starts");
        assert_eq!(auxiliary(&with(0)[..20], libc::AT_BASE), None);
        assert!(!has_no_loader(std::process::id()), "tests are linked dynamically");
        assert!(is_loader("/lib64/ld-linux-x86-64.so.2") && !is_loader("/usr/bin/ld") && !is_loader(""));
    }

    #[test]
    fn an_exit_without_an_agent_is_a_failure() {
        let target = Target::new();
        assert!(target.judge_exit(0, false).is_err());
        assert_eq!(target.judge_exit(127, false), Ok(127));
        assert_eq!(target.judge_exit(137, true), Ok(137));
        target.joined(0, 7);
        target.left(7);
        assert_eq!(target.judge_exit(3, false), Ok(3));
    }

    #[test]
    fn an_exec_that_is_seen_late_takes_nothing_away() {
        let target = Target::new();
        target.joined(0, 1);
        target.joined(0, 2);
        target.left(1);
        assert_eq!(target.pause_before_look(), COMMAND_LOOK);
    }
}
