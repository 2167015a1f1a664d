//! Messages of a false agent (`untrusted` in `crates/pager/src/lib.rs`).
//!
//! An input is a message of any length on the agent's socket, read as each kind of message; then the numbers
//! in it are the addresses of a `Ready`, a doorbell, and the results of a MOVE.

use crate::{Bytes, assert_one_line};
use memspill_common::protocol::{Hello, MoveRun, Ready, Reply};
use memspill_engine::memory::Take;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::untrusted::{ControlPage, announced_range, check_ready, collect, own_ranges, receive};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

/// Beyond all addresses of a process.
const USER_END: u64 = 1 << 56;

thread_local! {
    static SOCKETS: (OwnedFd, OwnedFd) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
            .expect("socketpair");
    static CONTROL: ControlPage = ControlPage::new().expect("a control page").0;
}

pub fn check(input: &[u8]) {
    messages(input);
    let mut bytes = Bytes(input);
    let ready = ready_of(&mut bytes);
    let (addr, len) = (bytes.u64(), bytes.u64());
    match check_ready(&ready) {
        Ok(()) => {
            let own = own_ranges(&ready);
            assert!(own.iter().all(|(from, to)| from <= to && *to <= USER_END), "{own:x?}");
            announced(addr, len, &own);
        }
        Err(error) => assert_one_line(&error.to_string()),
    }
    announced(addr, len, &[]);
    results(&mut bytes);
}

/// A packet is a message if it has its length, and else it is none.
fn messages(input: &[u8]) {
    let input = &input[..input.len().min(256)];
    // An empty packet reads as the end of the socket.
    if input.is_empty() {
        return;
    }
    SOCKETS.with(|(ours, theirs)| {
        let sent = || assert_eq!(rustix::net::send(theirs, input, SendFlags::NOSIGNAL), Ok(input.len()));
        sent();
        assert_eq!(
            receive::<Hello>(ours).is_ok(),
            input.len() == size_of::<Hello>(),
            "{} bytes",
            input.len()
        );
        sent();
        assert_eq!(
            receive::<Ready>(ours).is_ok(),
            input.len() == size_of::<Ready>(),
            "{} bytes",
            input.len()
        );
        sent();
        let reply = receive::<Reply>(ours);
        assert_eq!(reply.is_ok(), input.len() == size_of::<Reply>(), "{} bytes", input.len());
        if let Ok(reply) = reply {
            let mut bytes = Bytes(input);
            assert!(reply.seq == bytes.u32() && reply.runs_done == bytes.u32());
        }
    });
}

fn ready_of(bytes: &mut Bytes) -> Ready {
    Ready {
        magic: memspill_common::protocol::MAGIC,
        errno: 0,
        staging_addr: bytes.u64(),
        doorbell_addr: bytes.u64(),
        ident_addr: bytes.u64(),
        private_addr: bytes.u64(),
        private_len: bytes.u64(),
        control_addr: bytes.u64(),
        image_addr: bytes.u64(),
        image_len: bytes.u64(),
        blocks_addr: bytes.u64(),
        blocks_len: bytes.u64(),
        tables_addr: bytes.u64(),
        tables_len: bytes.u64(),
        evictor_tid: 0,
        reserved: 0,
    }
}

/// What is registered at an agent's word: whole pages of user space, none of them its own.
fn announced(addr: u64, len: u64, own: &[(u64, u64)]) {
    let Some((from, to)) = announced_range(addr, len, own) else { return };
    assert!(from < to && to <= USER_END, "{from:x}-{to:x}");
    assert!(from % PAGE_SIZE as u64 == 0 && to % PAGE_SIZE as u64 == 0, "{from:x}-{to:x}");
    assert!(!own.iter().any(|(s, e)| from < *e && *s < to), "{from:x}-{to:x} of {own:x?}");
}

/// Results of a MOVE change what was asked for, in order, and nothing else.
fn results(bytes: &mut Bytes) {
    const PAGES: u32 = 128;
    let base = if bytes.u8() & 1 == 0 { 0 } else { PAGES };
    // Some pages have an outcome from earlier on: a run ends there.
    let mut sent: Vec<MoveRun> = Vec::new();
    let mut takes: Vec<Option<Take>> = Vec::new();
    while takes.len() < PAGES as usize && !bytes.0.is_empty() {
        let what = bytes.u8();
        let pages = u32::from(what >> 2).min(PAGES - takes.len() as u32);
        if what & 3 == 0 || pages == 0 {
            takes.push(Some(Take::Hole));
            continue;
        }
        let (moved, errno) = (bytes.u32(), bytes.u32() as i32 >> (8 * (what & 3)));
        let staging = base + takes.len() as u32;
        sent.push(MoveRun { src_addr: 1 << 30, pages, staging, moved, errno });
        takes.resize(takes.len() + pages as usize, None);
    }
    let before = takes.clone();
    let doubtful = CONTROL.with(|control| {
        control.write_runs(&sent);
        collect(control, &sent, base, &mut takes)
    });
    let mut all_moved = true;
    for run in &sent {
        let first = (run.staging - base) as usize;
        let of_run = &takes[first..first + run.pages as usize];
        let moved = of_run.iter().take_while(|take| **take == Some(Take::Moved)).count();
        assert_eq!(moved as u32, run.moved.min(run.pages));
        assert!(of_run[0].is_some(), "each round brings every run further");
        assert!(!of_run[moved..].contains(&Some(Take::Moved)), "what was moved is a prefix");
        all_moved &= moved == of_run.len();
    }
    assert_eq!(doubtful, !all_moved);
    for (before, after) in before.iter().zip(&takes) {
        assert!(before.is_none() || before == after, "what was known has changed");
    }
}
