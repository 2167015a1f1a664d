//! The run's side of the control socket: it decides who may ask, and carries the requests out.
//!
//! ```text
//!   thread memspill-ctl:  accept ─▶ same user or root? fewer than 8 being served? ─▶ a thread for this one
//!   that thread:          one request within 5 s ─▶ carry it out ─▶ answer ─▶ end
//!     swapoff             step by step; progress five times a second; stops if the caller closes its half
//!     limit               set at once; then as above, until what is over it has left
//!     detach              asked for; then as above, until the main thread has let all go
//! ```
//!
//! The run never waits for a caller: these threads take the same short locks as all others, and a caller that
//! sends nothing, or nonsense, occupies one of the eight threads for at most five seconds. A failure here
//! never ends the run.
//!
//! `swapoff` names a device by its name, so no two devices that are on have the same one.

use crate::ctl::budget;
use crate::ctl::host::Operator;
use crate::reclaim::evict;
use crate::run::Run;
use crate::run::cpus::wait_readable;
use crate::run::detach::Stage;
use crate::times::{CTL_ACCEPT_AGAIN, CTL_REQUEST, CTL_TELLS, SWAPOFF_READ};
use memspill_ctl::{self as ctl, REQUEST_BYTES_MAX, Reply, Request};
use memspill_engine::backing::{AtRest, Link, LinkState, QueueId, Servers};
use memspill_engine::devices::{Device, DeviceState};
use memspill_engine::space::Space;
use memspill_engine::swap::Swap;
use memspill_engine::swapoff::{Step, SwapoffError};
use memspill_engine::units::{PAGE_SIZE, Vpn};
use rustix::fs::Uid;
use rustix::net::{RecvFlags, SocketFlags, sockopt};
use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// How many callers are served at a time.
const CALLERS_MAX: u32 = 8;

/// The thread that accepts callers, until the run ends.
pub(crate) fn serve_callers(run: &Arc<Run>, operator: &Arc<dyn Operator>) {
    let socket = match ctl::listen() {
        Ok(socket) => socket,
        Err(error) => {
            return eprintln!("memspill: no control socket, memspill ctl will not find this run: {error}");
        }
    };
    let served = Arc::new(AtomicU32::new(0));
    while !run.is_stopping() {
        match rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
            Ok(caller) => admit(run, operator, &served, caller),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            // There is no descriptor or no memory just now. The run needs them more than a caller does.
            Err(_) => std::thread::sleep(CTL_ACCEPT_AGAIN),
        }
    }
}

fn may_ask(caller: Uid) -> bool {
    caller == rustix::process::geteuid() || caller.is_root()
}

fn admit(run: &Arc<Run>, operator: &Arc<dyn Operator>, served: &Arc<AtomicU32>, caller: OwnedFd) {
    if !sockopt::socket_peercred(&caller).is_ok_and(|peer| may_ask(peer.uid)) {
        return;
    }
    if served.fetch_add(1, Ordering::Relaxed) >= CALLERS_MAX {
        served.fetch_sub(1, Ordering::Relaxed);
        return answer(&caller, &Reply::Refused(format!("{CALLERS_MAX} others are being served: try again")));
    }
    let (run, operator, count) = (run.clone(), operator.clone(), served.clone());
    let thread = std::thread::Builder::new().name("memspill-caller".into()).stack_size(256 << 10);
    let started = thread.spawn(move || {
        serve(&caller, |request| carry_out(&run, operator.as_ref(), request, &caller));
        count.fetch_sub(1, Ordering::Relaxed);
    });
    if started.is_err() {
        served.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Read one request of a caller, have it carried out, and send the last answer.
fn serve(caller: &OwnedFd, carry_out: impl FnOnce(Request) -> Result<String, String>) {
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        if sockopt::set_socket_timeout(caller, direction, Some(CTL_REQUEST)).is_err() {
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

/// The caller has sent its request: what can still come is only the end of its half.
fn is_given_up(caller: &OwnedFd) -> bool {
    matches!(ctl::receive(caller, REQUEST_BYTES_MAX, RecvFlags::DONTWAIT), Ok(None))
}

/// Send an answer. A caller that is gone, or does not read, does without it.
fn answer(caller: &OwnedFd, reply: &Reply) {
    let _ = ctl::send(caller, &reply.encode());
}

fn carry_out(
    run: &Arc<Run>,
    operator: &dyn Operator,
    request: Request,
    caller: &OwnedFd,
) -> Result<String, String> {
    match request {
        Request::Sizes => Ok(sizes(run)),
        Request::Stats { json } => Ok(operator.stats(run, json)),
        Request::Metrics => Ok(operator.metrics(run)),
        Request::Swaps => Ok(swaps(run)),
        Request::Swapon { spec } => swapon(run, operator, &spec),
        Request::Swapoff { name } => swapoff(run, &name, caller),
        Request::Limit { bytes } => limit(run, operator, bytes, caller),
        Request::Detach => detach(run, caller),
        Request::Pageout { pid, ranges } => pageout(run, pid, &ranges),
        Request::Cold { pid, ranges } => cold(run, pid, &ranges),
    }
}

fn sizes(run: &Run) -> String {
    let engine = &run.engine;
    let swapped_pages: u64 = engine.spaces().iter().map(|s| s.swapped_pages()).sum();
    let swapped_bytes = swapped_pages * PAGE_SIZE as u64;
    format!("{} {} {swapped_bytes}", engine.root().limit_bytes(), engine.root().usage_bytes())
}

/// In one word, of the device at this place.
pub fn state_of(swap: &Swap, place: usize) -> &'static str {
    let device = &swap.devices[place];
    match (device.state(), Servers::of(&device.backing.links())) {
        (DeviceState::Leaving, _) => "leaving",
        (DeviceState::Off, _) => "off",
        (DeviceState::On, Servers::Lost) => "lost",
        (DeviceState::On, Servers::Away) => "away",
        (DeviceState::On, Servers::Degraded) => "degraded",
        (DeviceState::On, Servers::None | Servers::On) if swap.is_failing(place) => "failing",
        (DeviceState::On, Servers::None | Servers::On) if swap.is_full_for_now(place) => "full",
        (DeviceState::On, Servers::None | Servers::On) => "on",
    }
}

pub fn word_of(state: LinkState) -> &'static str {
    match state {
        LinkState::On => "on",
        LinkState::Away => "away",
        LinkState::Filling => "filling",
        LinkState::Lost => "lost",
    }
}

/// The servers of a device, on one line; nothing where it has none.
pub fn servers_of(device: &Device) -> String {
    let words = |link: &Link| {
        let seconds = link.since_ms / 1000;
        let state = match link.state {
            LinkState::On => "on".to_owned(),
            other => format!("{} for {seconds} s", word_of(other)),
        };
        let refusal = link.refusal.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let round_trip = link.round_trip_us.map_or(String::new(), |us| format!(", {us} us"));
        let (sent, received) = (link.sent_bytes >> 10, link.received_bytes >> 10);
        format!("{state}{refusal}{round_trip}, {sent} KiB sent, {received} KiB received")
    };
    device.backing.links().iter().map(words).collect::<Vec<_>>().join("; ")
}

/// How its pages lie there; `-` where they do not leave RAM.
pub fn encryption_of(device: &Device) -> &'static str {
    match device.backing.properties().at_rest {
        AtRest::InRam => "-",
        AtRest::Plain => "off",
        AtRest::Encrypted => "aes-256-gcm",
    }
}

/// A table like /proc/swaps, with the state of each device, and of its servers, as its last columns.
fn swaps(run: &Run) -> String {
    let kib = |pages: u64| pages * (PAGE_SIZE as u64 >> 10);
    let swap = run.engine.swap();
    let rows = run.engine.devices().iter().enumerate().map(|(place, device)| {
        let kind = device.name.split([':', '#']).next().unwrap_or_default();
        let (state, at_rest) = (state_of(swap, place), encryption_of(device));
        let (size, used) = (kib(device.slots.all_slots()), kib(device.slots.used_slots()));
        (device, kind, size, used, at_rest, state)
    });
    let mut text = format!(
        "{:<40}{:<9}{:>12}{:>12}{:>10}  {:<9}{}",
        "Filename", "Type", "Size", "Used", "Priority", "State", "Encryption"
    );
    for (device, kind, size, used, at_rest, state) in rows {
        let (name, priority, servers) = (&device.name, device.priority, servers_of(device));
        let line = format!(
            "{name:<39} {kind:<9}{size:>12}{used:>12}{priority:>10}  {state:<9}{at_rest:<13}{servers}"
        );
        let _ = write!(text, "\n{}", line.trim_end());
    }
    text
}

fn swapon(run: &Arc<Run>, operator: &dyn Operator, spec: &str) -> Result<String, String> {
    let engine = &run.engine;
    let names: Vec<&str> = engine.devices().iter().filter(|d| !d.is_off()).map(|d| d.name.as_str()).collect();
    let device = operator.open_device(
        spec,
        engine.devices().ever_added().count(),
        engine.root().limit_bytes(),
        &names,
    )?;
    let name = device.name.clone();
    // The pagers watch the device before the first page is written to it, so that they notice each read.
    for (queue, cpu) in run.cpus.iter().enumerate() {
        cpu.watch_reads(&device, QueueId(queue as u32)).map_err(|e| e.to_string())?;
    }
    engine.swapon(device).map_err(|e| e.to_string())?;
    engine.swap().clear_full();
    run.kick_reclaim();
    Ok(format!("{name} is on"))
}

fn limit(run: &Arc<Run>, operator: &dyn Operator, bytes: u64, caller: &OwnedFd) -> Result<String, String> {
    let before = budget::set(run, operator, bytes)?;
    let over_bytes = budget::until_within(run, bytes, |done, total| {
        answer(caller, &Reply::Progress { done, total });
        !is_given_up(caller)
    });
    let over = match over_bytes {
        0 => String::new(),
        over_bytes => format!("; {over_bytes} bytes over it have not left yet"),
    };
    Ok(format!("the budget is {bytes} bytes, it was {before}{over}"))
}

fn detach(run: &Run, caller: &OwnedFd) -> Result<String, String> {
    run.detach.ask()?;
    let mut stage = run.detach.stage();
    loop {
        match stage {
            Stage::Attached(why) => return Err(why.unwrap_or("stopped".into()) + "; it stays attached"),
            Stage::Gone | Stage::Never => return Ok("detached".into()),
            Stage::Brings { done, total } => answer(caller, &Reply::Progress { done, total }),
            Stage::Asked | Stage::Back => {}
        }
        if is_given_up(caller) {
            run.detach.stop();
        }
        stage = run.detach.wait(&stage, CTL_TELLS);
    }
}

fn swapoff(run: &Arc<Run>, name: &str, caller: &OwnedFd) -> Result<String, String> {
    let engine = &run.engine;
    let is_meant = |device: &Device| {
        !device.is_off() && (device.name == name || device.name.strip_prefix("file:") == Some(name))
    };
    let (place, device) =
        engine.devices().iter().enumerate().find(|(_, device)| is_meant(device)).ok_or_else(|| {
            let names: Vec<&str> =
                engine.devices().iter().filter(|d| d.is_on()).map(|d| d.name.as_str()).collect();
            format!("no swap device {name}; on are: {}", names.join(", "))
        })?;
    let refused = |error: &dyn std::fmt::Display| format!("swapoff {}: {error}", device.name);
    if device.backing.pool_file().is_some() {
        run.end_pool_reads();
    }
    engine.swapoff_begin(place).map_err(|e| refused(&e))?;
    if !std::ptr::eq(device, &engine.devices()[place]) {
        // The device went off since it was looked up, and another one has its place. The caller does not mean
        // that one.
        engine.swapoff_stop();
        let _ = until_off(run, place, caller);
        return Err(refused(&SwapoffError::NotOn));
    }
    let (before, start) = (device.slots.used_slots(), Instant::now());
    let result = until_off(run, place, caller);
    run.update_account();
    run.poke_waiting();
    match result {
        Ok(()) => Ok(format!(
            "{} is off, {before} pages moved in {:.1} s",
            device.name,
            start.elapsed().as_secs_f64()
        )),
        Err(error) => {
            let left = device.slots.used_slots();
            Err(format!("{}; it is on again, with {left} of its {before} pages", refused(&error)))
        }
    }
}

fn until_off(run: &Arc<Run>, place: usize, caller: &OwnedFd) -> Result<(), SwapoffError> {
    let engine = &run.engine;
    let queue = run.layout.ctl_queue();
    let total = engine.devices()[place].slots.used_slots();
    let mut last_progress = Instant::now();
    loop {
        let step = {
            let _work = run.quiet.begin_work();
            engine.swapoff_step(crate::cpu(), queue)
        };
        match step {
            Step::End(result) => return result,
            Step::Wait => wait_for_read(&engine.devices()[place], queue),
            Step::Moved(_) => {}
        }
        if last_progress.elapsed() > CTL_TELLS {
            last_progress = Instant::now();
            let left = engine.devices()[place].slots.used_slots();
            answer(caller, &Reply::Progress { done: total.saturating_sub(left), total });
            run.update_account();
        }
        if is_given_up(caller) {
            engine.swapoff_stop();
        }
    }
}

fn wait_for_read(device: &Device, queue: QueueId) {
    match device.backing.poll_fd(queue) {
        Ok(Some(fd)) => wait_readable(&fd, SWAPOFF_READ),
        // The device has no descriptor to wait on, or the process has none to spare.
        Ok(None) | Err(_) => std::thread::sleep(SWAPOFF_READ),
    }
}

fn pageout(run: &Arc<Run>, pid: u32, ranges: &[(u64, u64)]) -> Result<String, String> {
    let queue = run.layout.ctl_queue();
    let pages = advise(run, pid, ranges, |space, from, to| evict::pageout(run, queue, space, from, to))?;
    Ok(format!("{pages} pages of process {pid} were paged out"))
}

fn cold(run: &Arc<Run>, pid: u32, ranges: &[(u64, u64)]) -> Result<String, String> {
    let pages = advise(run, pid, ranges, |space, from, to| space.make_cold(from, to))?;
    Ok(format!("{pages} pages of process {pid} leave before others"))
}

/// Call `each` for the whole pages in these ranges of a process's addresses, or in all where no range is
/// given. Returns the sum of what it returns.
fn advise(
    run: &Run,
    pid: u32,
    ranges: &[(u64, u64)],
    each: impl Fn(&Arc<Space>, Vpn, Vpn) -> usize,
) -> Result<usize, String> {
    let process =
        run.process_of_pid(pid).ok_or_else(|| format!("process {pid} is not managed by this run"))?;
    let all = [(0, 1 << 57)];
    let page = PAGE_SIZE as u64;
    let ranges = if ranges.is_empty() { &all[..] } else { ranges };
    let own = |from: u64, to: u64| each(&process.space, Vpn(from.div_ceil(page)), Vpn(to / page));
    // Pages of shared memory belong to their object's space. They count even if others have them mapped too.
    let shared = |from: u64, to: u64| -> usize {
        let within = process.memory.shared.within(from.next_multiple_of(page), to / page * page);
        let objects = within.iter().filter_map(|(key, from, to)| Some((run.object(*key)?, *from, *to)));
        objects.map(|(object, from, to)| each(&object.space, Vpn(from), Vpn(to))).sum()
    };
    Ok(ranges.iter().map(|(from, to)| own(*from, *to) + shared(*from, *to)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap()
    }

    /// What a caller receives after it has sent `messages` and closed its half, and what the run was asked
    /// for.
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
    fn nonsense_is_refused() {
        for garbage in [&b"make me root"[..], &[0xff; 100], &[0; 100], &[b'a'; REQUEST_BYTES_MAX + 1]] {
            let (reply, asked) = served(&[garbage]);
            assert!(matches!(reply, Some(Reply::Refused(_))) && asked.is_none(), "{reply:?}");
        }
        assert_eq!(served(&[]), (None, None), "a caller that sends nothing gets no answer");
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
    fn a_caller_that_sends_nothing_is_dropped_in_time() {
        let (ours, _theirs) = pair();
        let start = Instant::now();
        serve(&ours, |_| unreachable!("nothing was asked"));
        assert!(start.elapsed() < 2 * CTL_REQUEST);
    }

    #[test]
    fn other_users_may_not_ask() {
        let me = rustix::process::geteuid();
        assert!(may_ask(me) && may_ask(Uid::ROOT));
        assert!(!may_ask(Uid::from_raw(me.as_raw() + 4711)));
    }
}
