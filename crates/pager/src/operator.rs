//! The control socket's side of a run: who may ask, and what is done.
//!
//! ```text
//!   thread memspill-ctl:  accept ─▶ same user or root? fewer than 8 being served? ─▶ a thread for this one
//!   that thread:          one request within 5 s ─▶ do it ─▶ answer ─▶ gone
//!     swapoff             step, step, ...; progress five times a second; the caller's half closed: stop
//! ```
//!
//! Nothing of the run waits for a caller: these threads take the same short locks as everybody, and a caller that says
//! nothing, or says nonsense, has one of eight threads for five seconds at most. A failure here never ends the run.
//!
//! Device names are what people call devices by, so no two that are on have the same one.

use crate::ctl::{self, REQUEST_BYTES_MAX, Reply, Request};
use crate::pager::Pager;
use crate::process::Process;
use memspill_engine::backing::QueueId;
use memspill_engine::devices::{Device, DeviceState};
use memspill_engine::swapoff::{Step, SwapoffError};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use rustix::fs::Uid;
use rustix::net::{RecvFlags, SocketFlags, sockopt};
use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Callers served at a time.
const CALLERS_MAX: u32 = 8;
/// A caller that says nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a swapoff says of itself comes this often.
const PROGRESS: Duration = Duration::from_millis(200);
/// A swapoff that waits for a read, or for somebody who holds a slot, looks again after this long at the latest.
const WAIT: Duration = Duration::from_millis(2);

/// What the command line knows and this crate does not.
pub trait Operator: Send + Sync {
    /// Open a device as `--swap` does, after so many others. `names` are taken.
    fn open_device(&self, spec: &str, before: usize, limit_bytes: u64, names: &[&str]) -> Result<Device, String>;
    /// May the budget be this, and what does it leave for each device to hold in RAM?
    fn ram_limit_bytes(&self, limit_bytes: u64, device: &Device) -> Result<u64, String>;
    fn stats(&self, pager: &Pager, json: bool) -> String;
}

/// The thread that lets callers in.
pub(crate) fn run(pager: &Arc<Pager>, operator: &Arc<dyn Operator>) {
    let socket = match ctl::listen() {
        Ok(socket) => socket,
        Err(error) => return eprintln!("memspill: no control socket, memspill ctl will not find this run: {error}"),
    };
    let served = Arc::new(AtomicU32::new(0));
    while !pager.stopping.load(Ordering::Relaxed) {
        match rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
            Ok(caller) => admit(pager, operator, &served, caller),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            // No descriptor or memory just now: the run needs them more.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn may_ask(caller: Uid) -> bool {
    caller == rustix::process::geteuid() || caller.is_root()
}

fn admit(pager: &Arc<Pager>, operator: &Arc<dyn Operator>, served: &Arc<AtomicU32>, caller: OwnedFd) {
    if !sockopt::socket_peercred(&caller).is_ok_and(|peer| may_ask(peer.uid)) {
        return;
    }
    if served.fetch_add(1, Ordering::Relaxed) >= CALLERS_MAX {
        served.fetch_sub(1, Ordering::Relaxed);
        return answer(&caller, &Reply::Refused(format!("{CALLERS_MAX} others are being served: try again")));
    }
    let (pager, operator, count) = (pager.clone(), operator.clone(), served.clone());
    let thread = std::thread::Builder::new().name("memspill-caller".into()).stack_size(256 << 10);
    let started = thread.spawn(move || {
        serve(&caller, |request| carry_out(&pager, operator.as_ref(), request, &caller));
        count.fetch_sub(1, Ordering::Relaxed);
    });
    if started.is_err() {
        served.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One caller: a request, and its last answer.
fn serve(caller: &OwnedFd, carry_out: impl FnOnce(Request) -> Result<String, String>) {
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        if sockopt::set_socket_timeout(caller, direction, Some(PATIENCE)).is_err() {
            return;
        }
    }
    let reply = match ctl::receive(caller, REQUEST_BYTES_MAX, RecvFlags::empty()) {
        Ok(Some(message)) => Request::decode(&message).and_then(carry_out),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err("the request is too long".into()),
        Ok(None) | Err(_) => return,
    };
    answer(caller, &reply.map_or_else(Reply::Refused, Reply::Done));
}

/// Who does not take his answer has no need of it.
fn answer(caller: &OwnedFd, reply: &Reply) {
    let _ = ctl::send(caller, &reply.encode());
}

fn carry_out(pager: &Arc<Pager>, operator: &dyn Operator, request: Request, caller: &OwnedFd) -> Result<String, String> {
    match request {
        Request::Sizes => Ok(sizes(pager)),
        Request::Stats { json } => Ok(operator.stats(pager, json)),
        Request::Swaps => Ok(swaps(pager)),
        Request::Swapon { spec } => swapon(pager, operator, &spec),
        Request::Swapoff { name } => swapoff(pager, &name, caller),
        Request::Limit { bytes } => set_limit(pager, operator, bytes),
        Request::Pageout { pid, ranges } => pageout(pager, pid, &ranges),
        Request::Cold { pid, ranges } => cold(pager, pid, &ranges),
    }
}

fn sizes(pager: &Pager) -> String {
    let engine = &pager.engine;
    let swapped_pages: u64 = engine.spaces().iter().map(|s| s.swapped_pages()).sum();
    let swapped_bytes = swapped_pages * PAGE_SIZE as u64;
    format!("{} {} {swapped_bytes}", engine.group.limit_bytes(), engine.group.usage_bytes())
}

/// As /proc/swaps, with the state behind it.
fn swaps(pager: &Pager) -> String {
    let kib = |pages: u64| pages * (PAGE_SIZE as u64 >> 10);
    let rows = pager.engine.devices.iter().map(|device| {
        let kind = device.name.split([':', '#']).next().unwrap_or_default();
        let state = match device.state() {
            DeviceState::On if device.errors.is_failing() => "failing",
            DeviceState::On if device.full.load(Ordering::Relaxed) => "full",
            DeviceState::On => "on",
            DeviceState::Leaving => "leaving",
            DeviceState::Off => "off",
        };
        let (size, used) = (kib(device.slots.all_slots()), kib(device.slots.used_slots()));
        (device.name.as_str(), kind, size, used, device.priority, state)
    });
    let mut text = format!("{:<40}{:<9}{:>12}{:>12}{:>10}  {}", "Filename", "Type", "Size", "Used", "Priority", "State");
    for (name, kind, size, used, priority, state) in rows {
        let _ = write!(text, "\n{name:<39} {kind:<9}{size:>12}{used:>12}{priority:>10}  {state}");
    }
    text
}

fn swapon(pager: &Arc<Pager>, operator: &dyn Operator, spec: &str) -> Result<String, String> {
    let engine = &pager.engine;
    let names: Vec<&str> = engine.devices.iter().filter(|d| !d.is_off()).map(|d| d.name.as_str()).collect();
    let device = operator.open_device(spec, engine.devices.ever().count(), engine.group.limit_bytes(), &names)?;
    let name = device.name.clone();
    // Before a page can be there to be read.
    for (queue, cpu) in pager.cpus.iter().enumerate() {
        if let Some(fd) = device.backing.poll_fd(QueueId(queue as u32)) {
            crate::fault::watch_reads(&cpu.epoll, fd).map_err(|e| e.to_string())?;
        }
    }
    engine.swapon(device).map_err(|e| e.to_string())?;
    engine.swap_is_full.store(false, Ordering::Relaxed);
    pager.kick_reclaim();
    Ok(format!("{name} is on"))
}

fn swapoff(pager: &Arc<Pager>, name: &str, caller: &OwnedFd) -> Result<String, String> {
    let engine = &pager.engine;
    let is_it = |device: &Device| !device.is_off() && (device.name == name || device.name.strip_prefix("file:") == Some(name));
    let (place, device) = engine.devices.iter().enumerate().find(|(_, device)| is_it(device)).ok_or_else(|| {
        let names: Vec<&str> = engine.devices.iter().filter(|d| d.is_on()).map(|d| d.name.as_str()).collect();
        format!("no swap device {name}; on are: {}", names.join(", "))
    })?;
    let refused = |error: &dyn std::fmt::Display| format!("swapoff {}: {error}", device.name);
    engine.swapoff_begin(place).map_err(|e| refused(&e))?;
    if !std::ptr::eq(device, &engine.devices[place]) {
        // It went off and was replaced since it was looked up: the other one is not meant.
        engine.swapoff_stop();
        let _ = until_off(pager, place, caller);
        return Err(refused(&SwapoffError::NotOn));
    }
    let (before, start) = (device.slots.used_slots(), Instant::now());
    let result = until_off(pager, place, caller);
    pager.update_other_bytes();
    pager.poke_waiting();
    match result {
        Ok(()) => Ok(format!("{} is off, {before} pages moved in {:.1} s", device.name, start.elapsed().as_secs_f64())),
        Err(error) => {
            let left = device.slots.used_slots();
            Err(format!("{}; it is on again, with {left} of its {before} pages", refused(&error)))
        }
    }
}

fn until_off(pager: &Arc<Pager>, place: usize, caller: &OwnedFd) -> Result<(), SwapoffError> {
    let engine = &pager.engine;
    let queue = QueueId(pager.cpus.len() as u32 + pager.reclaimers);
    let mut told = Instant::now();
    loop {
        let step = {
            let _work = pager.quiet.work();
            engine.swapoff_step(crate::cpu(), queue)
        };
        match step {
            Step::End(result) => return result,
            Step::Wait => wait_for_read(&engine.devices[place], queue),
            Step::Moved(_) => {}
        }
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            answer(caller, &Reply::Progress(engine.devices[place].slots.used_slots().to_string()));
            pager.update_other_bytes();
        }
        // He has said all: nothing more comes, but perhaps the end.
        if matches!(ctl::receive(caller, REQUEST_BYTES_MAX, RecvFlags::DONTWAIT), Ok(None)) {
            engine.swapoff_stop();
        }
    }
}

fn wait_for_read(device: &Device, queue: QueueId) {
    match device.backing.poll_fd(queue) {
        Some(fd) => crate::fault::wait_readable(fd, WAIT),
        None => std::thread::sleep(WAIT),
    }
}

fn pageout(pager: &Arc<Pager>, pid: u32, ranges: &[(u64, u64)]) -> Result<String, String> {
    // Writes are in turn on a queue, so swapoff's serves for this too.
    let queue = QueueId(pager.cpus.len() as u32 + pager.reclaimers);
    let pages = advise(pager, pid, ranges, |process, from, to| crate::evict::pageout(pager, queue, process, from, to))?;
    Ok(format!("{pages} pages of process {pid} were paged out"))
}

fn cold(pager: &Arc<Pager>, pid: u32, ranges: &[(u64, u64)]) -> Result<String, String> {
    let pages = advise(pager, pid, ranges, |process, from, to| process.space.cold(from, to))?;
    Ok(format!("{pages} pages of process {pid} leave before others"))
}

/// Do this to the whole pages in these ranges of addresses of a process, or to all; the sum of what it returns.
fn advise(
    pager: &Pager,
    pid: u32,
    ranges: &[(u64, u64)],
    each: impl Fn(&Arc<Process>, Vpn, Vpn) -> usize,
) -> Result<usize, String> {
    let process = pager.process_of_pid(pid).ok_or_else(|| format!("process {pid} is not managed by this run"))?;
    let all = [(0, 1 << 57)];
    let page = PAGE_SIZE as u64;
    let ranges = if ranges.is_empty() { &all[..] } else { ranges };
    Ok(ranges.iter().map(|(from, to)| each(&process, Vpn(from.div_ceil(page)), Vpn(to / page))).sum())
}

fn set_limit(pager: &Arc<Pager>, operator: &dyn Operator, bytes: u64) -> Result<String, String> {
    let engine = &pager.engine;
    let limit_of = |device| operator.ram_limit_bytes(bytes, device).map(|limit_bytes| (device, limit_bytes));
    let ram: Vec<(&Device, u64)> = engine.devices.iter().map(limit_of).collect::<Result<_, _>>()?;
    let before = engine.group.limit_bytes();
    engine.group.set_limit_bytes(bytes);
    for (device, ram_limit_bytes) in ram {
        device.backing.set_ram_limit_bytes(ram_limit_bytes);
    }
    pager.kick_reclaim();
    pager.poke_waiting();
    Ok(format!("the budget is {bytes} bytes, it was {before}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// What a caller gets who has sent this and ended his half.
    fn served(messages: &[&[u8]]) -> (Option<Reply>, Option<Request>) {
        let (ours, theirs) = pair();
        messages.iter().for_each(|message| ctl::send(&theirs, message).unwrap());
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).unwrap();
        let mut asked = None;
        serve(&ours, |request| {
            asked = Some(request);
            Ok("done".into())
        });
        drop(ours);
        let reply = ctl::receive(&theirs, 1 << 16, RecvFlags::empty()).unwrap();
        (reply.map(|message| Reply::decode(&message).unwrap()), asked)
    }

    #[test]
    fn a_request_is_carried_out() {
        let swaps = Request::Swaps.encode();
        assert_eq!(served(&[&swaps]), (Some(Reply::Done("done".into())), Some(Request::Swaps)));
    }

    #[test]
    fn strangers_words_are_refused() {
        for garbage in [&b"make me root"[..], &[0xff; 100], &[0; 100], &[b'a'; REQUEST_BYTES_MAX + 1]] {
            let (reply, asked) = served(&[garbage]);
            assert!(matches!(reply, Some(Reply::Refused(_))) && asked.is_none(), "{reply:?}");
        }
        assert_eq!(served(&[]), (None, None), "who says nothing gets nothing");
    }

    #[test]
    fn a_caller_that_is_gone_is_no_trouble() {
        let (ours, theirs) = pair();
        ctl::send(&theirs, &Request::Sizes.encode()).unwrap();
        drop(theirs);
        let mut asked = false;
        serve(&ours, |_| {
            asked = true;
            Ok(String::new())
        });
        assert!(asked);
    }

    #[test]
    fn a_silent_caller_is_let_go() {
        let (ours, _theirs) = pair();
        let start = Instant::now();
        serve(&ours, |_| unreachable!("nothing was asked"));
        assert!(start.elapsed() < 2 * PATIENCE);
    }

    #[test]
    fn other_users_may_not_ask() {
        let me = rustix::process::geteuid();
        assert!(may_ask(me) && may_ask(Uid::ROOT));
        assert!(!may_ask(Uid::from_raw(me.as_raw() + 4711)));
    }
}
