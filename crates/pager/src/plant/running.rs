//! Puts the agent into a process that runs already, and takes it out again.
//!
//! ```text
//!   all threads stand still (stopped.rs)
//!   one of them, by a `syscall` of the vdso:                mmap, open, mmap ... close  the agent is mapped
//!   the same, by the agent's entry (common/src/running.rs):   JOIN                         it has joined
//!   each, one after the other:                                TRAP                         its calls trap
//!   all go on, each with its registers and its mask
//! ```
//!
//! Nothing of the program's is written to: neither its code nor its stacks. The structs and the stack that
//! are needed meanwhile lie in a mapping of our own, shared memory, of which no page is ever taken out.
//!
//! *If memspill ends meanwhile*, in these milliseconds, the kernel kills the process (PTRACE_O_EXITKILL): its
//! threads would go on in the middle of our calls. Before a thread is made to do anything, they just go on.
//!
//! The way out: when all of its pages are back, all threads stand still again. One that is at work in the
//! agent goes on until it is not. Then each leaves the dispatch, a call that it is in becomes one that the
//! program has made itself, the evictor ends, and all that was mapped is unmapped.
//!
//! *SIGTRAP*: the breakpoint's signal has the kernel forget that the program ignores it, so it is told again.
//!
//! Only the main thread calls this (`tracer.rs` says why). What it does not do: programs in which the loader
//! has put the agent are not let go; they have it among their libraries.

use super::image::Image;
use super::refusal;
use super::stopped::{Dispatch, Stood, Stopped, read_words, run_to_breakpoint};
use super::tracee::{Meanwhile, NO_CALL, Tracee, check, ptrace, set_registers, set_signal_mask};
use crate::published::Published;
use crate::{proc, signals};
use libc::{pid_t, user_regs_struct};
use memspill_agent::AGENT_SO;
use memspill_common::running as words;
use memspill_common::running::{
    BEFORE_ENTRY, END, JOIN, Joining, LEAVE, LOOK, Left, Range, TRAP, Thread, WHOLE,
};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Whose end the agent's entry runs on.
const STACK_BYTES: u64 = 128 << 10;
/// The struct for the agent; what it points to begins behind it.
const BEHIND_STRUCT: u64 = PAGE;
/// Signals that are blocked while the agent's entry runs.
const MASK: u64 = !(1 << (libc::SIGTRAP - 1));
/// How long all others stand still for a thread that is at work in the agent. It may wait for one of them, or
/// for us: then all go on, and it is tried again (`detach.rs`).
const LEAVES_AFTER: Duration = Duration::from_millis(200);
/// For how long such a thread goes on at first; twice as long each time, for it may have no CPU at once.
const GOES_ON_FOR: Duration = Duration::from_micros(200);
/// How long the evictor may take to end before that is said.
const EVICTOR_ENDS: Duration = Duration::from_secs(20);

/// A process into which the agent has come.
#[derive(Debug)]
pub struct Attached {
    threads: usize,
    stood_still: Duration,
}

impl Attached {
    /// What of it is not managed: nothing.
    pub fn not_managed(&self) -> Vec<String> {
        vec![]
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How long its threads did not run.
    pub fn stood_still(&self) -> Duration {
        self.stood_still
    }
}

/// Has a process that runs join, with all of its threads. `environment`: what it adds to the environment of
/// the programs that it runs. The door is to be kept by another thread, and lets it in.
pub fn into_running(pid: u32, agent: &Published, environment: &[(&str, &str)]) -> io::Result<Attached> {
    refusal::at_sight(pid)?;
    let closes = !proc::has_kept_untouched(pid);
    let mut stopped = Stopped::all(pid as pid_t, None)?;
    refusal::of_threads(pid, &stopped.threads)?;
    let mut room = Room::of(&stopped, closes);
    room.write_environment(environment);
    let mut hands = Hands::of(&mut stopped)?;
    let at = hands.map_room(room.bytes())?;
    let result = hands.map_agent(agent).and_then(|entry| {
        hands.entry = entry;
        room.write_to(&hands, at)?;
        hands.run(JOIN, at)
    });
    let result = match result {
        Ok(0) => hands.trap_all(at).map_err(|e| {
            // It has joined, and some of its calls would not be trapped.
            signals::send(pid, libc::SIGKILL);
            io::Error::other(format!("it was killed: one of its threads could not be trapped: {e}"))
        }),
        Ok(errno) => {
            hands.unmap_agent(at);
            Err(refusal::not_joined(errno))
        }
        Err(e) => {
            hands.unmap_agent(at);
            Err(e)
        }
    };
    hands.finish(at);
    result?;
    let (threads, began) = (stopped.threads.len(), stopped.began);
    drop(stopped);
    Ok(Attached { threads, stood_still: began.elapsed() })
}

/// Takes the agent out of a process, all of whose pages are there; nothing is taken out of it any more.
/// `end_evictor`: has the thread `evictor` end. Returns how long its threads did not run.
/// WouldBlock: not now, and all is as before.
pub fn let_go(
    pid: u32,
    agent: &Published,
    evictor: u32,
    end_evictor: &mut dyn FnMut(),
) -> io::Result<Duration> {
    let Some(base) = base_of_agent(pid, agent) else {
        // It has ended, or is about to, or runs another program.
        return match proc::has_ended(pid) {
            true => Ok(Duration::ZERO),
            false => Err(later("memspill's agent is not in it")),
        };
    };
    // A program that it has begun since may have an agent too, which is not the one that we know.
    let has_evictor = || Path::new(&format!("/proc/{pid}/task/{evictor}")).exists();
    if !has_evictor() {
        return Err(later("it has begun another program"));
    }
    let mut stopped = Stopped::all(pid as pid_t, Some(evictor as pid_t))?;
    if !has_evictor() {
        return Err(later("it has begun another program"));
    }
    let mut hands = Hands::of(&mut stopped)?;
    hands.base = base;
    hands.entry = base + Image::of(AGENT_SO).entry - BEFORE_ENTRY;
    let at = hands.map_room(2 * BEHIND_STRUCT)?;
    let result = hands.leave(at, evictor, end_evictor);
    hands.finish(at);
    result?;
    let began = stopped.began;
    drop(stopped);
    Ok(began.elapsed())
}

/// It may be possible in a moment.
fn later(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, why)
}

fn base_of_agent(pid: u32, agent: &Published) -> Option<u64> {
    let (maps, inodes) = (proc::text(format!("/proc/{pid}/maps")).ok()?, agent.inodes());
    // (By /proc/PID/map_files it would take a capability.)
    let line = maps.lines().find(|line| proc::agent_in(line).is_some_and(|inode| inodes.contains(&inode)))?;
    u64::from_str_radix(line.split('-').next()?, 16).ok()
}

/// What is put into the room of our own before JOIN, as bytes behind the struct.
struct Room {
    kept: Vec<Range>,
    texts: Vec<u8>,
    /// Where each text begins.
    starts: Vec<u64>,
    /// The agent closes memory that was never touched.
    closes: bool,
}

impl Room {
    fn of(stopped: &Stopped, closes: bool) -> Room {
        let kept = stopped.threads.iter().flat_map(Stood::kept).collect();
        Room { kept, texts: vec![], starts: vec![], closes }
    }

    fn write_environment(&mut self, environment: &[(&str, &str)]) {
        for (name, value) in environment {
            self.starts.push(self.texts.len() as u64);
            self.texts.extend(format!("{name}={value}\0").bytes());
        }
    }

    fn kept_bytes(&self) -> u64 {
        (size_of::<Range>() * self.kept.len()) as u64
    }

    fn bytes(&self) -> u64 {
        let pointers = 8 * (self.starts.len() as u64 + 1);
        (BEHIND_STRUCT + self.kept_bytes() + pointers + self.texts.len() as u64).next_multiple_of(PAGE)
    }

    fn write_to(&self, hands: &Hands<'_>, at: u64) -> io::Result<()> {
        let kept = at + BEHIND_STRUCT;
        let environment = kept + self.kept_bytes();
        let texts = environment + 8 * (self.starts.len() as u64 + 1);
        let words = self.kept.iter().flat_map(|range| [range.start, range.bytes]);
        let pointers = self.starts.iter().map(|start| texts + start).chain([0]);
        let mut bytes: Vec<u8> = words.chain(pointers).flat_map(u64::to_ne_bytes).collect();
        bytes.extend(&self.texts);
        hands.stopped.memory.write_all_at(&bytes, kept)?;
        let (kept_count, closes) = (self.kept.len() as u64, u64::from(self.closes));
        let joining = Joining { environment, kept, kept_count, closes };
        hands.write_words(at, &[joining.environment, joining.kept, joining.kept_count, joining.closes])
    }
}

/// By one of its threads the process does what it is made to do.
pub(super) struct Hands<'a> {
    stopped: &'a mut Stopped,
    /// Which thread.
    index: usize,
    /// An instruction `syscall`.
    syscall: u64,
    /// The end of the stack for the agent's entry.
    stack: u64,
    room_bytes: u64,
    base: u64,
    entry: u64,
    ignores_trap: bool,
}

impl<'a> Hands<'a> {
    pub(super) fn of(stopped: &'a mut Stopped) -> io::Result<Hands<'a>> {
        // Whichever was not stopped in a sleep that the kernel goes on with: it forgets that of a thread that
        // sleeps again.
        let index = stopped.threads.iter().position(|stood| !stood.is_in_restart()).unwrap_or(0);
        if stopped.threads.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let syscall = find_syscall(stopped)
            .ok_or_else(|| io::Error::other("no instruction `syscall` was found in its vdso"))?;
        let ignores_trap = ignores_trap(stopped.pid);
        let mut hands =
            Hands { stopped, index, syscall, stack: 0, room_bytes: 0, base: 0, entry: 0, ignores_trap };
        hands.die_with_us(hands.index)?;
        Ok(hands)
    }

    fn stood(&mut self) -> &mut Stood {
        &mut self.stopped.threads[self.index]
    }

    fn die_with_us(&mut self, index: usize) -> io::Result<()> {
        let stood = &mut self.stopped.threads[index];
        stood.is_changed = true;
        // SAFETY: numbers.
        check(unsafe { ptrace(libc::PTRACE_SETOPTIONS, stood.tid, 0, libc::PTRACE_O_EXITKILL as usize) })
    }

    /// Registers for what is not the program's.
    fn base_registers(stood: &Stood) -> user_regs_struct {
        user_regs_struct { orig_rax: NO_CALL, ..stood.regs }
    }

    /// The thread, ready to make calls, with all signals blocked.
    fn tracee(&mut self) -> io::Result<Tracee> {
        let (syscall, stack) = (self.syscall, self.stack);
        let stood = self.stood();
        stood.is_off = true;
        let regs = user_regs_struct { rip: syscall, rsp: stack, ..Self::base_registers(stood) };
        set_signal_mask(stood.tid, !0)?;
        Ok(Tracee::anywhere(stood.tid, regs))
    }

    /// A call by the thread, which is not trapped.
    pub(super) fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> io::Result<u64> {
        let tid = self.stood().tid;
        let dispatch = Dispatch::of(tid).filter(Dispatch::is_on);
        if dispatch.is_some() {
            Dispatch::OFF.set(tid)?;
        }
        let tracee = self.tracee()?;
        let result = tracee.call(number, args);
        self.stopped.meanwhile = self.stopped.meanwhile.and(tracee.meanwhile());
        if let Some(dispatch) = dispatch {
            dispatch.set(tid)?;
        }
        result
    }

    /// Maps the room: the struct and what it points to, and the stack.
    fn map_room(&mut self, bytes: u64) -> io::Result<u64> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        let all = bytes + STACK_BYTES;
        let at = self.call(libc::SYS_mmap, [0, all, prot, flags, u64::MAX, 0])?;
        self.room_bytes = all;
        self.stack = at + all;
        Ok(at)
    }

    /// Returns the agent's entry for processes that run.
    fn map_agent(&mut self, agent: &Published) -> io::Result<u64> {
        let tracee = self.tracee()?;
        let entry = tracee.map_agent(agent);
        self.stopped.meanwhile = self.stopped.meanwhile.and(tracee.meanwhile());
        let entry = entry?;
        self.base = entry - Image::of(AGENT_SO).entry;
        Ok(entry - BEFORE_ENTRY)
    }

    fn write_words(&self, at: u64, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.stopped.memory.write_all_at(&bytes, at)
    }

    /// The agent's entry, by the thread.
    fn run(&mut self, what: u64, at: u64) -> io::Result<i64> {
        self.run_in(self.index, what, at)
    }

    /// The same by another one.
    fn run_in(&mut self, index: usize, what: u64, at: u64) -> io::Result<i64> {
        let stood = &mut self.stopped.threads[index];
        let regs = user_regs_struct {
            rip: self.entry,
            rsp: self.stack,
            rdi: what,
            rsi: at,
            ..Self::base_registers(stood)
        };
        let tid = stood.tid;
        // Where the kernel looks for signals it does so at the breakpoint's.
        stood.is_off = false;
        set_registers(tid, &regs)?;
        set_signal_mask(tid, MASK)?;
        let mut meanwhile = Meanwhile::default();
        let result = run_to_breakpoint(tid, &mut meanwhile);
        self.stopped.meanwhile = self.stopped.meanwhile.and(meanwhile);
        result
    }

    fn trap_all(&mut self, at: u64) -> io::Result<()> {
        for index in 0..self.stopped.threads.len() {
            self.die_with_us(index)?;
            let stood = &self.stopped.threads[index];
            let call = if stood.is_in_restart() { stood.regs.orig_rax } else { words::NO_CALL };
            self.write_thread(at, index, call)?;
            match self.run_in(index, TRAP, at)? {
                0 => {}
                errno => return Err(io::Error::from_raw_os_error(-errno as i32)),
            }
            let [mask, _, rip] = self.read(at)?;
            let stood = &mut self.stopped.threads[index];
            (stood.mask, stood.regs.rip) = (mask, rip);
            // %gs is its block's address now, where the program has set none.
            stood.regs.gs_base = super::tracee::registers(stood.tid)?.gs_base;
        }
        Ok(())
    }

    fn read<const N: usize>(&self, at: u64) -> io::Result<[u64; N]> {
        read_words(&self.stopped.memory, at).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn write_thread(&self, at: u64, index: usize, call: u64) -> io::Result<()> {
        let Stood { regs, mask, .. } = &self.stopped.threads[index];
        let thread = Thread {
            mask: *mask,
            call,
            rip: regs.rip,
            rsp: regs.rsp,
            rax: regs.rax,
            rcx: regs.rcx,
            args: [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
            rest: [regs.rbx, regs.rbp, regs.r12, regs.r13, regs.r14, regs.r15],
        };
        let Thread { mask, call, rip, rsp, rax, rcx, args, rest } = thread;
        let words: Vec<u64> = [mask, call, rip, rsp, rax, rcx].into_iter().chain(args).chain(rest).collect();
        self.write_words(at, &words)
    }

    /// All leave, and all that was mapped is unmapped.
    fn leave(&mut self, at: u64, evictor: u32, end_evictor: &mut dyn FnMut()) -> io::Result<()> {
        // Whoever is at work may be filling a page.
        self.wait_for_work(at)?;
        match -self.run(WHOLE, at)? as i32 {
            0 => {}
            libc::EOPNOTSUPP => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "it was started under memspill, and has the agent among its libraries",
                ));
            }
            libc::EAGAIN => return Err(later("not all of its pages are back: try again")),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        self.leave_at_last(at, evictor, end_evictor).map_err(|e| {
            // Some of it is trapped and the rest is not.
            signals::send(self.stopped.pid as u32, libc::SIGKILL);
            io::Error::other(format!("it was killed in the middle of that: {e}"))
        })
    }

    fn leave_at_last(&mut self, at: u64, evictor: u32, end_evictor: &mut dyn FnMut()) -> io::Result<()> {
        for index in 0..self.stopped.threads.len() {
            self.die_with_us(index)?;
            self.write_thread(at, index, words::NO_CALL)?;
            match self.run_in(index, LEAVE, at)? {
                0 => self.take_thread(at, index)?,
                errno => return Err(io::Error::from_raw_os_error(-errno as i32)),
            }
        }
        self.write_words(at, &[0; size_of::<Left>() / 8])?;
        self.run(END, at)?;
        let [count] = self.read(at)?;
        let ranges: [u64; 2 * words::LEFT_MAX] = self.read(at + 8)?;
        end_evictor();
        wait_for_end(self.stopped.pid, evictor);
        // (An error: vm.max_map_count is reached. What stays is memory that nobody uses.)
        let pairs = ranges.as_chunks::<2>().0;
        for [start, bytes] in pairs.iter().take(count as usize) {
            let _ = self.call(libc::SYS_munmap, [*start, *bytes, 0, 0, 0, 0]);
        }
        self.unmap_named()
    }

    /// Waits until no thread is at work in the agent.
    fn wait_for_work(&mut self, at: u64) -> io::Result<()> {
        let until = Instant::now() + LEAVES_AFTER;
        let mut moment = GOES_ON_FOR;
        loop {
            let mut busy = vec![];
            for index in 0..self.stopped.threads.len() {
                self.die_with_us(index)?;
                self.write_thread(at, index, words::NO_CALL)?;
                match -self.run_in(index, LOOK, at)? as i32 {
                    0 => {}
                    libc::EBUSY => busy.push(self.stopped.threads[index].tid),
                    _ => {
                        return Err(io::Error::new(
                            io::ErrorKind::Unsupported,
                            "it has set a seccomp filter since, which has the agent's calls in it",
                        ));
                    }
                }
            }
            if busy.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(later("a thread of it does not come out of the agent: try again"));
            }
            let own = self.stood().tid;
            let result = self.stopped.run_on(&busy, moment);
            moment *= 2;
            let index = self.stopped.threads.iter().position(|stood| stood.tid == own);
            // It has ended, or does not stand: another one does it.
            self.index = index.unwrap_or(0);
            result?;
            if self.stopped.threads.is_empty() {
                return Err(later("its threads have ended"));
            }
            self.die_with_us(self.index)?;
        }
    }

    fn take_thread(&mut self, at: u64, index: usize) -> io::Result<()> {
        let [mask, _, rip, rsp, rax, rcx, rdi, rsi, rdx, r10, r8, r9, rbx, rbp, r12, r13, r14, r15] =
            self.read(at)?;
        let stood = &mut self.stopped.threads[index];
        stood.mask = mask;
        let gs_base = super::tracee::registers(stood.tid)?.gs_base;
        let regs = stood.regs;
        stood.regs = user_regs_struct {
            rip,
            rsp,
            rax,
            rcx,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            rbx,
            rbp,
            r12,
            r13,
            r14,
            r15,
            gs_base,
            ..regs
        };
        Ok(())
    }

    /// The agent has not joined: nothing of it stays.
    fn unmap_agent(&mut self, at: u64) {
        // (Errors: the process ends, or what cannot be unmapped stays.)
        if self.base == 0 {
            return;
        }
        let _ = self.write_words(at, &[0; size_of::<Left>() / 8]);
        if let Ok(0) = self.run(END, at)
            && let Ok([count]) = self.read(at)
            && let Ok(ranges) = self.read::<{ 2 * words::LEFT_MAX }>(at + 8)
        {
            for [start, bytes] in ranges.as_chunks::<2>().0.iter().take(count as usize) {
                let _ = self.call(libc::SYS_munmap, [*start, *bytes, 0, 0, 0, 0]);
            }
        }
        let _ = self.unmap_named();
    }

    /// Mappings of our files.
    fn unmap_named(&mut self) -> io::Result<()> {
        let maps = proc::text(format!("/proc/{}/maps", self.stopped.pid))?;
        for line in maps.lines() {
            let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) else {
                continue;
            };
            let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
            if line.contains(" /memfd:memspill-") || line.contains("/memspill-agent-") {
                let (start, end) = (number(start)?, number(end)?);
                self.call(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])?;
            }
        }
        // What was reserved between the parts of the agent's image.
        let bytes = Image::of(AGENT_SO).bytes();
        self.call(libc::SYS_munmap, [self.base, bytes, 0, 0, 0, 0]).map(|_| ())
    }

    /// The last that is done by the thread: the room is unmapped.
    fn finish(&mut self, at: u64) {
        if self.stopped.threads.is_empty() {
            // All have ended, and the room goes with the process.
            return;
        }
        if self.ignores_trap {
            let action = [libc::SIG_IGN as u64, 0, 0, 0];
            let _ = self.write_words(at, &action).and_then(|()| {
                self.call(libc::SYS_rt_sigaction, [libc::SIGTRAP as u64, at, 0, 8, 0, 0]).map(|_| ())
            });
        }
        let bytes = self.room_bytes;
        let _ = self.call(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]);
    }
}

/// In the vdso, or where a thread stands behind one.
fn find_syscall(stopped: &Stopped) -> Option<u64> {
    const CODE: [u8; 2] = [0x0f, 0x05];
    let maps = proc::text(format!("/proc/{}/maps", stopped.pid)).ok()?;
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = vdso.split(' ').next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut code = vec![0; (end - start) as usize];
    stopped.memory.read_exact_at(&mut code, start).ok()?;
    let at = code.windows(CODE.len()).position(|window| window == CODE)?;
    Some(start + at as u64)
}

fn ignores_trap(pid: pid_t) -> bool {
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set >> (libc::SIGTRAP - 1) & 1 != 0)
}

/// The thread must end before its stack and code are unmapped. It has nothing to do any more, so it ends
/// soon, unless it has no CPU.
fn wait_for_end(pid: pid_t, thread: u32) {
    let mut is_said = false;
    let begun = Instant::now();
    while Path::new(&format!("/proc/{pid}/task/{thread}")).exists() {
        if begun.elapsed() > EVICTOR_ENDS && !std::mem::replace(&mut is_said, true) {
            eprintln!(
                "memspill: process {pid} stands still until memspill's thread {thread} in it has ended, \
                 which gets no CPU: give it some (its cgroup, taskset, chrt)"
            );
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}
