//! The agent inside real processes, driven by a supervisor that does just enough: it plays the handshake,
//! registers what a test needs, and answers faults from a table. A test that lacks what it needs here says so
//! and passes.
//!
//! The program under test is `target.c`.

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "test code: a supervisor in system calls, whose mistakes end the test"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use memspill_agent::AGENT_SO;
use memspill_common::protocol::*;

const PAGE: u64 = 4096;
const BUFFER_PAGES: u64 = 160;
const TIMEOUT: Duration = Duration::from_secs(20);
const TOKEN: &str = "0123456789abcdef0123456789ABCDEF";

const EVENT_FORK: u64 = 1 << 1;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const THREAD_ID: u64 = 1 << 8;
const FEATURE_MOVE: u64 = 1 << 16;

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;

fn pattern(i: u64) -> u8 {
    (i * 31 + i / PAGE * 7 + 1) as u8
}

fn pattern_pages(first: u64, count: u64) -> Vec<u8> {
    (first * PAGE..(first + count) * PAGE).map(pattern).collect()
}

/// The compiled program, or None where there is no C compiler.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("agent-target");
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/target.c");
            match Program::new("cc").args(["-O1", "-pthread", "-o"]).arg(&out).arg(source).status() {
                Ok(status) => {
                    assert!(status.success(), "target.c does not compile");
                    Some(out)
                }
                Err(_) => None,
            }
        })
        .as_ref()
}

/// /dev/userfaultfd and a kernel that can move pages, or None.
fn device() -> Option<File> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd").ok()?;
    let uffd = unsafe { libc::ioctl(device.as_raw_fd(), 0xaa00, libc::O_CLOEXEC) };
    if uffd < 0 {
        return None;
    }
    let uffd = unsafe { OwnedFd::from_raw_fd(uffd) };
    let mut api = [0xaa_u64, 0, 0];
    let ret = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    (ret == 0 && api[1] & FEATURE_MOVE != 0 && api[1] & EVENT_FORK != 0).then_some(device)
}

macro_rules! needed {
    ($what:expr, $name:literal) => {
        match $what {
            Some(it) => it,
            None => {
                eprintln!("SKIPPED: no {}", $name);
                return;
            }
        }
    };
}

macro_rules! supervisor {
    () => {{
        needed!(program(), "C compiler (cc)");
        Supervisor::new(needed!(device(), "/dev/userfaultfd, or a kernel without UFFDIO_MOVE"))
    }};
}

#[cfg(target_arch = "x86_64")]
#[path = "agent/by_link.rs"]
mod by_link;

struct Supervisor {
    listener: OwnedFd,
    name: String,
    agent: OwnedFd,
    device: File,
}

impl Supervisor {
    fn new(device: File) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        use std::os::unix::fs::MetadataExt;
        let network = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memspill-{}-{network}-test{count}", std::process::id());
        unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            let listener = OwnedFd::from_raw_fd(fd);
            let mut addr: libc::sockaddr_un = std::mem::zeroed();
            addr.sun_family = libc::AF_UNIX as u16;
            for (to, from) in addr.sun_path[1..].iter_mut().zip(name.bytes()) {
                *to = from as libc::c_char;
            }
            let len = 2 + 1 + name.len();
            assert_eq!(libc::bind(fd, (&raw const addr).cast(), len as u32), 0);
            assert_eq!(libc::listen(fd, 16), 0);
            let agent = libc::memfd_create(c"agent".as_ptr(), libc::MFD_CLOEXEC);
            let agent = OwnedFd::from_raw_fd(agent);
            File::from(agent.try_clone().unwrap()).write_all(AGENT_SO).unwrap();
            Self { listener, name, agent, device }
        }
    }

    fn preload(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.agent.as_raw_fd())
    }

    fn command(&self, mode: &str) -> Program {
        let mut command = Program::new(program().unwrap());
        command.arg(mode).env("LD_PRELOAD", self.preload()).env(ENV_NAME, format!("{}:{TOKEN}", self.name));
        command
    }

    fn run(&self, mode: &str) -> Target {
        Target::start(&mut self.command(mode))
    }

    /// Whether somebody waits to be accepted.
    fn is_called(&self, within: Duration) -> bool {
        is_readable(self.listener.as_raw_fd(), within)
    }

    /// Accepts a process and reads its Hello.
    fn accept(&self) -> (OwnedFd, Hello) {
        assert!(self.is_called(TIMEOUT), "nobody connects");
        let fd = unsafe {
            libc::accept4(
                self.listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        };
        assert!(fd >= 0);
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let (hello, _) = receive::<Hello>(&socket);
        assert_eq!(hello.magic, MAGIC);
        assert_eq!(&hello.token, TOKEN.as_bytes());
        (socket, hello)
    }

    /// The whole handshake of a fresh program.
    fn join(&self, source: u32) -> Peer {
        let (socket, hello) = self.accept();
        assert_eq!(hello.kind, KIND_EXEC);
        let control = ControlPage::new();
        let mut fds = vec![control.fd.as_raw_fd()];
        if source == UFFD_FROM_DEVICE {
            fds.push(self.device.as_raw_fd());
        }
        send(&socket, &Welcome { magic: MAGIC, uffd_source: source }, &fds);
        let (ready, mut fds) = receive::<Ready>(&socket);
        assert_eq!((ready.magic, ready.errno), (MAGIC, 0));
        assert_eq!(fds.len(), 1);
        let uffd = fds.remove(0);
        let wanted = EVENT_FORK | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP | THREAD_ID | FEATURE_MOVE;
        let mut api = [0xaa_u64, wanted, 0];
        let ret = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
        assert_eq!(ret, 0, "UFFDIO_API: {}", std::io::Error::last_os_error());
        Peer::new(socket, hello.pid, Arc::new(uffd), control, ready, HashMap::new())
    }

    /// The handshake of a fork's child, whose userfaultfd has come with the event.
    fn join_fork(&self, family: &Pager) -> Peer {
        let (socket, hello) = self.accept();
        assert_eq!(hello.kind, KIND_FORK);
        let child = family.wait_for(|seen| seen.forks.pop(), "EVENT_FORK");
        let control = ControlPage::new();
        send(
            &socket,
            &Welcome { magic: MAGIC, uffd_source: UFFD_GIVEN },
            &[control.fd.as_raw_fd(), child.uffd.as_raw_fd()],
        );
        let (ready, fds) = receive::<Ready>(&socket);
        assert_eq!((ready.magic, ready.errno), (MAGIC, 0));
        assert!(fds.is_empty());
        Peer::with_pager(socket, hello.pid, control, ready, child)
    }
}

/// The page shared with a process.
struct ControlPage {
    fd: OwnedFd,
    page: *mut Control,
    len: usize,
}

unsafe impl Send for ControlPage {}
unsafe impl Sync for ControlPage {}

impl ControlPage {
    fn new() -> Arc<Self> {
        Self::of_len(PAGE as usize)
    }

    /// With what follows the page.
    fn of_len(len: usize) -> Arc<Self> {
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"control".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as i64), 0);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0);
            assert_ne!(page, libc::MAP_FAILED);
            Arc::new(Self { fd, page: page.cast(), len })
        }
    }

    fn lock(&self) -> &AtomicU32 {
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page).lock) }
    }

    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        while self.lock().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        let result = work();
        if self.lock().swap(0, Ordering::Release) == 2 {
            unsafe { libc::syscall(libc::SYS_futex, self.lock().as_ptr(), libc::FUTEX_WAKE, 1) };
        }
        result
    }

    fn set_abort(&self, value: u32) {
        unsafe { (&raw mut (*self.page).abort).write_volatile(value) };
    }

    fn set_announces(&self, value: u32) {
        unsafe { (&raw mut (*self.page).announces).write_volatile(value) };
        self.set_answers(value);
    }

    fn set_answers(&self, value: u32) {
        unsafe { (&raw mut (*self.page).answers).write_volatile(value) };
    }

    fn wants_answers(&self) -> &AtomicU32 {
        unsafe { AtomicU32::from_ptr(&raw mut (*self.page).wants_answers) }
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.page.cast(), self.len) };
    }
}

/// What a pager has seen.
#[derive(Default)]
struct Seen {
    pages: HashMap<u64, Vec<u8>>,
    faults: Vec<(u64, u32)>,
    bells: Vec<Doorbell>,
    removes: usize,
    forks: Vec<Pager>,
}

/// A thread that answers one userfaultfd.
struct Pager {
    uffd: Arc<OwnedFd>,
    seen: Arc<Mutex<Seen>>,
    place: Arc<OnceLock<(Arc<ControlPage>, Ready)>>,
    stop: Arc<AtomicBool>,
}

impl Pager {
    fn start(uffd: Arc<OwnedFd>, pages: HashMap<u64, Vec<u8>>) -> Self {
        let seen = Arc::new(Mutex::new(Seen { pages, ..Seen::default() }));
        let pager =
            Self { uffd, seen, place: Arc::new(OnceLock::new()), stop: Arc::new(AtomicBool::new(false)) };
        let (uffd, seen) = (pager.uffd.clone(), pager.seen.clone());
        let (place, stop) = (pager.place.clone(), pager.stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if is_readable(uffd.as_raw_fd(), Duration::from_millis(20)) {
                    serve(&uffd, &seen, &place);
                }
            }
        });
        pager
    }

    fn wait_for<T>(&self, mut look: impl FnMut(&mut Seen) -> Option<T>, what: &str) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(&mut self.seen.lock().unwrap()) {
                return found;
            }
            assert!(start.elapsed() < TIMEOUT, "no {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn serve(uffd: &OwnedFd, seen: &Mutex<Seen>, place: &OnceLock<(Arc<ControlPage>, Ready)>) {
    let mut message = [0u64; 4];
    let mut read =
        || unsafe { libc::read(uffd.as_raw_fd(), message.as_mut_ptr().cast(), size_of::<[u64; 4]>()) };
    let got = match place.get() {
        Some((control, _)) => control.locked(&mut read),
        None => read(),
    };
    if got != 32 {
        return;
    }
    let mut seen = seen.lock().unwrap();
    match message[0] as u8 {
        0x12 => {
            let page = message[2] & !(PAGE - 1);
            seen.faults.push((page, message[3] as u32));
            if let Some((control, ready)) = place.get() {
                let bell = page.wrapping_sub(ready.doorbell_addr) / PAGE;
                if bell < DOORBELLS as u64 {
                    let entry = unsafe { &raw mut (*control.page).doorbells[bell as usize] };
                    seen.bells.push(unsafe { entry.read_volatile() });
                    unsafe { (&raw mut (*entry).answered).write_volatile(DOORBELL_ANSWERED) };
                }
            }
            let data = seen.pages.get(&page).cloned().unwrap_or_else(|| vec![0; PAGE as usize]);
            fill(uffd, page, &data);
        }
        0x13 => {
            let child = unsafe { OwnedFd::from_raw_fd(message[1] as RawFd) };
            let pages = seen.pages.clone();
            seen.forks.push(Pager::start(Arc::new(child), pages));
        }
        0x15 | 0x16 => seen.removes += 1,
        _ => {}
    }
}

fn fill(uffd: &OwnedFd, page: u64, data: &[u8]) {
    loop {
        let mut copy = [page, data.as_ptr() as u64, PAGE, 0, 0];
        if unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_COPY, copy.as_mut_ptr()) } == 0 {
            return;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => std::thread::yield_now(),
            Some(libc::EEXIST) => {
                let mut range = [page, PAGE];
                unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_WAKE, range.as_mut_ptr()) };
                return;
            }
            _ => return,
        }
    }
}

/// A process that has joined.
struct Peer {
    socket: OwnedFd,
    pid: u32,
    control: Arc<ControlPage>,
    ready: Ready,
    pager: Pager,
    seq: u32,
}

impl Peer {
    fn new(
        socket: OwnedFd,
        pid: u32,
        uffd: Arc<OwnedFd>,
        control: Arc<ControlPage>,
        ready: Ready,
        pages: HashMap<u64, Vec<u8>>,
    ) -> Self {
        Self::with_pager(socket, pid, control, ready, Pager::start(uffd, pages))
    }

    fn with_pager(socket: OwnedFd, pid: u32, control: Arc<ControlPage>, ready: Ready, pager: Pager) -> Self {
        assert!(pager.place.set((control.clone(), ready)).is_ok());
        let peer = Self { socket, pid, control, ready, pager, seq: 0 };
        peer.register(ready.staging_addr, u64::from(STAGING_PAGES));
        send(&peer.socket, &Go { magic: MAGIC, errno: 0 }, &[]);
        peer
    }

    fn register(&self, addr: u64, pages: u64) {
        let mut arg = [addr, pages * PAGE, 1, 0];
        let ret = unsafe { libc::ioctl(self.pager.uffd.as_raw_fd(), UFFDIO_REGISTER, arg.as_mut_ptr()) };
        assert_eq!(ret, 0, "UFFDIO_REGISTER: {}", std::io::Error::last_os_error());
    }

    /// Sends a move of `runs` as (source, pages, first staging page).
    fn start_move(&mut self, op: u32, runs: &[(u64, u32, u32)]) {
        for (index, &(src_addr, pages, staging)) in runs.iter().enumerate() {
            let run = MoveRun { src_addr, pages, staging, moved: 77, errno: 77 };
            unsafe { (&raw mut (*self.control.page).runs[index]).write_volatile(run) };
        }
        self.seq += 1;
        self.send_command(op, runs.len() as u32, 0);
    }

    fn send_command(&self, op: u32, arg: u32, arg2: u32) {
        send(&self.socket, &Command { op, seq: self.seq, arg, arg2 }, &[]);
    }

    /// The Reply: (moved, errno) for each run.
    fn finish_move(&self) -> Vec<(u32, i32)> {
        let (reply, _) = receive::<Reply>(&self.socket);
        assert_eq!(reply.seq, self.seq);
        (0..reply.runs_done as usize)
            .map(|index| {
                let run = unsafe { (&raw const (*self.control.page).runs[index]).read_volatile() };
                (run.moved, run.errno)
            })
            .collect()
    }

    fn move_runs(&mut self, op: u32, runs: &[(u64, u32, u32)]) -> Vec<(u32, i32)> {
        self.start_move(op, runs);
        self.finish_move()
    }

    fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0u8; len];
        let local = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: addr as *mut _, iov_len: len };
        let got = unsafe { libc::process_vm_readv(self.pid as i32, &local, 1, &remote, 1, 0) };
        assert_eq!(got, len as isize, "process_vm_readv: {}", std::io::Error::last_os_error());
        data
    }

    /// Takes what a move left in staging into the pager's table.
    fn store(&self, src: u64, pages: u32, staging: u32) -> Vec<u8> {
        let from = self.ready.staging_addr + u64::from(staging) * PAGE;
        let data = self.read(from, pages as usize * PAGE as usize);
        let mut seen = self.pager.seen.lock().unwrap();
        for (index, page) in data.chunks(PAGE as usize).enumerate() {
            seen.pages.insert(src + index as u64 * PAGE, page.to_vec());
        }
        data
    }

    fn zap(&self, first: u32, count: u32) {
        send(&self.socket, &Command { op: OP_ZAP, seq: 0, arg: first, arg2: count }, &[]);
    }

    /// Task ids of the process with the evictor's name.
    fn evictors(&self) -> Vec<PathBuf> {
        std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == "memspill")
            .collect()
    }
}

/// The program under test, killed on drop.
struct Target {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Target {
    fn start(command: &mut Program) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    fn go(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }

    fn line(&mut self) -> String {
        if self.stdout.buffer().is_empty() {
            assert!(is_readable(self.stdout.get_ref().as_raw_fd(), TIMEOUT), "the program says nothing");
        }
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The address in a line like `at 0x7f...`.
    fn address(&mut self, word: &str) -> u64 {
        let line = self.line();
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?} is not {word:?}"));
        let hex = rest.trim_start().trim_start_matches("0x").split(' ').next().unwrap();
        u64::from_str_radix(hex, 16).unwrap()
    }

    fn end(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the program does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_readable(fd: RawFd, within: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut entry, 1, within.as_millis() as i32) == 1 && entry.revents & libc::POLLIN != 0 }
}

fn send<T>(socket: &OwnedFd, message: &T, fds: &[RawFd]) {
    unsafe {
        let mut iov =
            libc::iovec { iov_base: (message as *const T).cast_mut().cast(), iov_len: size_of::<T>() };
        let mut control = [0u64; 8];
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE((fds.len() * 4) as u32) as usize;
            let rights = libc::CMSG_FIRSTHDR(&header);
            (*rights).cmsg_level = libc::SOL_SOCKET;
            (*rights).cmsg_type = libc::SCM_RIGHTS;
            (*rights).cmsg_len = libc::CMSG_LEN((fds.len() * 4) as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(rights).cast(), fds.len());
        }
        let sent = libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL);
        assert_eq!(sent, size_of::<T>() as isize, "sendmsg: {}", std::io::Error::last_os_error());
    }
}

fn receive<T>(socket: &OwnedFd) -> (T, Vec<OwnedFd>) {
    assert!(is_readable(socket.as_raw_fd(), TIMEOUT), "no {}", std::any::type_name::<T>());
    unsafe {
        let mut message: T = std::mem::zeroed();
        let mut iov = libc::iovec { iov_base: (&raw mut message).cast(), iov_len: size_of::<T>() };
        let mut control = [0u64; 8];
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let got = libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC);
        assert_eq!(got, size_of::<T>() as isize, "{}", std::any::type_name::<T>());
        let mut fds = Vec::new();
        let rights = libc::CMSG_FIRSTHDR(&header);
        if !rights.is_null() {
            let count = ((*rights).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
            for index in 0..count {
                let fd = libc::CMSG_DATA(rights).cast::<RawFd>().add(index).read_unaligned();
                fds.push(OwnedFd::from_raw_fd(fd));
            }
        }
        (message, fds)
    }
}

#[test]
fn moves_pages_out_and_the_program_gets_them_back() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let mut peer = supervisor.join(UFFD_FROM_DEVICE);
    assert_eq!(peer.pid, target.child.id());
    let buffer = target.address("at");
    peer.register(buffer, BUFFER_PAGES);

    let moved = peer.move_runs(OP_MOVE, &[(buffer + 2 * PAGE, 4, 10), (buffer + 50 * PAGE, 100, 20)]);
    assert_eq!(moved, [(4, 0), (100, 0)]);
    assert_eq!(peer.store(buffer + 2 * PAGE, 4, 10), pattern_pages(2, 4));
    assert_eq!(peer.store(buffer + 50 * PAGE, 100, 20), pattern_pages(50, 100));
    // The same staging pages take the next batch, so they were emptied, and that without an event.
    peer.zap(10, 110);
    assert_eq!(peer.move_runs(OP_MOVE, &[(buffer + 10 * PAGE, 8, 10)]), [(8, 0)]);
    peer.store(buffer + 10 * PAGE, 8, 10);
    peer.zap(10, 8);

    target.go();
    assert_eq!(target.line(), "good");
    let seen = peer.pager.seen.lock().unwrap();
    let faulted = |page: u64| seen.faults.iter().any(|&(at, _)| at == buffer + page * PAGE);
    for page in (2..6).chain(10..18).chain(50..150) {
        assert!(faulted(page), "page {page} was not missing");
    }
    assert_eq!(seen.removes, 0);
}

#[test]
fn stops_at_what_cannot_be_moved() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let mut peer = supervisor.join(UFFD_FROM_SYSCALL);
    let buffer = target.address("at");
    peer.register(buffer, 100);
    let at = |page: u64| buffer + page * PAGE;

    // Pages 0 to 99 are a mapping of their own now: runs across its end are moved in parts.
    assert_eq!(peer.move_runs(OP_MOVE, &[(at(67), 60, 0)]), [(60, 0)]);
    assert_eq!(peer.store(at(67), 60, 0), pattern_pages(67, 60));
    peer.zap(0, 60);
    // A hole ends a run; what came before counts.
    assert_eq!(peer.move_runs(OP_MOVE, &[(at(60), 20, 0)]), [(7, libc::ENOENT)]);
    peer.store(at(60), 7, 0);
    // Staging that was not emptied.
    assert_eq!(peer.move_runs(OP_MOVE, &[(at(0), 4, 0)]), [(0, libc::EEXIST)]);
    peer.zap(0, 7);
    // No mapping, staging out of bounds: refused, and the other runs go on.
    let runs = [(0x1000, 1, 0), (at(0), 4, STAGING_PAGES - 3), (at(0), 4, u32::MAX), (at(0), 4, 200)];
    let moved = peer.move_runs(OP_MOVE, &runs);
    assert_ne!(moved[0].1, 0);
    assert_eq!(moved[1..], [(0, libc::EINVAL), (0, libc::EINVAL), (4, 0)]);
    peer.store(at(0), 4, 200);
    // Called off.
    peer.control.set_abort(1);
    let runs = [(at(10), 4, 100), (at(20), 4, 110)];
    assert_eq!(peer.move_runs(OP_MOVE, &runs), [(0, libc::ECANCELED), (0, libc::ECANCELED)]);
    peer.control.set_abort(0);
    // While the lock is held nothing moves; then it does.
    let page = peer.control.clone();
    page.locked(|| {
        peer.start_move(OP_MOVE, &[(at(10), 4, 100)]);
        assert!(!is_readable(peer.socket.as_raw_fd(), Duration::from_millis(250)));
    });
    assert_eq!(peer.finish_move(), [(4, 0)]);
    peer.store(at(10), 4, 100);

    // Pages past 99 are not registered: the test took some out, so it registers them before the program
    // looks.
    peer.register(at(100), 60);
    target.go();
    assert_eq!(target.line(), "good");
}

#[test]
fn dies_with_the_supervisor() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    target.address("at");
    drop(peer.socket);
    assert_eq!(target.end().signal(), Some(libc::SIGKILL));
}

#[test]
fn dies_with_a_supervisor_that_held_the_lock() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let mut peer = supervisor.join(UFFD_FROM_DEVICE);
    let buffer = target.address("at");
    peer.control.lock().store(1, Ordering::SeqCst);
    peer.start_move(OP_MOVE, &[(buffer, 4, 0)]);
    assert!(!is_readable(peer.socket.as_raw_fd(), Duration::from_millis(50)));
    drop(peer.socket);
    assert_eq!(target.end().signal(), Some(libc::SIGKILL));
}

#[test]
fn dies_when_nobody_listens() {
    let supervisor = supervisor!();
    let mut command = supervisor.command("self");
    command.env(ENV_NAME, format!("{}-gone:{TOKEN}", supervisor.name));
    assert_eq!(Target::start(&mut command).end().signal(), Some(libc::SIGKILL));
}

/// Its supervisor cannot be reached from there: it says so, and runs on as it is.
#[test]
fn lives_in_another_network_namespace() {
    let supervisor = supervisor!();
    let mut command = supervisor.command("self");
    let elsewhere = format!("memspill-{}-4711-test:{TOKEN}", std::process::id());
    let output = command.env(ENV_NAME, elsewhere).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.starts_with("memspill: process ") && line.contains("network namespace"), "{line}");
    assert!(
        line.trim_start_matches("memspill: process ").starts_with(|c: char| ('1'..='9').contains(&c)),
        "{line}"
    );
}

#[test]
fn dies_when_the_handshake_is_cut_short() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("self");
    let (socket, _) = supervisor.accept();
    let control = ControlPage::new();
    let fds = [control.fd.as_raw_fd(), supervisor.device.as_raw_fd()];
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_DEVICE }, &fds);
    drop(receive::<Ready>(&socket));
    drop(socket);
    assert_eq!(target.end().signal(), Some(libc::SIGKILL));
}

/// What a program with this many threads says of itself: the lowest descriptor that it has free (a caller
/// of the tests may leave some open to all that it starts), its signal mask and errno.
fn as_ever(threads: u32) -> String {
    // SAFETY: F_GETFD takes any number.
    let is_inherited = |fd: &i32| matches!(unsafe { libc::fcntl(*fd, libc::F_GETFD) }, 0);
    let free = (0..).find(|fd| !is_inherited(fd)).expect("descriptors are few");
    format!("fd {free} threads {threads} blocked 0000000000000000 errno 0")
}

#[test]
fn a_managed_program_looks_as_ever_to_itself() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("self");
    let _peer = supervisor.join(UFFD_FROM_DEVICE);
    assert_eq!(target.line(), as_ever(2));
    assert_eq!(target.end().code(), Some(0));
}

#[test]
fn the_evictor_runs_where_it_is_told() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let mut peer = supervisor.join(UFFD_FROM_DEVICE);
    target.address("at");
    let evictor = peer.evictors().remove(0);
    let mut kept_on = |cpu: Option<u32>| {
        peer.seq += 1;
        peer.send_command(OP_MOVE, 0, move_cpu(cpu));
        assert!(peer.finish_move().is_empty());
        let status = std::fs::read_to_string(evictor.join("status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap().to_owned()
    };
    let first = kept_on(None);
    let one = unsafe { libc::sched_getcpu() };
    assert_eq!(kept_on(Some(one as u32)), one.to_string());
    // No machine has it.
    assert_eq!(kept_on(Some(1023)), one.to_string());
    assert_eq!(kept_on(None), first);
}

#[test]
fn the_evictor_has_its_own_descriptors_and_memory() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("buffer");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    target.address("at");
    let evictors = peer.evictors();
    assert_eq!(evictors.len(), 1);
    assert_eq!(std::fs::read_dir(evictors[0].join("fd")).unwrap().count(), 2);
    let status = std::fs::read_to_string(evictors[0].join("status")).unwrap();
    // All but SIGKILL and SIGSTOP, which cannot be blocked.
    assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");

    let maps = std::fs::read_to_string(format!("/proc/{}/maps", peer.pid)).unwrap();
    let has = |addr: u64, len: u64, prot: &str| {
        assert!(
            maps.lines().any(|line| line.starts_with(&format!("{addr:x}-{:x} {prot}", addr + len))),
            "{addr:x}+{len:x} {prot} not in:\n{maps}"
        );
    };
    let ready = peer.ready;
    has(ready.staging_addr, u64::from(STAGING_PAGES) * PAGE, "rw-p");
    has(ready.doorbell_addr, DOORBELLS as u64 * PAGE, "rw-p");
    has(ready.ident_addr, PAGE, "rw-p");
    has(ready.private_addr, ready.private_len, "rw-p");
    has(ready.control_addr, PAGE, "rw-s");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{set}");
    }
    assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".into(), "1".into()));
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(field("Uid:"), ["4000000000"; 4].join("\t"));
        assert_eq!(field("Gid:"), ["4000000000"; 4].join("\t"));
        assert_eq!(field("Groups:"), "");
    }
    // The agent's own data is backed by its file: nothing of it is anonymous memory that a pager would take.
    let image: Vec<_> =
        maps.lines().filter(|line| line.contains("memfd:agent") && line.contains("rw-p")).collect();
    let start = |line: &str| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    assert!(!image.is_empty());
    assert!(
        image
            .iter()
            .all(|line| (ready.image_addr..ready.image_addr + ready.image_len).contains(&start(line)))
    );
}

/// Make the evictor, which waits in recvfrom, call something else: as code of the program could that writes
/// its stack.
fn call_as_evictor(peer: &Peer, call: libc::c_long, args: [u64; 3]) {
    let evictor = peer.evictors().remove(0);
    let tid: i32 = evictor.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // On a busy machine it may not have come that far.
    let waits_for_a_command = || {
        let call = std::fs::read_to_string(evictor.join("syscall")).unwrap();
        call.starts_with(&format!("{} ", libc::SYS_recvfrom))
    };
    let begun = Instant::now();
    while !waits_for_a_command() {
        assert!(begun.elapsed() < TIMEOUT, "the evictor does not wait for a command");
        std::thread::sleep(Duration::from_millis(1));
    }
    let none = std::ptr::null_mut::<libc::c_void>();
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, tid, none, none), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none), 0);
        assert_eq!(libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL), tid);
        let mut regs: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, tid, none, &raw mut regs), 0);
        // Back to the instruction that made the system call, with another number.
        regs.rip -= 2;
        (regs.rax, regs.orig_rax) = (call as u64, u64::MAX);
        (regs.rdi, regs.rsi, regs.rdx) = (args[0], args[1], args[2]);
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, tid, none, &raw const regs), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, tid, none, none), 0);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_evictor_may_do_nothing_else() {
    let supervisor = supervisor!();
    let args = |first: u64, second: u64, third: i32| [first, second, third as u64];
    let calls = |ready: &Ready| {
        let staging_len = u64::from(STAGING_PAGES) * PAGE;
        let (rwx, guard) = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, 102);
        vec![
            (libc::SYS_openat, args(libc::AT_FDCWD as u64, ready.private_addr, 0)),
            (libc::SYS_setresuid, args(0, 0, 0)),
            (libc::SYS_kill, args(1, 0, 0)),
            (libc::SYS_ioctl, args(0, 0xc028_aa03, 0)),
            (libc::SYS_mprotect, args(ready.private_addr, PAGE, rwx)),
            (libc::SYS_mprotect, args(ready.staging_addr, staging_len + PAGE, rwx)),
            (libc::SYS_mprotect, args(ready.staging_addr - PAGE, PAGE, rwx)),
            (libc::SYS_mprotect, args(ready.staging_addr + (1 << 32), PAGE, rwx)),
            (libc::SYS_madvise, args(ready.staging_addr + PAGE, staging_len, guard)),
            (libc::SYS_madvise, args(ready.staging_addr, 1 << 32, guard)),
        ]
    };
    for which in 0.. {
        let mut target = supervisor.run("buffer");
        let peer = supervisor.join(UFFD_FROM_DEVICE);
        target.address("at");
        let Some((call, values)) = calls(&peer.ready).get(which).copied() else { break };
        call_as_evictor(&peer, call, values);
        assert_eq!(target.end().signal(), Some(libc::SIGSYS), "call {call} {values:x?}");
    }
    // To empty all of staging is allowed. It takes the answer for the end of its socket.
    let mut target = supervisor.run("buffer");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    target.address("at");
    let whole = args(peer.ready.staging_addr, u64::from(STAGING_PAGES) * PAGE, 102);
    call_as_evictor(&peer, libc::SYS_madvise, whole);
    assert_eq!(target.end().signal(), Some(libc::SIGKILL));
}

#[test]
fn the_child_of_a_fork_joins() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("fork");
    let mut parent = supervisor.join(UFFD_FROM_DEVICE);
    let buffer = target.address("at");
    parent.register(buffer, BUFFER_PAGES);
    parent.register(parent.ready.ident_addr, 1);
    assert_eq!(parent.move_runs(OP_MOVE, &[(buffer, 20, 0)]), [(20, 0)]);
    parent.store(buffer, 20, 0);
    parent.zap(0, 20);

    target.go();
    let mut child = supervisor.join_fork(&parent.pager);
    assert_eq!(target.line(), format!("child {}", child.pid));
    assert_ne!(child.pid, parent.pid);
    assert_eq!(child.evictors().len(), 1);
    // The first fault on the child's userfaultfd says whose it is.
    let first = child.pager.seen.lock().unwrap().faults[0];
    assert_eq!(first, (parent.ready.ident_addr, child.pid));
    assert_eq!(child.ready.ident_addr, parent.ready.ident_addr);
    // Shared with the parent: not to be moved, until made exclusive.
    assert_eq!(child.move_runs(OP_MOVE, &[(buffer + 30 * PAGE, 4, 0)]), [(0, libc::EBUSY)]);
    child.move_runs(OP_POPULATE, &[(buffer + 30 * PAGE, 4, 0)]);
    assert_eq!(child.move_runs(OP_MOVE, &[(buffer + 30 * PAGE, 4, 0)]), [(4, 0)]);
    assert_eq!(child.store(buffer + 30 * PAGE, 4, 0), pattern_pages(30, 4));
    child.zap(0, 4);
    // The parent's evictor goes on beside it.
    parent.move_runs(OP_POPULATE, &[(buffer + 40 * PAGE, 4, 0)]);
    assert_eq!(parent.move_runs(OP_MOVE, &[(buffer + 40 * PAGE, 4, 0)]), [(4, 0)]);
    parent.store(buffer + 40 * PAGE, 4, 0);
    parent.zap(0, 4);

    target.go();
    assert_eq!(target.line(), "child good");
    assert_eq!(target.line(), "parent good 0");
    assert_eq!(target.end().code(), Some(0));
}

#[test]
fn the_child_of_a_fork_can_be_left_alone() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("fork");
    let parent = supervisor.join(UFFD_FROM_DEVICE);
    target.address("at");
    target.go();
    let (socket, hello) = supervisor.accept();
    assert_eq!(hello.kind, KIND_FORK);
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_NONE }, &[]);
    assert_eq!(target.line(), format!("child {}", hello.pid));
    target.go();
    assert_eq!(target.line(), "child good");
    assert_eq!(target.line(), "parent good 0");
    drop(parent);
}

#[test]
fn growth_under_pressure_rings() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("grow");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    peer.register(peer.ready.doorbell_addr, DOORBELLS as u64);
    peer.control.set_announces(1);
    target.go();
    // More calls than doorbells, so they are given back.
    let mut rung: Vec<(u64, u64, u32)> = Vec::new();
    for _ in 0..40 {
        let line = target.line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("map"));
        let addr = u64::from_str_radix(words.next().unwrap().trim_start_matches("0x"), 16).unwrap();
        assert_eq!(words.next(), Some("0"), "MAP_POPULATE was not held back");
        rung.push((addr, 1 << 20, CALL_MAPPED));
    }
    rung.push((target.address("remap"), 4 << 20, CALL_GROWN));
    assert_eq!(target.line(), "errors 1 1 1 1");
    // It has asked to move a page that is not there: what the kernel takes for several mappings is told
    // before it is tried again.
    rung.push((0, 4096, CALL_GROWN));
    assert_eq!(target.end().code(), Some(0));
    let seen = peer.pager.seen.lock().unwrap();
    let (heap, mapped): (Vec<_>, Vec<_>) =
        seen.bells.iter().map(|bell| (bell.addr, bell.len, bell.call)).partition(|bell| is_of_heap(bell.0));
    assert_eq!(mapped, rung);
    // The buffer of its standard output is the first that it has of malloc.
    assert!(matches!(heap[..], [(_, 65_536.., CALL_MAPPED)]), "{heap:?}");
}

/// Is `addr` in the memory that brk makes larger? It lies behind the program, mappings far above it.
/// (One call names 0.)
fn is_of_heap(addr: u64) -> bool {
    (1..0x7000_0000_0000).contains(&addr)
}

#[test]
fn growth_without_pressure_is_nobodys_business() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("grow");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    peer.register(peer.ready.doorbell_addr, DOORBELLS as u64);
    target.go();
    for _ in 0..40 {
        assert!(target.line().ends_with(" 1"), "MAP_POPULATE did nothing");
    }
    target.address("remap");
    assert_eq!(target.line(), "errors 1 1 1 1");
    assert_eq!(target.end().code(), Some(0));
    assert!(peer.pager.seen.lock().unwrap().bells.is_empty());
}

/// A call that the supervisor has seen: address, length in bytes, which call, pid (0: the caller itself).
type Call = (u64, u64, u32, u32);

/// A program that gives advice about swapping: its buffer's address, and the calls that come of it. `answer`:
/// what the supervisor does when it is asked to answer calls, which it has not done before.
fn advice(answer: impl FnOnce(&Peer)) -> Option<(u64, Vec<Call>)> {
    let name = "/dev/userfaultfd, or a kernel without UFFDIO_MOVE";
    let (Some(_), Some(device)) = (program(), device()) else {
        eprintln!("SKIPPED: no C compiler (cc), or no {name}");
        return None;
    };
    let supervisor = Supervisor::new(device);
    let mut target = supervisor.run("advise");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    let at = target.address("at");
    target.go();
    let start = Instant::now();
    while peer.control.wants_answers().load(Ordering::Acquire) != WANTS_ASKED {
        assert!(start.elapsed() < TIMEOUT, "it does not ask");
        std::thread::sleep(Duration::from_millis(1));
    }
    answer(&peer);
    assert_eq!(target.line(), "advised 0 0 0 errors 22 22 12 good");
    assert_eq!(target.end().code(), Some(0));
    let seen = peer.pager.seen.lock().unwrap();
    let bells = seen.bells.iter().map(|bell| (bell.addr, bell.len, bell.call, bell.pid)).collect();
    Some((at, bells))
}

#[test]
fn advice_about_swapping_rings() {
    let answered = advice(|peer| {
        peer.register(peer.ready.doorbell_addr, DOORBELLS as u64);
        peer.control.set_answers(1);
    });
    let Some((at, bells)) = answered else { return };
    // Cold pages and wanted ones are told of from then on; of what the kernel refuses nothing is; with a hole
    // in the range it goes on.
    let call = |what| (at, BUFFER_PAGES * PAGE, what, 0);
    let hole = (at, 2 * BUFFER_PAGES * PAGE, CALL_PAGEOUT, 0);
    assert_eq!(bells, [call(CALL_PAGEOUT), call(CALL_COLD), call(CALL_WILLNEED), hole]);
}

#[test]
fn advice_of_a_program_whose_calls_are_not_answered_is_the_kernels() {
    let refuse = |peer: &Peer| peer.control.wants_answers().store(WANTS_REFUSED, Ordering::Release);
    let Some((_, bells)) = advice(refuse) else { return };
    assert_eq!(bells, []);
}

#[test]
fn doorbells_stand_threads_signals_and_forks() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("storm");
    let peer = supervisor.join(UFFD_FROM_DEVICE);
    peer.register(peer.ready.doorbell_addr, DOORBELLS as u64);
    peer.control.set_announces(1);
    target.go();
    for _ in 0..10 {
        let (socket, hello) = supervisor.accept();
        assert_eq!(hello.kind, KIND_FORK);
        send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_NONE }, &[]);
    }
    assert_eq!(target.line(), "storm over");
    assert_eq!(target.end().code(), Some(0));
    let seen = peer.pager.seen.lock().unwrap();
    assert!(seen.bells.len() > 500, "{} calls", seen.bells.len());
    let mut mapped = seen.bells.iter().filter(|bell| !is_of_heap(bell.addr));
    assert!(mapped.all(|bell| bell.len == 1 << 20 && bell.addr % PAGE == 0));
}

#[test]
fn a_program_that_may_not_have_threads_or_descriptors_is_left_alone() {
    let supervisor = supervisor!();
    // No number as high as the agent would like: it takes what there is.
    let limited = |script: &str| {
        let mut command = Program::new("sh");
        command.arg("-c").arg(script).arg("sh").arg(program().unwrap());
        command.env("AGENT", supervisor.preload()).env(ENV_NAME, format!("{}:{TOKEN}", supervisor.name));
        Target::start(&mut command)
    };
    let mut target = limited("ulimit -n 32; LD_PRELOAD=$AGENT exec \"$1\" self");
    let _peer = supervisor.join(UFFD_FROM_DEVICE);
    assert_eq!(target.line(), as_ever(2));
    // No memory for its region.
    let mut target = limited("ulimit -v 4608; LD_PRELOAD=$AGENT exec \"$1\" self");
    let (socket, _) = supervisor.accept();
    let control = ControlPage::new();
    let fds = [control.fd.as_raw_fd(), supervisor.device.as_raw_fd()];
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_DEVICE }, &fds);
    let (ready, _) = receive::<Ready>(&socket);
    if ready.errno == 0 {
        send(&socket, &Go { magic: MAGIC, errno: 0 }, &[]);
    } else {
        assert_eq!(ready.errno, libc::ENOMEM);
        assert_eq!(target.line(), as_ever(1));
    }
    let status = target.end();
    assert_eq!(status.code(), Some(0), "{status}, {}", ready.errno);
}

#[test]
fn a_program_without_the_variable_is_untouched() {
    let supervisor = supervisor!();
    for value in [None, Some(""), Some("name"), Some(":0123456789abcdef0123456789ABCDEF"), Some("name:short")]
    {
        let mut command = supervisor.command("self");
        match value {
            Some(value) => command.env(ENV_NAME, value),
            None => command.env_remove(ENV_NAME),
        };
        let mut target = Target::start(&mut command);
        assert_eq!(target.line(), as_ever(1));
        assert_eq!(target.end().code(), Some(0));
    }
    assert!(!supervisor.is_called(Duration::ZERO));
}

#[test]
fn a_program_that_is_refused_runs_alone() {
    let supervisor = supervisor!();
    let alone = as_ever(1);

    let mut target = supervisor.run("self");
    let (socket, _) = supervisor.accept();
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_NONE }, &[]);
    assert_eq!(target.line(), alone);
    assert_eq!(target.end().code(), Some(0));

    // At the last moment, when the evictor exists already.
    let mut target = supervisor.run("self");
    let (socket, _) = supervisor.accept();
    let control = ControlPage::new();
    let fds = [control.fd.as_raw_fd(), supervisor.device.as_raw_fd()];
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_DEVICE }, &fds);
    assert_eq!(receive::<Ready>(&socket).0.errno, 0);
    send(&socket, &Go { magic: MAGIC, errno: libc::EPERM }, &[]);
    // The evictor's memory is free before the kernel has stopped counting the thread.
    assert_eq!(target.line().replace("threads 2", "threads 1"), alone);
    assert_eq!(target.end().code(), Some(0));

    // A Welcome that makes no sense.
    let mut target = supervisor.run("self");
    let (socket, _) = supervisor.accept();
    send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_FROM_DEVICE }, &[]);
    assert_eq!(receive::<Ready>(&socket).0.errno, libc::EPROTO);
    assert_eq!(target.line(), alone);
    assert_eq!(target.end().code(), Some(0));
}

/// What the dynamic linker would read: no dependency, everything bound at load, and no symbol but those
/// meant.
#[test]
fn the_shared_object_depends_on_nothing() {
    let word = |at: u64, size: usize| {
        let mut bytes = [0u8; 8];
        bytes[..size].copy_from_slice(&AGENT_SO[at as usize..at as usize + size]);
        u64::from_le_bytes(bytes)
    };
    let text = |at: u64| {
        let tail = &AGENT_SO[at as usize..];
        String::from_utf8(tail[..tail.iter().position(|&byte| byte == 0).unwrap()].to_vec()).unwrap()
    };
    let (headers, count, names) = (word(40, 8), word(60, 2), word(62, 2));
    // (name, offset, size) of each section.
    let header = |index: u64| headers + index * 64;
    let name_table = word(header(names) + 24, 8);
    let sections: HashMap<String, (u64, u64)> = (0..count)
        .map(header)
        .map(|at| (text(name_table + word(at, 4)), (word(at + 24, 8), word(at + 32, 8))))
        .collect();
    assert!(sections.get(".bss").is_none_or(|&(_, size)| size == 0), "globals in .bss are anonymous memory");
    assert!(!sections.contains_key(".tbss") && !sections.contains_key(".tdata"), "thread-locals");
    assert!(!sections.contains_key(".relr.dyn"), "relocations that a planted agent does not know");
    assert!(!sections.contains_key(".plt") && !sections.contains_key(".rela.plt"), "lazily bound symbols");

    let (dynamic, size) = sections[".dynamic"];
    let tags: Vec<(u64, u64)> = (0..size / 16)
        .map(|index| (word(dynamic + index * 16, 8), word(dynamic + index * 16 + 8, 8)))
        .collect();
    assert!(tags.iter().all(|&(tag, _)| tag != 1), "a NEEDED library");
    assert!(tags.iter().any(|&(tag, value)| tag == 0x6fff_fffb && value & 1 != 0), "not bound at load");

    let (symbols, size) = sections[".dynsym"];
    let strings = sections[".dynstr"].0;
    let (mut defined, mut wanted) = (Vec::new(), Vec::new());
    for at in (1..size / 24).map(|index| symbols + index * 24) {
        let name = text(strings + word(at, 4));
        match (word(at + 6, 2), word(at + 4, 1) >> 4) {
            (0, binding) => {
                assert_eq!(binding, 2, "{name} is wanted, and not weakly");
                wanted.push(name);
            }
            _ => defined.push(name),
        }
    }
    // What a planted agent does by itself: its own addresses, and symbols that nobody has, which stay 0.
    let (relocations, size) = sections[".rela.dyn"];
    for at in (relocations..relocations + size).step_by(24) {
        let (kind, symbol) = (word(at + 8, 4), word(at + 12, 4));
        let is_defined = word(symbols + symbol * 24 + 6, 2) != 0;
        assert!(kind == 8 || kind == 6 && !is_defined, "a relocation of kind {kind}");
    }
    defined.sort();
    wanted.sort();
    assert_eq!(
        defined,
        [
            "__fxstatat",
            "__fxstatat64",
            "__open64_2",
            "__open_2",
            "__openat64_2",
            "__openat_2",
            "__pread64_chk",
            "__pread_chk",
            "__read_chk",
            "__xstat",
            "__xstat64",
            "copy_file_range",
            "fallocate",
            "fallocate64",
            "fcntl",
            "fcntl64",
            "fstatat",
            "fstatat64",
            "ftruncate",
            "ftruncate64",
            "madvise",
            "mlockall",
            "mmap",
            "mmap64",
            "mremap",
            "munmap",
            "open",
            "open64",
            "openat",
            "openat64",
            "posix_fallocate",
            "posix_fallocate64",
            "prctl",
            "pread",
            "pread64",
            "preadv",
            "preadv2",
            "preadv64",
            "preadv64v2",
            "process_madvise",
            "pthread_create",
            "ptrace",
            "pwrite",
            "pwrite64",
            "pwritev",
            "pwritev2",
            "pwritev64",
            "pwritev64v2",
            "read",
            "readv",
            "sendfile",
            "sendfile64",
            "splice",
            "stat",
            "stat64",
            "statx",
            "syscall",
            "thrd_create",
            "truncate",
            "truncate64",
            "write",
            "writev"
        ]
    );
    assert_eq!(
        wanted,
        [
            "__environ",
            "__errno_location",
            "__libc_dlopen_mode",
            "__libc_dlsym",
            "__mmap",
            "__register_atfork",
            "__rseq_offset",
            "brk",
            "clock_nanosleep",
            "dlsym",
            "epoll_ctl",
            "epoll_wait",
            "execve",
            "getppid",
            "gettid",
            "gnu_get_libc_version",
            "mprotect",
            "poll",
            "pthread_atfork",
            "pthread_key_create",
            "pthread_mutex_lock",
            "pthread_self",
            "pthread_setspecific",
            "recv",
            "recvfrom",
            "recvmsg",
            "sched_yield",
            "send",
            "sendmsg",
            "sendto",
        ]
    );
}
