//! A device on an export, and servers that go away, come back, lie, or cannot be used: nbdkit, where it is
//! installed.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memspill_backing::nbd::{Server, Tls};
use memspill_backing::{FileBacking, NbdConfig, NbdError, NbdTarget};
use memspill_engine::backing::{
    Backing, BackingError, Chore, LinkState, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart,
};
use memspill_engine::units::{Page, SlotIndex, page_buf};

const QUEUE: QueueId = QueueId(0);
const PAGES: u32 = 300;
const EIO: i32 = 5;

/// A directory for one test, gone in the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("memspill-export-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file of zeros to be exported.
    fn file(&self, bytes: u64) -> String {
        let path = self.path("disk");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path.display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running nbdkit.
struct Nbdkit {
    child: Child,
    socket: PathBuf,
}

impl Nbdkit {
    /// None: it is not installed.
    fn start(dir: &Dir, options: &[&str]) -> Option<Nbdkit> {
        Nbdkit::start_as(dir, &[&["nbdkit", "--foreground"], options].concat(), "--unix")
    }

    /// qemu-nbd in its place. (nbdkit 1.32.5 may abort when clients hang up while it stands still.)
    fn start_qemu(dir: &Dir) -> Option<Nbdkit> {
        let disk = dir.file(64 << 20);
        Nbdkit::start_as(dir, &["qemu-nbd", "--persistent", "--shared=16", "--format=raw", &disk], "--socket")
    }

    /// `option`: names the socket.
    fn start_as(dir: &Dir, command: &[&str], option: &str) -> Option<Nbdkit> {
        let socket = dir.path("socket");
        let _ = std::fs::remove_file(&socket);
        let mut server = Command::new(command[0]);
        server.arg(format!("{option}={}", socket.display())).args(&command[1..]).stderr(Stdio::null());
        let child = match server.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: {} is not installed", command[0]);
                return None;
            }
            started => started.unwrap(),
        };
        until("the server listens", || UnixStream::connect(&socket).is_ok());
        Some(Nbdkit { child, socket })
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.kill();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn config(socket: &Path) -> NbdConfig {
    let server = Server::Unix { path: socket.to_owned() };
    NbdConfig::new(NbdTarget { server, export: String::new(), tls: None })
}

fn open(socket: &Path) -> FileBacking {
    FileBacking::on_export(config(socket)).expect("a device")
}

fn page(slot: u32, version: u32) -> Page {
    let mut page = Page::ZERO;
    for (at, bytes) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (u64::from(slot) << 40 | u64::from(version) << 20 | at as u64).to_le_bytes();
    }
    page
}

fn write(device: &dyn Backing, slots: std::ops::Range<u32>, version: u32) -> Vec<Result<(), BackingError>> {
    let pages: Vec<(u32, Page)> = slots.map(|slot| (slot, page(slot, version))).collect();
    let writes: Vec<PageWrite<'_>> =
        pages.iter().map(|(slot, page)| PageWrite { slot: SlotIndex(*slot), page }).collect();
    let mut results = Vec::new();
    device.write(QUEUE, &writes, &mut results);
    results
}

fn fill(device: &dyn Backing) {
    assert!(write(device, 1..PAGES, 0).iter().all(Result::is_ok));
}

fn start(device: &dyn Backing, slot: u32, is_awaited: bool) -> Option<ReadDone> {
    let request = ReadRequest { token: 0, slots: vec![SlotIndex(slot)], buf: page_buf(1), is_awaited };
    match device.read(QUEUE, request) {
        ReadStart::Done(done) => Some(done),
        ReadStart::Pending => None,
    }
}

/// Read a page as a fault does: what it got, and whether it is the page.
fn read(device: &dyn Backing, slot: u32, version: u32) -> Result<(), BackingError> {
    let done = start(device, slot, true).unwrap_or_else(|| {
        let mut done = Vec::new();
        until("the read ends", || {
            device.reap(QUEUE, &mut done);
            !done.is_empty()
        });
        done.remove(0)
    });
    if done.results[0].is_ok() {
        assert!(done.buf[0].0 == page(slot, version).0, "slot {slot} came back with other bytes");
    }
    done.results[0].clone()
}

fn expect_all(device: &dyn Backing, version: u32) {
    (1..PAGES).step_by(7).for_each(|slot| assert_eq!(read(device, slot, version), Ok(()), "slot {slot}"));
}

fn state(device: &dyn Backing) -> LinkState {
    device.links()[0].state
}

fn refusal_of(device: &dyn Backing) -> String {
    device.links().remove(0).refusal.unwrap_or_default()
}

// ---------------------------------------------------------------- servers that go away

#[test]
fn a_server_that_is_killed_and_comes_back_with_its_pages() {
    let dir = Dir::new();
    let disk = dir.file(256 << 20);
    let Some(mut server) = Nbdkit::start(&dir, &["file", &disk]) else { return };
    let device = open(&server.socket);
    fill(&device);
    for version in 1..4 {
        server.kill();
        assert!(start(&device, 5, true).is_none(), "the fault waits");
        std::thread::scope(|scope| {
            let device = &device;
            // In flight, or begun, while the server is away.
            scope.spawn(move || {
                until("the pages are written", || write(device, 1..PAGES, version).iter().all(Result::is_ok));
            });
            std::thread::sleep(Duration::from_millis(200));
            // By this thread: nbdkit ends with the one that started it.
            server = Nbdkit::start(&dir, &["file", &disk]).unwrap();
        });
        let mut done = Vec::new();
        until("the fault is served", || {
            device.reap(QUEUE, &mut done);
            !done.is_empty()
        });
        expect_all(&device, version);
        assert_eq!((state(&device), device.links()[0].reconnects), (LinkState::On, u64::from(version)));
    }
}

#[test]
fn a_server_that_stands_still_for_a_while() {
    let dir = Dir::new();
    let Some(server) = Nbdkit::start_qemu(&dir) else { return };
    let device = open(&server.socket);
    fill(&device);
    server.signal("-STOP");
    assert!(start(&device, 5, true).is_none() && start(&device, 6, false).is_none());
    let begun = Instant::now();
    let results = write(&device, 400..500, 0);
    let took = begun.elapsed();
    assert!(results.iter().all(|result| matches!(result, Err(BackingError::Short(_)))), "{results:?}");
    assert!((5.0..9.0).contains(&took.as_secs_f64()), "{took:?}");
    assert_eq!(state(&device), LinkState::Away);
    // What nobody waits for is given back; the fault goes on waiting.
    let mut done = Vec::new();
    until("one read ends", || {
        device.reap(QUEUE, &mut done);
        !done.is_empty()
    });
    assert_eq!(done[0].slots, [SlotIndex(6)]);
    assert!(matches!(done[0].results[0], Err(BackingError::Short(_))));
    assert!(start(&device, 7, false).is_some(), "at once");
    server.signal("-CONT");
    done.clear();
    until("the fault is served", || {
        device.reap(QUEUE, &mut done);
        !done.is_empty()
    });
    assert!(done[0].results == [Ok(())] && done[0].buf[0].0 == page(5, 0).0);
    expect_all(&device, 0);
    // The writes that were given up may still be done by the server: their places are not used again.
    assert!(write(&device, 400..500, 1).iter().all(Result::is_ok));
    (400..500).for_each(|slot| assert_eq!(read(&device, slot, 1), Ok(())));
}

#[test]
fn a_server_that_comes_back_without_what_it_held() {
    let dir = Dir::new();
    for (options, wanted) in [
        (&["memory", "size=64M"][..], "zeros"),
        (&["data", "size=64M", "data=7"], "another export"),
        (&["memory", "size=32M"], "67108864 are needed"),
    ] {
        let Some(mut server) = Nbdkit::start(&dir, &["memory", "size=64M"]) else { return };
        let device = open(&server.socket);
        fill(&device);
        server.kill();
        let _server = Nbdkit::start(&dir, options).unwrap();
        // Never zeros.
        assert_eq!(read(&device, 5, 0), Err(BackingError::Io(libc::ENODATA)));
        assert!(device.links()[0].is_empty && state(&device) == LinkState::Lost);
        assert!(refusal_of(&device).contains(wanted), "{options:?}: {}", refusal_of(&device));
        assert!(write(&device, 1..3, 1).iter().all(|result| *result == Err(BackingError::Io(libc::ENODATA))));
        assert_eq!(start(&device, 6, true).unwrap().results, [Err(BackingError::Io(libc::ENODATA))]);
    }
}

#[test]
fn a_server_that_is_back_and_cannot_be_used_says_why() {
    let dir = Dir::new();
    let disk = dir.file(64 << 20);
    let keys = dir.path("keys");
    std::fs::write(&keys, "somebody:00112233\n").unwrap();
    let keys = format!("--tls-psk={}", keys.display());
    let blocks = ["--filter=blocksize-policy", "file", &disk];
    let Some(mut server) = Nbdkit::start(&dir, &["file", &disk]) else { return };
    let device = open(&server.socket);
    fill(&device);
    for (options, wanted) in [
        (&["--readonly", "file", &disk][..], "read-only"),
        (&["--tls=require", &keys, "file", &disk], "wants TLS"),
        (&[&blocks[..], &["blocksize-minimum=65536", "blocksize-preferred=65536"]].concat(), "65536"),
        (
            &["--filter=exportname", "file", &disk, "exportname-strict=true", "exportname=a"],
            "no default export",
        ),
    ] {
        server.kill();
        // By this thread: nbdkit ends with the one that started it.
        let bad = Nbdkit::start(&dir, options).unwrap();
        assert!(start(&device, 5, true).is_none(), "the fault waits");
        until(wanted, || refusal_of(&device).contains(wanted));
        assert_eq!(state(&device), LinkState::Away);
        drop(bad);
        server = Nbdkit::start(&dir, &["file", &disk]).unwrap();
        let mut done = Vec::new();
        until("the fault is served", || {
            device.reap(QUEUE, &mut done);
            !done.is_empty()
        });
        assert_eq!((state(&device), refusal_of(&device)), (LinkState::On, String::new()));
        expect_all(&device, 0);
    }
}

#[test]
fn a_server_that_is_away_for_too_long() {
    let dir = Dir::new();
    let disk = dir.file(64 << 20);
    let Some(mut server) = Nbdkit::start(&dir, &["file", &disk]) else { return };
    let timeout = Duration::from_millis(1500);
    let device = FileBacking::on_export(NbdConfig { timeout, ..config(&server.socket) }).unwrap();
    fill(&device);
    server.kill();
    let begun = Instant::now();
    assert_eq!(read(&device, 5, 0), Err(BackingError::Io(libc::ETIMEDOUT)));
    assert!((1.4..4.0).contains(&begun.elapsed().as_secs_f64()), "{:?}", begun.elapsed());
    assert_eq!(state(&device), LinkState::Lost);
    assert_eq!(read(&device, 6, 0), Err(BackingError::Io(libc::ETIMEDOUT)));
    let _server = Nbdkit::start(&dir, &["file", &disk]).unwrap();
    until("it is used again", || state(&device) == LinkState::On);
    expect_all(&device, 0);
}

#[test]
fn the_end_does_not_wait_for_a_server_that_is_away() {
    let dir = Dir::new();
    let Some(server) = Nbdkit::start_qemu(&dir) else { return };
    for chore in [Chore::EndRun, Chore::Close] {
        let device = FileBacking::on_export(NbdConfig { overwrite: true, ..config(&server.socket) }).unwrap();
        fill(&device);
        server.signal("-STOP");
        assert!(start(&device, 5, true).is_none());
        let begun = Instant::now();
        device.housekeep(chore);
        drop(device);
        assert!(begun.elapsed() < Duration::from_secs(4), "{chore:?}: {:?}", begun.elapsed());
        server.signal("-CONT");
        // The end was not told to a server that stood still; the next run waits for a minute, or says so.
        assert!(matches!(
            FileBacking::on_export(config(&server.socket)),
            Err(NbdError::InUse { .. }) | Ok(_)
        ));
        std::thread::sleep(Duration::from_millis(100));
    }
}

// ---------------------------------------------------------------- two servers

fn states(device: &dyn Backing) -> [LinkState; 2] {
    let links = device.links();
    [links[0].state, links[1].state]
}

/// Each server is lost in turn, and comes back with old pages, or with none.
#[test]
fn one_server_of_two_may_be_lost() {
    let dirs = [Dir::new(), Dir::new()];
    let disk = dirs[0].file(256 << 20);
    let options = [vec!["file", &disk], vec!["memory", "size=256M"]];
    let start_one = |at: usize| Nbdkit::start(&dirs[at], &options[at]);
    let Some(first) = start_one(0) else { return };
    let mut servers = [first, start_one(1).unwrap()];
    let mirror = Some(config(&servers[1].socket).target);
    let device = FileBacking::on_export(NbdConfig { mirror, ..config(&servers[0].socket) }).unwrap();
    fill(&device);
    for round in 0..4 {
        let (lost, version) = (round % 2, round as u32 * 2);
        servers[lost].kill();
        expect_all(&device, version);
        // Some pages are new, and some only the other one has.
        assert!(write(&device, 1..PAGES, version + 1).iter().all(Result::is_ok));
        assert!(write(&device, 400..500, version).iter().all(Result::is_ok));
        expect_all(&device, version + 1);
        assert_eq!(states(&device)[1 - lost], LinkState::On);
        assert_ne!(states(&device)[lost], LinkState::On);
        servers[lost] = start_one(lost).unwrap();
        until("it is filled again", || states(&device) == [LinkState::On; 2]);
        assert!(write(&device, 1..PAGES, version + 2).iter().all(Result::is_ok));
    }
    servers[0].kill();
    expect_all(&device, 8);
    (400..500).for_each(|slot| assert_eq!(read(&device, slot, 6), Ok(())));
}

/// Pages that one of them has wrong come from the other one, and are put right.
#[test]
fn a_page_that_one_server_of_two_has_wrong() {
    let dirs = [Dir::new(), Dir::new()];
    let disks = [0, 1].map(|at| dirs[at].file(64 << 20));
    let start_one = |at: usize| Nbdkit::start(&dirs[at], &["file", &disks[at]]);
    let Some(first) = start_one(0) else { return };
    let mut servers = [first, start_one(1).unwrap()];
    let mirror = Some(config(&servers[1].socket).target);
    let timeout = Duration::from_millis(1500);
    let device = FileBacking::on_export(NbdConfig { mirror, timeout, ..config(&servers[0].socket) }).unwrap();
    fill(&device);
    let written = std::fs::read(&disks[0]).unwrap();
    assert!(written == std::fs::read(&disks[1]).unwrap());
    // In place: the server has it open.
    let alter = |at: usize, slots: std::ops::Range<u64>| {
        let disk = std::fs::OpenOptions::new().write(true).open(&disks[at]).unwrap();
        let wrong = vec![0x55; (slots.end - slots.start) as usize * 4096];
        std::os::unix::fs::FileExt::write_all_at(&disk, &wrong, slots.start * 4096).unwrap();
    };
    alter(0, 5..15);
    alter(0, 100..101);
    // Some of a request are wrong, and some are not.
    let slots: Vec<SlotIndex> = (1..40).map(SlotIndex).collect();
    let request = ReadRequest { token: 7, slots, buf: page_buf(39), is_awaited: true };
    let mut done = Vec::new();
    match device.read(QUEUE, request) {
        ReadStart::Done(now) => done.push(now),
        ReadStart::Pending => until("the read ends", || {
            device.reap(QUEUE, &mut done);
            !done.is_empty()
        }),
    }
    assert_eq!(done[0].results, vec![Ok(()); 39]);
    assert!((1..40).zip(done[0].buf.iter()).all(|(slot, found)| found.0 == page(slot, 0).0));
    until("they are put right", || {
        (1..PAGES).for_each(|slot| assert_eq!(read(&device, slot, 0), Ok(()), "slot {slot}"));
        std::fs::read(&disks[0]).unwrap()[4096..] == written[4096..]
    });
    let wrong_pages = |at: usize| device.links()[at].wrong_pages;
    assert!(wrong_pages(0) >= 11 && wrong_pages(1) == 0, "{:?}", device.links());
    until("it has all pages", || states(&device) == [LinkState::On; 2]);
    // It is lost if both have it wrong.
    alter(0, 20..21);
    alter(1, 20..21);
    assert_eq!(read(&device, 20, 0), Err(BackingError::Checksum));
    assert!(wrong_pages(1) > 0);
    // And if the other one is away, once it has been so for too long.
    alter(0, 30..31);
    servers[1].kill();
    until("it is lost", || match read(&device, 30, 0) {
        Err(BackingError::Short(_)) => false,
        result => result == Err(BackingError::Checksum),
    });
    assert!(device.links()[1].state == LinkState::Lost && read(&device, 31, 0) == Ok(()));
}

/// A read is not late for longer than it takes to ask the other one.
#[test]
fn a_server_that_is_slow_is_not_waited_for_if_there_is_another() {
    let dirs = [Dir::new(), Dir::new()];
    let start_one = |at: usize| Nbdkit::start_qemu(&dirs[at]);
    let Some(first) = start_one(0) else { return };
    let servers = [first, start_one(1).unwrap()];
    let mirror = Some(config(&servers[1].socket).target);
    let device = FileBacking::on_export(NbdConfig { mirror, ..config(&servers[0].socket) }).unwrap();
    fill(&device);
    expect_all(&device, 0);
    servers[0].signal("-STOP");
    let begun = Instant::now();
    assert_eq!(read(&device, 5, 0), Ok(()));
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert!(write(&device, 1..PAGES, 1).iter().all(Result::is_ok), "once the first one is given up");
    expect_all(&device, 1);
    servers[0].signal("-CONT");
    until("it is filled again", || states(&device) == [LinkState::On; 2]);
    servers[1].signal("-STOP");
    expect_all(&device, 1);
    servers[1].signal("-CONT");
}

// ---------------------------------------------------------------- exports that cannot be used

fn refusal(config: NbdConfig) -> NbdError {
    FileBacking::on_export(config).map(drop).expect_err("it cannot be used")
}

#[test]
fn an_export_that_cannot_be_used_is_refused_with_the_reason() {
    let dir = Dir::new();
    let cases: &[(&[&str], &str)] = &[
        (&["--readonly", "memory", "size=64M"], "read-only"),
        (&["memory", "size=64K"], "262144 are needed"),
        (&["memory", "size=0"], "262144 are needed"),
        (
            &["--filter=exportname", "memory", "size=64M", "exportname-strict=true", "exportname=a"],
            "no default",
        ),
        (
            &[
                "--filter=blocksize-policy",
                "memory",
                "size=64M",
                "blocksize-minimum=65536",
                "blocksize-preferred=65536",
            ],
            "requests of 65536 to",
        ),
        (&["data", "size=64M", "data=@0x200 \"EFI PART\""], "holds GPT partitions"),
        (&["data", "size=64M", "data=7"], "holds data"),
        (&["data", "size=64M", "data=@0x3ffffff 7"], "holds data"),
    ];
    for (options, wanted) in cases {
        let Some(server) = Nbdkit::start(&dir, options) else { return };
        let error = refusal(config(&server.socket)).to_string();
        assert!(error.contains(wanted), "{options:?}: {error}");
    }
    let server = Nbdkit::start(&dir, &["data", "size=64M", "data=7"]).unwrap();
    let overwrite = FileBacking::on_export(NbdConfig { overwrite: true, ..config(&server.socket) }).unwrap();
    assert!(matches!(refusal(config(&server.socket)), NbdError::InUse { .. }));
    let larger = NbdConfig { size_bytes: Some(1 << 30), ..config(&server.socket) };
    assert!(matches!(refusal(larger), NbdError::TooSmall { .. }));
    // One that has ended is free at once.
    drop(overwrite);
    fill(&open(&server.socket));
    let nobody = refusal(config(&dir.path("nobody")));
    assert!(matches!(nobody, NbdError::Unreachable(_)), "{nobody}");
}

#[test]
fn another_server_is_told_from_one_of_nbd() {
    let dir = Dir::new();
    let socket = dir.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    for (words, wanted) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no NBD server"), (b"", "no NBD server")]
    {
        std::thread::scope(|scope| {
            scope.spawn(|| listener.accept().unwrap().0.write_all(words).unwrap());
            let error = FileBacking::on_export(config(&socket)).map(drop).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        });
    }
}

/// The server has every page in its hands, and can do nothing with it.
#[test]
fn a_server_that_changes_pages_is_found_out() {
    let dir = Dir::new();
    let disk = dir.file(64 << 20);
    let Some(server) = Nbdkit::start(&dir, &["file", &disk]) else { return };
    let device = open(&server.socket);
    fill(&device);
    let at = |slot: usize| slot * 4096..(slot + 1) * 4096;
    let mut bytes = std::fs::read(&disk).unwrap();
    assert!(
        !bytes[..at(PAGES as usize).end].windows(64).any(|part| part == &page(7, 0).0[..64]),
        "it learns nothing"
    );
    let old = bytes[at(7)].to_vec();
    assert!(write(&device, 7..8, 1)[0].is_ok());
    bytes = std::fs::read(&disk).unwrap();
    bytes[at(7)].copy_from_slice(&old);
    bytes[at(8)].fill(0);
    bytes.copy_within(at(10), at(9).start);
    bytes[at(11)][100] ^= 1;
    // In place: the server has it open.
    let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    for (slot, version) in [(7, 1), (8, 0), (9, 0), (11, 0)] {
        assert_eq!(read(&device, slot, version), Err(BackingError::Checksum), "slot {slot}");
    }
    assert_eq!(read(&device, 10, 0), Ok(()));
}

#[test]
fn errors_of_the_server_are_of_the_pages_that_they_are_about() {
    let dir = Dir::new();
    for (errno, on, wanted) in [
        ("ENOSPC", "pwrite", BackingError::Full),
        ("EIO", "pwrite", BackingError::Io(EIO)),
        ("EPERM", "pwrite", BackingError::Io(libc::EPERM)),
        ("EIO", "pread", BackingError::Io(EIO)),
        ("EINVAL", "pread", BackingError::Io(libc::EINVAL)),
        ("ENOMEM", "pread", BackingError::Short(libc::ENOMEM)),
    ] {
        let flag = dir.path("flag");
        let (error, rate) = (format!("error-{on}={errno}"), format!("error-{on}-rate=100%"));
        let file = format!("error-{on}-file={}", flag.display());
        let options = ["--filter=error", "memory", "size=64M", &error, &rate, &file];
        let Some(server) = Nbdkit::start(&dir, &options) else { return };
        let device = open(&server.socket);
        fill(&device);
        std::fs::write(&flag, "").unwrap();
        let got = match on {
            "pwrite" => write(&device, 1..2, 1)[0].clone(),
            _ => read(&device, 1, 0),
        };
        assert_eq!(got, Err(wanted), "{errno} {on}");
        std::fs::remove_file(&flag).unwrap();
        assert_eq!(read(&device, 2, 0), Ok(()), "the others are all right");
        assert_eq!(state(&device), LinkState::On);
    }
}

// ---------------------------------------------------------------- TLS

/// An authority, and a certificate by it for this name. None: openssl is not installed.
fn certificates(dir: &Dir) -> Option<()> {
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).current_dir(&dir.0).output().ok()?;
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        Some(())
    };
    for who in ["", "other-"] {
        let (key, cert) = (format!("{who}ca-key.pem"), format!("{who}ca-cert.pem"));
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=authority",
            "-keyout",
            &key,
            "-out",
            &cert,
        ])?;
    }
    for who in ["server", "client"] {
        let (key, request, cert) =
            (format!("{who}-key.pem"), format!("{who}.csr"), format!("{who}-cert.pem"));
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=x",
            "-keyout",
            &key,
            "-out",
            &request,
        ])?;
        std::fs::write(dir.path("names"), "subjectAltName=DNS:swap.test\nbasicConstraints=CA:FALSE\n")
            .unwrap();
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca-cert.pem",
            "-CAkey",
            "ca-key.pem",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            &cert,
        ])?;
    }
    Some(())
}

#[test]
fn with_tls_both_sides_are_known() {
    let dir = Dir::new();
    if certificates(&dir).is_none() {
        return eprintln!("skipped: openssl is not installed");
    }
    let folder = format!("--tls-certificates={}", dir.0.display());
    let pem = |name: &str| Some(dir.path(name));
    let with = |socket: &Path, tls: Option<Tls>| {
        let mut config = config(socket);
        config.target.tls = tls;
        config
    };
    let tls =
        |cacert: &str, name: &str| Tls { cacert: pem(cacert), cert: None, key: None, name: name.into() };
    let Some(server) = Nbdkit::start(&dir, &["--tls=require", &folder, "memory", "size=64M"]) else { return };
    let socket = &server.socket;
    let device = FileBacking::on_export(with(socket, Some(tls("ca-cert.pem", "swap.test")))).unwrap();
    fill(&device);
    expect_all(&device, 0);
    let error = |tls| refusal(with(socket, tls));
    assert!(matches!(error(None), NbdError::WantsTls));
    let text = error(Some(tls("ca-cert.pem", "wrong.test"))).to_string();
    assert!(text.contains("for swap.test and not for wrong.test"), "{text}");
    let text = error(Some(tls("other-ca-cert.pem", "swap.test"))).to_string();
    assert!(text.contains("by nobody who is trusted here") && text.contains("cacert=FILE"), "{text}");
    let text = error(Some(tls("nothing.pem", "swap.test"))).to_string();
    assert!(text.contains("nothing.pem cannot be used"), "{text}");
    drop((device, server));

    let options = ["--tls=require", "--tls-verify-peer", &folder, "memory", "size=64M"];
    let server = Nbdkit::start(&dir, &options).unwrap();
    let text = refusal(with(&server.socket, Some(tls("ca-cert.pem", "swap.test")))).to_string();
    assert!(text.contains("cert=FILE and key=FILE"), "{text}");
    let own =
        Tls { cert: pem("client-cert.pem"), key: pem("client-key.pem"), ..tls("ca-cert.pem", "swap.test") };
    fill(&FileBacking::on_export(with(&server.socket, Some(own))).unwrap());
    drop(server);

    let server = Nbdkit::start(&dir, &["--tls=off", "memory", "size=64M"]).unwrap();
    let error = refusal(with(&server.socket, Some(tls("ca-cert.pem", "swap.test"))));
    assert!(matches!(error, NbdError::HasNoTls), "{error}");
}
