//! An NBD server that lies. Whatever it says, a page that is read is the page that was written, or an error;
//! and nobody waits for it without end.
//!
//! ```text
//!   the test ── FileBacking ── socket ── a server of this file: answers as it should, but for one reply
//! ```
//!
//! Each lie is told once, in place of the Nth reply to a read, or to a write; then the server answers as it
//! should, also on the connections that follow. So the pages that were not read by then are right.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memspill_backing::nbd::{NbdConfig, NbdTarget, Server};
use memspill_backing::{FileBacking, NbdError};
use memspill_engine::backing::{Backing, BackingError, Chore, PageWrite, QueueId, ReadRequest, ReadStart};
use memspill_engine::units::{Page, SlotIndex, page_buf};

const PAGES: u32 = 64;
const EXPORT_BYTES: usize = 1 << 20;

/// What a reply is made into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    None,
    /// Only so many bytes of it, and the connection is closed.
    CutAt(usize),
    /// Another cookie in it.
    Cookie(u64),
    /// It comes twice.
    Twice,
    /// It is for what another one asked, too.
    NoMagic,
    /// A structured reply that says nothing, and is the end of it.
    Nothing,
    /// Half of the data, and the end of it.
    Half,
    /// A chunk of so many bytes, says its head.
    Length(u32),
    /// A chunk of such a type.
    Type(u16),
    /// Data for a place so many bytes later.
    Elsewhere(u64),
    /// A hole in place of data.
    Hole,
    /// Other bytes.
    Other,
    /// An error of such a number; unknown ones too.
    Errno(u32),
    /// An error chunk that says that it has so many bytes of words.
    Words(u16),
}

struct Liar {
    bytes: Mutex<Vec<u8>>,
    lie: Mutex<Lie>,
    /// Requests of that type until the lie is told; below 0 it has been.
    until_read: AtomicI64,
    until_write: AtomicI64,
    structured: bool,
}

impl Liar {
    fn serve(self: Arc<Liar>, listener: UnixListener) {
        for stream in listener.incoming() {
            let (Ok(stream), liar) = (stream, self.clone()) else { return };
            std::thread::spawn(move || liar.talk(stream));
        }
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        take::<4>(&mut stream)?;
        loop {
            let head = take::<16>(&mut stream)?;
            let (option, len) = (be32(&head[8..]), be32(&head[12..]));
            io::copy(&mut (&mut stream).take(len.into()), &mut io::sink())?;
            let mut reply = |kind: u32, words: &[u8]| {
                let head = [0x0003_e889_u32, 0x0455_65a9, option, kind, words.len() as u32];
                stream.write_all(&[&head.map(u32::to_be_bytes).concat(), words].concat())
            };
            match option {
                8 if self.structured => reply(1, &[])?,
                7 => {
                    let info = [&[0, 0][..], &(EXPORT_BYTES as u64).to_be_bytes(), &[1, 0x21]].concat();
                    reply(3, &info)?;
                    reply(1, &[])?;
                    break;
                }
                _ => reply(0x8000_0001, &[])?,
            }
        }
        while self.answer(&mut stream).is_ok() {}
        Ok(())
    }

    fn answer(&self, stream: &mut UnixStream) -> io::Result<()> {
        let head = take::<28>(stream)?;
        let (kind, cookie) = (be32(&head[4..]) & 0xffff, u64::from_be_bytes(head[8..16].try_into().unwrap()));
        let at = u64::from_be_bytes(head[16..24].try_into().unwrap());
        let (from, len) = (at as usize, be32(&head[24..]) as usize);
        match kind {
            0 => {
                let data = self.bytes.lock().unwrap()[from..from + len].to_vec();
                let lie = self.lie_now(&self.until_read);
                let reply = if self.structured || is_structured(lie) {
                    chunks(lie, cookie, at, &data)
                } else {
                    simple(lie, cookie, &data)
                };
                tell(stream, lie, &reply)
            }
            1 => {
                let mut data = vec![0; len];
                stream.read_exact(&mut data)?;
                self.bytes.lock().unwrap()[from..from + len].copy_from_slice(&data);
                let lie = self.lie_now(&self.until_write);
                tell(stream, lie, &simple(lie, cookie, &[]))
            }
            4 => tell(stream, Lie::None, &simple(Lie::None, cookie, &[])),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn lie_now(&self, until: &AtomicI64) -> Lie {
        if until.fetch_sub(1, Ordering::SeqCst) == 0 { *self.lie.lock().unwrap() } else { Lie::None }
    }
}

fn is_structured(lie: Lie) -> bool {
    matches!(
        lie,
        Lie::Nothing
            | Lie::Half
            | Lie::Length(_)
            | Lie::Type(_)
            | Lie::Elsewhere(_)
            | Lie::Hole
            | Lie::Words(_)
    )
}

fn simple(lie: Lie, cookie: u64, data: &[u8]) -> Vec<u8> {
    let (mut magic, mut cookie, mut errno, mut data) = (0x6744_6698_u32, cookie, 0, data.to_vec());
    match lie {
        Lie::Cookie(by) => cookie = cookie.wrapping_add(by),
        Lie::NoMagic => magic = 0x6744_6699,
        Lie::Other => data.iter_mut().for_each(|byte| *byte ^= 0x55),
        Lie::Errno(number) => {
            errno = number;
            data.clear();
        }
        _ => {}
    }
    [&magic.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes(), &data].concat()
}

fn chunks(lie: Lie, cookie: u64, at: u64, data: &[u8]) -> Vec<u8> {
    let chunk = |kind: u16, payload: &[u8]| {
        let mut head =
            [&0x668e_33ef_u32.to_be_bytes()[..], &1u16.to_be_bytes(), &kind.to_be_bytes()].concat();
        head.extend(cookie.to_be_bytes());
        head.extend((payload.len() as u32).to_be_bytes());
        head.extend(payload);
        head
    };
    let place = |by: u64| (at + by).to_be_bytes();
    let with_data = |kind: u16, by: u64, data: &[u8]| chunk(kind, &[&place(by)[..], data].concat());
    match lie {
        Lie::Nothing => chunk(0, &[]),
        Lie::Half => with_data(1, 0, &data[..data.len() / 2]),
        Lie::Length(len) => {
            let mut chunk = with_data(1, 0, data);
            chunk[16..20].copy_from_slice(&len.to_be_bytes());
            chunk
        }
        Lie::Type(kind) => with_data(kind, 0, data),
        Lie::Elsewhere(by) => with_data(1, by, data),
        Lie::Hole => chunk(2, &[&place(0)[..], &(data.len() as u32).to_be_bytes()].concat()),
        Lie::Words(bytes) => chunk(0x8001, &[&5u32.to_be_bytes()[..], &bytes.to_be_bytes(), b"no"].concat()),
        Lie::Errno(number) => chunk(0x8001, &[&number.to_be_bytes()[..], &[0, 0]].concat()),
        Lie::Cookie(by) => {
            let mut chunk = with_data(1, 0, data);
            chunk[8..16].copy_from_slice(&cookie.wrapping_add(by).to_be_bytes());
            chunk
        }
        Lie::NoMagic => {
            let mut chunk = with_data(1, 0, data);
            chunk[3] ^= 1;
            chunk
        }
        Lie::Other => with_data(1, 0, &data.iter().map(|byte| byte ^ 0x55).collect::<Vec<u8>>()),
        Lie::None | Lie::CutAt(_) | Lie::Twice => with_data(1, 0, data),
    }
}

fn tell(stream: &mut UnixStream, lie: Lie, reply: &[u8]) -> io::Result<()> {
    match lie {
        Lie::CutAt(bytes) => {
            stream.write_all(&reply[..bytes.min(reply.len())])?;
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        Lie::Twice => stream.write_all(&[reply, reply].concat()),
        _ => stream.write_all(reply),
    }
}

fn take<const BYTES: usize>(stream: &mut UnixStream) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

fn page_of(slot: u32) -> Page {
    let mut page = Page::ZERO;
    for (i, byte) in page.0.iter_mut().enumerate() {
        *byte = (slot as usize * 31 + i * 7) as u8;
    }
    page
}

fn open(liar: &Arc<Liar>, name: &str, encrypt: bool) -> Result<FileBacking, NbdError> {
    let path = std::env::temp_dir().join(format!("memspill-liar-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let served = liar.clone();
    std::thread::spawn(move || served.serve(listener));
    let target = NbdTarget { server: Server::Unix { path: path.clone() }, export: String::new(), tls: None };
    let timeout = Duration::from_secs(2);
    let opened = FileBacking::on_export(NbdConfig { timeout, encrypt, ..NbdConfig::new(target) });
    // The connections that follow need the name: it goes with the machine's temporary files if this panics.
    if opened.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    opened
}

/// Reads a page, and waits for it as a pager does.
fn read(device: &FileBacking, slot: u32) -> Result<Page, BackingError> {
    let queue = QueueId(0);
    let request = ReadRequest { token: 7, slots: vec![SlotIndex(slot)], buf: page_buf(1), is_awaited: true };
    let until = Instant::now() + Duration::from_secs(40);
    let mut done = Vec::new();
    if let ReadStart::Done(now) = device.read(queue, request) {
        done.push(now);
    }
    while done.is_empty() {
        assert!(Instant::now() < until, "slot {slot} is waited for without end");
        device.reap(queue, &mut done);
        std::thread::sleep(Duration::from_micros(200));
    }
    let found = done.remove(0);
    found.results[0].clone().map(|()| found.buf[0])
}

/// A page is there or it is an error; only those that a lie is about may be. Lies about reads are about one
/// request, lies about writes about those of one connection.
fn holds(name: &str, lie: Lie, of_write: bool, structured: bool, encrypt: bool) -> usize {
    println!("{lie:?}, of a write: {of_write}, structured: {structured}, encrypted: {encrypt}");
    let never = i64::MIN / 2;
    let liar = Arc::new(Liar {
        bytes: Mutex::new(vec![0; EXPORT_BYTES]),
        lie: Mutex::new(lie),
        until_read: AtomicI64::new(never),
        until_write: AtomicI64::new(never),
        structured,
    });
    let device = open(&liar, name, encrypt).unwrap();
    if of_write {
        liar.until_write.store(1, Ordering::SeqCst);
    }
    let mut written = Vec::new();
    for slots in (1..PAGES).collect::<Vec<u32>>().chunks(7) {
        let pages: Vec<(u32, Page)> = slots.iter().map(|slot| (*slot, page_of(*slot))).collect();
        let writes: Vec<PageWrite<'_>> =
            pages.iter().map(|(slot, page)| PageWrite { slot: SlotIndex(*slot), page }).collect();
        let mut results = Vec::new();
        device.write(QueueId(0), &writes, &mut results);
        written.extend(slots.iter().zip(results).filter(|(_, result)| result.is_ok()).map(|(slot, _)| *slot));
    }
    if !of_write {
        assert_eq!(written.len(), PAGES as usize - 1, "{lie:?}");
        liar.until_read.store(3, Ordering::SeqCst);
    }
    let mut errors = 0;
    for slot in &written {
        match read(&device, *slot) {
            Ok(page) => assert!(page.0 == page_of(*slot).0, "{lie:?}: a wrong page for slot {slot}"),
            // It may be asked for again.
            Err(BackingError::Short(_)) => match read(&device, *slot) {
                Ok(page) => assert!(page.0 == page_of(*slot).0, "{lie:?}: a wrong page for slot {slot}"),
                Err(_) => errors += 1,
            },
            Err(_) => errors += 1,
        }
    }
    device.housekeep(Chore::EndRun);
    let path = std::env::temp_dir().join(format!("memspill-liar-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(path);
    errors
}

/// The control: a server that does not lie, of both kinds.
#[test]
fn an_honest_server_loses_nothing() {
    for structured in [false, true] {
        assert_eq!(holds(&format!("honest-{structured}"), Lie::None, false, structured, true), 0);
    }
}

/// A connection that breaks within a reply costs nothing, for it is asked for again.
#[test]
fn a_reply_may_be_cut_at_each_byte() {
    let ends = (0..=40).chain([41, 100, 4095, 4096, 4111, 4112, 4123]);
    for end in ends {
        for structured in [false, true] {
            let errors = holds(&format!("cut-{end}-{structured}"), Lie::CutAt(end), false, structured, true);
            assert_eq!(errors, 0, "cut at {end}, structured: {structured}");
        }
        if end < 16 {
            assert_eq!(holds(&format!("cut-write-{end}"), Lie::CutAt(end), true, false, true), 0);
        }
    }
}

/// At most the page that the lie was about is lost, and it is not taken for right.
#[test]
fn no_lie_is_believed() {
    let lengths = [0, 1, 7, 8, 9, 4095, 4103, 4105, 1 << 20, u32::MAX].map(Lie::Length);
    let kinds = [0, 2, 3, 5, 0x7fff, 0x8000, 0x8001, 0x8002, 0xffff].map(Lie::Type);
    let places = [1, 4096, 8192, u64::MAX - 8191, 1 << 63].map(Lie::Elsewhere);
    let cookies = [1, u64::MAX, 1 << 32, 1 << 63].map(Lie::Cookie);
    let errnos = [1, 5, 12, 22, 28, 75, 95, 108, 0x7fff_ffff, u32::MAX].map(Lie::Errno);
    let words = [0, 1, 2, 3, u16::MAX].map(Lie::Words);
    let others = [Lie::Twice, Lie::NoMagic, Lie::Nothing, Lie::Half, Lie::Hole, Lie::Other];
    let lies = lengths.iter().chain(&kinds).chain(&places).chain(&cookies).chain(&errnos).chain(&words);
    for (number, lie) in lies.chain(&others).enumerate() {
        let start = Instant::now();
        for encrypt in [true, false] {
            let errors = holds(&format!("lie-{number}-{encrypt}"), *lie, false, number % 2 == 0, encrypt);
            assert!(errors <= 1, "{lie:?}: {errors} pages are lost");
        }
        assert!(start.elapsed() < Duration::from_secs(40), "{lie:?} took {:?}", start.elapsed());
    }
    for (number, lie) in cookies.iter().chain(&errnos).chain(&[Lie::NoMagic, Lie::Twice]).enumerate() {
        holds(&format!("write-{number}"), *lie, true, false, true);
    }
}
