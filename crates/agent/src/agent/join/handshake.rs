//! How a process joins: Hello → Welcome → Ready → Go (the words are in `common/src/protocol.rs`).
//!
//! The evictor is started before Ready is sent, and waits for its go. So a process that may not have another
//! thread says so in Ready, when leaving it alone is still simple; and the evictor closes its copies of the
//! program's descriptors while the supervisor works.
//!
//! Three endings:
//! - joined;
//! - left alone: the supervisor said so, or something is forbidden here (a sandbox, a limit). The program
//!   runs on without an agent, silently: the supervisor knows, and says what is to be said. Only where it
//!   cannot know, for the process has another network namespace and does not reach it, the line is written
//!   here. (In `kernel` mode the pager goes on to bring swapped-out pages of a fork's child.)
//! - the supervisor is gone (nobody listens, or the socket ended): the process kills itself, because the tree
//!   must die with its supervisor. One that runs already (`running.rs`) goes on as it was, until it has
//!   joined.
//!
//! The socket is moved to a high number at once. The other descriptors have the lowest free numbers for a
//! moment, and are closed before the program goes on; it nearly always has a single thread here, so nobody
//! sees them.

use crate::common::sync::Ordering;
use core::mem::{MaybeUninit, size_of};

use super::above::above;
use super::evictor;
use crate::common::protocol::{
    BY_AGENT, Go, Hello, KIND_EXEC, LEFT_TO_TRACER, MAGIC, Ready, UFFD_FROM_DEVICE, UFFD_FROM_SYSCALL,
    UFFD_GIVEN, UFFD_LINK, UFFD_LINK_REGISTERED, UFFD_NONE, Welcome,
};
use crate::machine::region::{self, GO_EXIT, GO_RUN, Region};
use crate::machine::sys::{self, ECONNREFUSED, EINTR, EPERM, EPROTO, Fd, Result, SignalsBlocked, nr};
use crate::pages;
use crate::supervisor::address::{self, NAME_MAX, is_elsewhere, number_in_name, supervisor_pid};
use crate::supervisor::control;
use crate::supervisor::state::STATE;
use crate::thread::trapped;

const AF_UNIX: usize = 1;
const SOCK_SEQPACKET: usize = 5;
const SOCK_CLOEXEC: usize = sys::O_CLOEXEC;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const F_DUPFD_CLOEXEC: usize = 1030;
/// Below the usual soft limit of 1024, above what programs use by number.
const HIGH_FD: usize = 1000;
const USERFAULTFD_IOC_NEW: usize = 0xaa00;

/// Joins, or runs on without an agent, or dies.
pub fn join(kind: u32) {
    // The evictor inherits the mask, and no handler of the program may find the agent half made.
    let blocked = SignalsBlocked::new();
    // Err: left alone. A process that finds that the supervisor is gone ends on the spot.
    let _ = try_join(kind, [0; 16]);
    drop(blocked);
}

/// Connects and says who this is.
pub fn hello(kind: u32, fork: [u8; 16]) -> Option<Fd> {
    let socket = connect()?;
    send(&socket, &hello_of(kind, fork), None);
    Some(socket)
}

pub fn hello_of(kind: u32, fork: [u8; 16]) -> Hello {
    let token = address::address().token;
    let mode = if address::is_by_agent() { BY_AGENT } else { 0 };
    Hello { magic: MAGIC, kind, pid: sys::getpid(), mode, token, fork }
}

/// As `join`, with all signals blocked. `fork`: of which fork this is the child (KIND_CHILD).
pub fn try_join(kind: u32, fork: [u8; 16]) -> Result<()> {
    let socket = hello(kind, fork).ok_or(EPERM)?;
    let pid = sys::getpid();
    let (welcome, fds) = receive::<Welcome>(&socket).ok_or(EPROTO)?;
    if welcome.magic != MAGIC || welcome.uffd_source == UFFD_NONE {
        return Err(EPROTO);
    }

    let made = match prepare(kind, welcome.uffd_source, fds, &socket) {
        Ok(made) => made,
        Err(errno) => {
            send(&socket, &Ready { magic: MAGIC, errno, ..NOT_READY }, None);
            return Err(errno);
        }
    };
    let (image_addr, image_len) = region::image();
    let ready = Ready {
        magic: MAGIC,
        errno: 0,
        staging_addr: made.region.staging() as u64,
        doorbell_addr: made.region.doorbells() as u64,
        ident_addr: made.ident as u64,
        private_addr: made.region.private() as u64,
        private_len: made.region.private_len() as u64,
        control_addr: made.region.control() as u64,
        image_addr: image_addr as u64,
        image_len: image_len as u64,
        blocks_addr: made.blocks.0 as u64,
        blocks_len: made.blocks.1 as u64,
        tables_addr: pages::own_memory().0 as u64,
        tables_len: pages::own_memory().1 as u64,
        evictor_tid: made.evictor_tid,
        reserved: 0,
    };
    let passed = made.uffd.as_ref().filter(|_| welcome.uffd_source != UFFD_GIVEN);
    send(&socket, &ready, passed);
    match receive::<Go>(&socket) {
        Some((Go { magic: MAGIC, errno: 0 }, _)) if made.trap() => {
            made.publish(kind, pid);
            trapped::has_joined();
            Ok(())
        }
        _ => {
            made.undo(kind);
            Err(EPROTO)
        }
    }
}

const NOT_READY: Ready = Ready {
    magic: MAGIC,
    errno: 0,
    staging_addr: 0,
    doorbell_addr: 0,
    ident_addr: 0,
    private_addr: 0,
    private_len: 0,
    control_addr: 0,
    image_addr: 0,
    image_len: 0,
    blocks_addr: 0,
    blocks_len: 0,
    tables_addr: 0,
    tables_len: 0,
    evictor_tid: 0,
    reserved: 0,
};

/// Everything that Ready tells of, with the evictor waiting for its go.
struct Prepared {
    region: Region,
    ident: usize,
    /// None: there is a link.
    uffd: Option<Fd>,
    evictor_tid: u32,
    /// What the dispatch keeps for the threads, where system calls are to be trapped.
    blocks: (usize, usize),
}

fn prepare(kind: u32, source: u32, fds: [Option<Fd>; 3], socket: &Fd) -> Result<Prepared> {
    let [Some(control), second, pool] = fds else {
        return Err(EPROTO);
    };
    let flags = sys::O_CLOEXEC | sys::O_NONBLOCK;
    let traps = matches!(source, UFFD_LINK | UFFD_LINK_REGISTERED);
    if traps && kind == KIND_EXEC && !trapped::was_running() && is_left_to_tracer() {
        return Err(LEFT_TO_TRACER);
    }
    let blocks = if traps { trapped::prepare(0)? } else { (0, 0) };
    let uffd = match (source, second) {
        (UFFD_FROM_DEVICE, Some(device)) => {
            let args = [device.0 as usize, USERFAULTFD_IOC_NEW, flags, 0, 0, 0];
            // SAFETY: makes a descriptor; no memory involved.
            let made = unsafe { sys::syscall(nr::IOCTL, args) };
            Some(Fd(made? as i32))
        }
        (UFFD_FROM_SYSCALL, None) => {
            // SAFETY: makes a descriptor; no memory involved.
            let made = unsafe { sys::syscall(nr::USERFAULTFD, [flags, 0, 0, 0, 0, 0]) };
            Some(Fd(made? as i32))
        }
        (UFFD_GIVEN, Some(given)) => Some(given),
        (UFFD_LINK | UFFD_LINK_REGISTERED, Some(bell)) => {
            connect_link(&control, &bell, pool.as_ref(), source == UFFD_LINK_REGISTERED)?;
            None
        }
        _ => return Err(EPROTO),
    };
    let made = prepare_region(kind, uffd, control, socket, blocks);
    if made.is_err() {
        pages::disconnect();
    }
    made
}

/// Does somebody trace this program? Not the command itself, which must not run without the supervisor's
/// knowing.
fn is_left_to_tracer() -> bool {
    sys::is_traced() && u64::from(sys::getppid()) != supervisor_pid()
}

fn prepare_region(
    kind: u32,
    uffd: Option<Fd>,
    control: Fd,
    socket: &Fd,
    blocks: (usize, usize),
) -> Result<Prepared> {
    let region = Region::new(&control)?;
    // Before the clone, which would copy it.
    drop(control);
    stand_before_the_c_library();
    let ident = if kind == KIND_EXEC { region::new_ident()? } else { STATE.ident.load(Ordering::Relaxed) };
    pages::keep_region(region.base(), Region::BYTES, ident);
    region.write_block(socket, uffd.as_ref());
    // SAFETY: the block is filled in, the region unmapped only after the thread has ended, and signals are
    // blocked.
    match unsafe { evictor::start(&region) } {
        Ok(evictor_tid) => Ok(Prepared { region, ident, uffd, evictor_tid, blocks }),
        Err(errno) => {
            if kind == KIND_EXEC {
                region::free_ident(ident);
            }
            Err(errno)
        }
    }
}

/// Has the process page itself, by what the supervisor has sent. Err: that is not possible here.
fn connect_link(control: &Fd, bell: &Fd, pool: Option<&Fd>, registers: bool) -> Result<()> {
    pages::connect(control.0, bell.0, pool.map(|pool| pool.0), registers)
}

/// Has what malloc gets registered before it is used, and asks before static programs.
fn stand_before_the_c_library() {
    if !pages::has_supervisor() {
        (above().stand_before_calls)();
    }
}

impl Prepared {
    /// Has system calls trapped, where that is to be. False: there is no memory for it.
    fn trap(&self) -> bool {
        self.blocks == (0, 0) || trapped::is_armed() || (above().trap_calls)().is_ok()
    }

    /// Until the evictor has started it holds copies of the program's descriptors, which would keep closed
    /// pipes open.
    fn wait_until_started(&self) {
        // SAFETY: the block lives as long as the region.
        let block = unsafe { &*self.region.block() };
        while block.started.load(Ordering::Acquire) == 0 {
            let _ = sys::futex_wait(&block.started, 0, 0);
        }
    }

    /// Whether forks are made by the agent.
    fn makes_forks(&self) -> bool {
        // SAFETY: the page is mapped for as long as the region is.
        unsafe { (&raw const (*self.region.control_page()).forks).read_volatile() != 0 }
    }

    /// Lets the evictor work, and the hooks see the control page.
    fn publish(self, kind: u32, pid: u32) {
        self.wait_until_started();
        // SAFETY: the block lives as long as the region.
        let block = unsafe { &*self.region.block() };
        STATE.ident.store(self.ident, Ordering::Relaxed);
        STATE.doorbells.store(self.region.doorbells(), Ordering::Relaxed);
        STATE.rung.store(0, Ordering::Relaxed);
        STATE.owner.store(pid, Ordering::Relaxed);
        // SAFETY: the page is mapped from here on until the process ends.
        let has_files = unsafe { (&raw const (*block.control).files).read_volatile() };
        STATE.files.store(has_files, Ordering::Relaxed);
        STATE.forks.store(u32::from(self.makes_forks()), Ordering::Relaxed);
        STATE.control.store(block.control, Ordering::Release);
        control::tell_advice();
        // While nobody else takes pages out or protects them.
        crate::pages::child_is_let_go();
        block.go.store(GO_RUN, Ordering::Release);
        sys::futex_wake(&block.go);
        // A child inherits either.
        if kind == KIND_EXEC && !self.makes_forks() {
            (above().follow_forks)();
        }
        self.region.keep_mapped();
    }

    /// Ends the evictor, then frees everything.
    fn undo(self, kind: u32) {
        pages::disconnect();
        // SAFETY: the block lives as long as the region.
        let block = unsafe { &*self.region.block() };
        block.go.store(GO_EXIT, Ordering::Release);
        sys::futex_wake(&block.go);
        loop {
            let tid = block.tid.load(Ordering::Acquire);
            if tid == 0 {
                break;
            }
            let _ = sys::futex_wait(&block.tid, tid, 0);
        }
        if kind == KIND_EXEC {
            region::free_ident(self.ident);
        }
    }
}

/// Opens the socket. None: it is forbidden here. Nobody listening means that the supervisor is gone.
pub fn connect() -> Option<Fd> {
    #[repr(C)]
    struct Name {
        family: u16,
        nul: u8,
        name: [u8; NAME_MAX],
    }
    // SAFETY: makes a descriptor; no memory involved.
    let low = unsafe { sys::syscall(nr::SOCKET, [AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 0, 0, 0]) };
    let low = Fd(low.ok()? as i32);
    // SAFETY: makes a descriptor; no memory involved.
    let high = unsafe { sys::syscall(nr::FCNTL, [low.0 as usize, F_DUPFD_CLOEXEC, HIGH_FD, 0, 0, 0]) };
    let socket = match high {
        Ok(high) => {
            drop(low);
            Fd(high as i32)
        }
        Err(_) => low,
    };
    let address = address::address();
    let mut name = Name { family: AF_UNIX as u16, nul: 0, name: address.name };
    let mut len = size_of::<u16>() + 1 + address.name_len;
    let mut is_by_inode = false;
    loop {
        // SAFETY: the kernel reads `len` bytes of the name.
        let ret =
            unsafe { sys::syscall(nr::CONNECT, [socket.0 as usize, &raw const name as usize, len, 0, 0, 0]) };
        match ret {
            Ok(_) => return Some(socket),
            Err(EINTR) => {}
            Err(ECONNREFUSED) if is_elsewhere() && !is_by_inode => {
                is_by_inode = true;
                let path = path_by_inode();
                // From the place on at which an abstract name has a NUL, and with one behind it.
                len = size_of::<u16>() + path.len + 1;
                name.nul = path.bytes[0];
                name.name = [0; NAME_MAX];
                let behind = path.bytes.iter().take(path.len).skip(1);
                name.name.iter_mut().zip(behind).for_each(|(place, byte)| *place = *byte);
            }
            Err(_) if is_by_inode && trapped::was_running() => return None,
            Err(_) if is_by_inode => {
                write_stderr_line(
                    "runs outside the budget: it is in another network namespace than memspill",
                );
                return None;
            }
            Err(ECONNREFUSED) => return is_lost(),
            Err(_) => return None,
        }
    }
}

/// The way to the supervisor's other socket, by its descriptor of the file: `/proc/PID/fd/NUMBER`. Such a one
/// is known in all network namespaces.
fn path_by_inode() -> Line {
    let mut path = Line::new();
    path.push(b"/proc/");
    path.push_number(number_in_name(1));
    path.push(b"/fd/");
    path.push_number(number_in_name(3));
    path
}

/// A line on the program's stderr: `memspill: process PID WHAT`. Without anything that can panic, as all of
/// the agent: what a panic says would make it twice as large, and takes symbols that are not here.
pub fn write_stderr_line(what: &str) {
    let mut line = Line::new();
    line.push(b"memspill: process ");
    line.push_number(sys::getpid().into());
    line.push(b" ");
    line.push(what.as_bytes());
    line.push(b"\n");
    // SAFETY: the kernel reads the line. Whether it can be written is no matter.
    let _ = unsafe { sys::syscall(nr::WRITE, [2, line.bytes.as_ptr() as usize, line.len, 0, 0, 0]) };
}

struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line { bytes: [0; 160], len: 0 }
    }

    fn push_number(&mut self, number: u64) {
        let mut unit = 10_000_000_000_000_000_000;
        while unit > 1 && unit > number {
            unit /= 10;
        }
        while unit > 0 {
            self.push(&[b'0' + (number / unit % 10) as u8]);
            unit /= 10;
        }
    }

    fn push(&mut self, more: &[u8]) {
        for byte in more {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }
}

#[repr(C)]
struct IoVec {
    base: usize,
    len: usize,
}

#[repr(C)]
struct MsgHdr {
    name: usize,
    name_len: u32,
    iov: *mut IoVec,
    iov_len: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

/// Room for one control message with the descriptors; `len` says how many bytes of it count.
#[repr(C)]
struct Rights<const N: usize> {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; N],
}

const RIGHTS_HEADER: usize = size_of::<usize>() + 2 * size_of::<i32>();

/// Any failure to send means that the other end is closed.
pub fn send<T: Copy>(socket: &Fd, message: &T, fd: Option<&Fd>) {
    let mut iov = IoVec { base: message as *const T as usize, len: size_of::<T>() };
    // Two, so that the size is a multiple of the alignment.
    let rights = Rights::<2> {
        len: RIGHTS_HEADER + size_of::<i32>(),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        fds: [fd.map_or(-1, |fd| fd.0), -1],
    };
    let control_len = if fd.is_some() { size_of::<Rights<2>>() } else { 0 };
    let header = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &raw mut iov,
        iov_len: 1,
        control: &raw const rights as usize,
        control_len,
        flags: 0,
    };
    loop {
        // SAFETY: the kernel reads the header and what it points to, all alive here.
        let ret = unsafe {
            sys::syscall(nr::SENDMSG, [socket.0 as usize, &raw const header as usize, MSG_NOSIGNAL, 0, 0, 0])
        };
        match ret {
            Ok(_) => return,
            Err(EINTR) => {}
            Err(_) => return is_lost().unwrap_or(()),
        }
    }
}

/// The supervisor is gone. None: the program runs already, and goes on as it was.
fn is_lost<T>() -> Option<T> {
    if trapped::was_running() { None } else { sys::die() }
}

/// One message and up to three descriptors. None: a message of another size, so a supervisor of another
/// version.
pub fn receive<T: Copy>(socket: &Fd) -> Option<(T, [Option<Fd>; 3])> {
    let mut message = MaybeUninit::<T>::zeroed();
    let mut iov = IoVec { base: message.as_mut_ptr() as usize, len: size_of::<T>() };
    // Four, for the alignment.
    let mut rights = Rights::<4> { len: 0, level: 0, kind: 0, fds: [-1; 4] };
    let mut header = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &raw mut iov,
        iov_len: 1,
        control: &raw mut rights as usize,
        control_len: size_of::<Rights<4>>(),
        flags: 0,
    };
    let received = loop {
        // SAFETY: the kernel writes into the header, the message and the control buffer, within the lengths
        // given.
        let ret = unsafe {
            sys::syscall(
                nr::RECVMSG,
                [socket.0 as usize, &raw mut header as usize, MSG_CMSG_CLOEXEC, 0, 0, 0],
            )
        };
        match ret {
            Err(EINTR) => {}
            Ok(0) | Err(_) => return is_lost(),
            Ok(received) => break received,
        }
    };
    let mut fds = [None, None, None];
    if header.control_len >= RIGHTS_HEADER && rights.level == SOL_SOCKET && rights.kind == SCM_RIGHTS {
        let count = (rights.len - RIGHTS_HEADER) / size_of::<i32>();
        for (slot, &fd) in fds.iter_mut().zip(&rights.fds).take(count) {
            *slot = Some(Fd(fd));
        }
    }
    if received != size_of::<T>() {
        return None;
    }
    // SAFETY: all bytes were written, and the messages are plain integers.
    Some((unsafe { message.assume_init() }, fds))
}
