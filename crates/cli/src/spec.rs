//! `--swap SPEC`: a swap device in swapon's words.
//!
//! ```text
//! ram:[,size=SIZE][,prio=N][,compress=lz4|wordwise|zstd-fast|zstd]
//!                                     pages compressed in RAM (they count against --memory-max)
//! ram:size=SIZE,compress=none[,prio=N]
//!                                     a RAM disk: pages as they are, beside --memory-max
//! file:PATH[,size=SIZE][,prio=N][,discard[=once|pages]][,encrypt=on|off][,overwrite]
//!                                     a file or block device; PATH ends at the first comma; refused if it
//!                                     holds data that are not memspill's, unless they may be overwritten
//! nbd://HOST[:PORT]/EXPORT[,size=SIZE][,prio=N][,encrypt=on|off][,overwrite] and more words,
//! nbd+unix:, nbds:, nbds+unix:        an export of an NBD server (nbd_spec.rs)
//! ```
//!
//! For tests, and in no help text: `fail=read@N` or `fail=write@N` lets the Nth page that is read or written
//! fail, with a `+` behind it all from there on; `fail=flip@N` (not of ram:) flips a bit in the Nth page that
//! is read. `fail=nomem@N` is a machine that is short of memory for a while: the Nth page that is read and
//! the 99 after it fail with ENOMEM, and so do as many of those that are written.
//!
//! Devices of a higher priority fill first, as with swapon. `size=50%` is a share of RAM, as everywhere;
//! `size=max` is the same as no size. An error names the part that is wrong and the form expected there.

use std::fmt;
use std::path::PathBuf;

use memspill_backing::Algorithm;
use memspill_backing::file::DiscardPolicy;

use crate::machine::Memory;
use crate::nbd_spec::{self, Address, NbdSpecError, Words};
use crate::size::{Size, SizeError};

/// One swap device as asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapSpec {
    Ram {
        size: Option<u64>,
        priority: Option<i16>,
        algorithm: Algorithm,
        fail: Option<Fail>,
    },
    RamDisk {
        size: u64,
        priority: Option<i16>,
        fail: Option<Fail>,
    },
    File {
        path: PathBuf,
        size: Option<u64>,
        priority: Option<i16>,
        discard: DiscardPolicy,
        /// None: as the run has it (`--encrypt`).
        encrypt: Option<bool>,
        /// The user lets memspill overwrite what is there.
        overwrite: bool,
        fail: Option<Fail>,
    },
    Nbd {
        address: Address,
        words: Box<Words>,
        size: Option<u64>,
        priority: Option<i16>,
        /// None: as the run has it (`--encrypt`).
        encrypt: Option<bool>,
        /// The user lets memspill overwrite what is there.
        overwrite: bool,
        fail: Option<Fail>,
    },
}

/// A failure asked for by a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fail {
    pub what: FailWhat,
    /// Counted in pages, from 1.
    pub at: u64,
    pub from_there_on: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailWhat {
    Read,
    Write,
    Flip,
    NoMemory,
}

/// Why a text is not a swap device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpecError {
    Kind(String),
    EmptyPath,
    /// Text between `ram:` and the first comma, where nothing can stand.
    RamPath(String),
    /// An option without `=`, or an empty one.
    Form(String),
    Key(String),
    Twice(&'static str),
    Size(String, SizeError),
    Priority(String),
    Discard(String),
    RamDiscard,
    RamOverwrite,
    Encrypt(String),
    RamEncrypt,
    Compress(String),
    FileCompress,
    /// A RAM disk has none.
    RamDiskSize,
    Nbd(NbdSpecError),
    /// A word that is for files or RAM.
    NbdWord(&'static str),
    Fail(String),
}

impl From<NbdSpecError> for SpecError {
    fn from(error: NbdSpecError) -> SpecError {
        SpecError::Nbd(error)
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::Kind(kind) => {
                write!(
                    out,
                    "unknown kind of swap {kind:?}: use ram:, nbd://HOST/EXPORT or file:PATH, such as \
                     file:/var/tmp/swap,size=8G"
                )
            }
            SpecError::EmptyPath => out.write_str("file: needs a path: file:PATH[,size=SIZE][,prio=N]"),
            SpecError::RamPath(text) => {
                write!(
                    out,
                    "ram: takes no path, but {text:?} follows it: ram:[,size=SIZE][,prio=N][,compress=HOW]"
                )
            }
            SpecError::Form(part) => {
                write!(out, "{part:?} is no option: use size=SIZE or prio=N after a comma")
            }
            SpecError::Key(key) => {
                write!(
                    out,
                    "unknown option {key:?}: use size=SIZE, prio=N, compress=HOW (ram:), encrypt=off (file:)"
                )
            }
            SpecError::Twice(key) => write!(out, "{key}= is given twice"),
            SpecError::Size(text, error) => write!(out, "size={}: {error}", text.escape_debug()),
            SpecError::Priority(text) => {
                let text = text.escape_debug();
                write!(out, "prio={text}: a priority is a whole number from 0 to 32767, higher is used first")
            }
            SpecError::Discard(text) => {
                let text = text.escape_debug();
                write!(out, "discard={text}: use discard=once, discard=pages, or discard for both")
            }
            SpecError::RamDiscard => out.write_str("ram: has nothing to discard: use size=SIZE or prio=N"),
            SpecError::RamOverwrite => {
                out.write_str("ram: has nothing to overwrite: use size=SIZE or prio=N")
            }
            SpecError::Encrypt(text) => {
                let text = text.escape_debug();
                write!(out, "encrypt={text}: use encrypt=on or encrypt=off, beside size=SIZE and prio=N")
            }
            SpecError::RamEncrypt => {
                out.write_str("ram: does not leave RAM and is not encrypted: use size=SIZE or prio=N")
            }
            SpecError::Compress(text) => {
                let text = text.escape_debug();
                write!(
                    out,
                    "compress={text}: use compress=lz4, wordwise, zstd-fast, zstd, or with a size none, \
                     for a RAM disk"
                )
            }
            SpecError::FileCompress => {
                out.write_str("a file is not compressed: compress= is for ram:, use size=SIZE or prio=N")
            }
            SpecError::RamDiskSize => out.write_str(
                "compress=none is a RAM disk, outside of --memory-max: give its size, \
                 ram:size=SIZE,compress=none",
            ),
            SpecError::Nbd(error) => error.fmt(out),
            SpecError::NbdWord(word) => {
                write!(out, "{word} is not for an NBD export: use size=SIZE, prio=N or encrypt=off there")
            }
            SpecError::Fail(text) => {
                write!(
                    out,
                    "fail={}: use read@N, write@N, nomem@N or, but for ram:, flip@N",
                    text.escape_debug()
                )
            }
        }
    }
}

impl std::error::Error for SpecError {}

/// Parses for this machine: reads its memory only where a percentage is to be resolved.
pub fn parse(text: &str) -> Result<SwapSpec, SpecError> {
    parse_with(text, || Memory::of_this_machine().usable_bytes())
}

/// The parser itself; `ram_bytes` says what 100% means.
pub fn parse_with(text: &str, ram_bytes: impl Fn() -> u64) -> Result<SwapSpec, SpecError> {
    let mut parts = text.split(',');
    let device = parts.next().unwrap_or_default();
    let (kind, rest) = device.split_once(':').unwrap_or((device, ""));
    match kind {
        "ram" => {
            // `ram:size=1G` can mean only one thing.
            let first = if rest.contains('=') { Some(rest) } else { None };
            if first.is_none() && !rest.is_empty() {
                return Err(SpecError::RamPath(rest.to_owned()));
            }
            let options = Options::parse(first.into_iter().chain(parts), ram_bytes)?;
            let Options { size, priority, discard, encrypt, compress, overwrite, fail } = options;
            if discard.is_some() {
                return Err(SpecError::RamDiscard);
            }
            if overwrite {
                return Err(SpecError::RamOverwrite);
            }
            if encrypt.is_some() {
                return Err(SpecError::RamEncrypt);
            }
            if let Some(Fail { what: FailWhat::Flip, at, .. }) = fail {
                return Err(SpecError::Fail(format!("flip@{at}")));
            }
            match compress.unwrap_or(Compress::By(Algorithm::default())) {
                Compress::By(algorithm) => Ok(SwapSpec::Ram { size, priority, algorithm, fail }),
                Compress::None => {
                    let size = size.ok_or(SpecError::RamDiskSize)?;
                    Ok(SwapSpec::RamDisk { size, priority, fail })
                }
            }
        }
        "file" => {
            if rest.is_empty() {
                return Err(SpecError::EmptyPath);
            }
            let options = Options::parse(parts, ram_bytes)?;
            let Options { size, priority, discard, encrypt, compress, overwrite, fail } = options;
            if compress.is_some() {
                return Err(SpecError::FileCompress);
            }
            let discard = discard.unwrap_or_default();
            let path = PathBuf::from(rest);
            Ok(SwapSpec::File { path, size, priority, discard, encrypt, overwrite, fail })
        }
        _ if nbd_spec::is_address(device) => parse_nbd(device, parts, ram_bytes),
        _ => Err(SpecError::Kind(device.to_owned())),
    }
}

fn parse_nbd<'a>(
    device: &str,
    parts: impl Iterator<Item = &'a str>,
    ram_bytes: impl Fn() -> u64,
) -> Result<SwapSpec, SpecError> {
    let address: Address = device.parse()?;
    let mut words = Box::<Words>::default();
    let mut others = Vec::new();
    for part in parts {
        if !words.take(part)? {
            others.push(part);
        }
    }
    words.check(&address)?;
    let Options { size, priority, discard, encrypt, compress, overwrite, fail } =
        Options::parse(others.into_iter(), ram_bytes)?;
    match (discard, compress) {
        (Some(_), _) => Err(SpecError::NbdWord("discard")),
        (_, Some(_)) => Err(SpecError::NbdWord("compress=")),
        _ => Ok(SwapSpec::Nbd { address, words, size, priority, encrypt, overwrite, fail }),
    }
}

#[derive(Clone, Copy)]
enum Compress {
    None,
    By(Algorithm),
}

struct Options {
    size: Option<u64>,
    priority: Option<i16>,
    discard: Option<DiscardPolicy>,
    encrypt: Option<bool>,
    compress: Option<Compress>,
    overwrite: bool,
    fail: Option<Fail>,
}

impl Options {
    fn parse<'a>(
        parts: impl Iterator<Item = &'a str>,
        ram_bytes: impl Fn() -> u64,
    ) -> Result<Options, SpecError> {
        let mut size: Option<Option<u64>> = None;
        let mut priority = None;
        let mut discard = None;
        let mut encrypt = None;
        let mut compress = None;
        let mut overwrite = false;
        let mut fail = None;
        for part in parts {
            if part == "overwrite" {
                overwrite = true;
                continue;
            }
            if part == "discard" || part.starts_with("discard=") {
                let policy = parse_discard(part)
                    .ok_or_else(|| SpecError::Discard(part["discard=".len()..].to_owned()))?;
                if discard.replace(policy).is_some() {
                    return Err(SpecError::Twice("discard"));
                }
                continue;
            }
            let (key, value) = part.split_once('=').ok_or_else(|| SpecError::Form(part.to_owned()))?;
            match key {
                "size" if size.is_some() => return Err(SpecError::Twice("size")),
                "size" => size = Some(parse_size(value, &ram_bytes)?),
                "prio" if priority.is_some() => return Err(SpecError::Twice("prio")),
                "prio" => priority = Some(parse_priority(value)?),
                "encrypt" if encrypt.is_some() => return Err(SpecError::Twice("encrypt")),
                "encrypt" => encrypt = Some(parse_encrypt(value)?),
                "compress" if compress.is_some() => return Err(SpecError::Twice("compress")),
                "compress" => compress = Some(parse_compress(value)?),
                "fail" => fail = Some(parse_fail(value).ok_or_else(|| SpecError::Fail(value.to_owned()))?),
                _ => return Err(SpecError::Key(key.to_owned())),
            }
        }
        Ok(Options { size: size.flatten(), priority, discard, encrypt, compress, overwrite, fail })
    }
}

fn parse_size(value: &str, ram_bytes: &impl Fn() -> u64) -> Result<Option<u64>, SpecError> {
    let size = crate::size::parse_nonzero(value).map_err(|error| SpecError::Size(value.to_owned(), error))?;
    Ok(match size {
        Size::RamPpm(_) => size.resolve(ram_bytes()),
        absolute => absolute.resolve(0),
    })
}

/// As swapon: the word alone is both.
fn parse_discard(part: &str) -> Option<DiscardPolicy> {
    let (once, pages) = match part {
        "discard" => (true, true),
        "discard=once" => (true, false),
        "discard=pages" => (false, true),
        _ => return None,
    };
    Some(DiscardPolicy { once, pages })
}

fn parse_encrypt(value: &str) -> Result<bool, SpecError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(SpecError::Encrypt(value.to_owned())),
    }
}

fn parse_compress(value: &str) -> Result<Compress, SpecError> {
    match value {
        "none" => Ok(Compress::None),
        "lz4" => Ok(Compress::By(Algorithm::Lz4)),
        "zstd" => Ok(Compress::By(Algorithm::Zstd)),
        "zstd-fast" => Ok(Compress::By(Algorithm::ZstdFast)),
        "wordwise" => Ok(Compress::By(Algorithm::Wordwise)),
        _ => Err(SpecError::Compress(value.to_owned())),
    }
}

fn parse_fail(value: &str) -> Option<Fail> {
    let (what, at) = value.split_once('@')?;
    let what = match what {
        "read" => FailWhat::Read,
        "write" => FailWhat::Write,
        "flip" => FailWhat::Flip,
        "nomem" => FailWhat::NoMemory,
        _ => return None,
    };
    let from_there_on = at.ends_with('+') && matches!(what, FailWhat::Read | FailWhat::Write);
    let at =
        at.strip_suffix('+').filter(|_| from_there_on).unwrap_or(at).parse().ok().filter(|at| *at > 0)?;
    Some(Fail { what, at, from_there_on })
}

/// As swapon: 0 to 32767. The negative ones are those the kernel gives out by itself.
fn parse_priority(value: &str) -> Result<i16, SpecError> {
    match value.parse::<i16>() {
        Ok(priority) if priority >= 0 => Ok(priority),
        _ => Err(SpecError::Priority(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SwapSpec, SpecError> {
        parse_with(text, || 8 << 30)
    }

    #[test]
    fn ram() {
        let algorithm = Algorithm::Lz4;
        let plain = SwapSpec::Ram { size: None, priority: None, algorithm, fail: None };
        assert_eq!(read("ram:"), Ok(plain.clone()));
        assert_eq!(read("ram"), Ok(plain.clone()));
        assert_eq!(read("ram:compress=lz4"), Ok(plain.clone()));
        assert_eq!(read("ram:,size=max"), Ok(plain));
        let full = SwapSpec::Ram { size: Some(2 << 30), priority: Some(100), algorithm, fail: None };
        for text in [
            "ram:,size=2G,prio=100",
            "ram:,prio=100,size=2G",
            "ram:size=2G,prio=100",
            "ram,size=25%,prio=100",
        ] {
            assert_eq!(read(text), Ok(full.clone()), "{text}");
        }
    }

    #[test]
    fn forms_of_ram() {
        let algorithm = Algorithm::Zstd;
        let zstd = SwapSpec::Ram { size: None, priority: Some(7), algorithm, fail: None };
        assert_eq!(read("ram:compress=zstd,prio=7"), Ok(zstd));
        for (name, algorithm) in [("zstd-fast", Algorithm::ZstdFast), ("wordwise", Algorithm::Wordwise)] {
            let spec = SwapSpec::Ram { size: None, priority: None, algorithm, fail: None };
            assert_eq!(read(&format!("ram:compress={name}")), Ok(spec));
        }
        let disk = SwapSpec::RamDisk { size: 2 << 30, priority: None, fail: None };
        for text in ["ram:size=2G,compress=none", "ram:,compress=none,size=2G", "ram,size=25%,compress=none"]
        {
            assert_eq!(read(text), Ok(disk.clone()), "{text}");
        }
        for text in ["ram:compress=none", "ram:,compress=none,size=max"] {
            assert_eq!(read(text), Err(SpecError::RamDiskSize), "{text}");
        }
        for text in ["", "LZ4", "zstd:3", "no", "zram"] {
            let error = read(&format!("ram:size=1G,compress={text}"));
            assert_eq!(error, Err(SpecError::Compress(text.into())), "{text}");
        }
    }

    #[test]
    fn file() {
        let path = PathBuf::from("/var/tmp/a:b=c");
        let discard = DiscardPolicy::default();
        for (words, encrypt) in [("", None), (",encrypt=off", Some(false)), (",encrypt=on", Some(true))] {
            let path = path.clone();
            for (overwrite, more) in [(false, ""), (true, ",overwrite")] {
                let (path, size, priority, fail) = (path.clone(), None, None, None);
                let spec = SwapSpec::File { path, size, priority, discard, encrypt, overwrite, fail };
                assert_eq!(read(&format!("file:/var/tmp/a:b=c{words}{more}")), Ok(spec));
            }
        }
        for (words, once, pages) in [
            ("prio=10,discard", true, true),
            ("discard=once,prio=10", true, false),
            ("discard=pages,prio=10", false, true),
        ] {
            let discard = DiscardPolicy { once, pages };
            let spec = SwapSpec::File {
                path: path.clone(),
                size: Some(8 << 30),
                priority: Some(10),
                discard,
                encrypt: None,
                overwrite: false,
                fail: None,
            };
            assert_eq!(read(&format!("file:/var/tmp/a:b=c,size=8G,{words}")), Ok(spec));
        }
    }

    #[test]
    fn export() {
        let text = "nbds+unix:///x?socket=/s,timeout=5m,size=50%,prio=3,cacert=/ca,encrypt=off,overwrite,\
                    fail=read@2";
        let words = Words {
            timeout: Some(std::time::Duration::from_secs(300)),
            cacert: Some("/ca".into()),
            ..Words::default()
        };
        let spec = SwapSpec::Nbd {
            address: "nbds+unix:///x?socket=/s".parse().unwrap(),
            words: Box::new(words),
            size: Some(4 << 30),
            priority: Some(3),
            encrypt: Some(false),
            overwrite: true,
            fail: Some(Fail { what: FailWhat::Read, at: 2, from_there_on: false }),
        };
        assert_eq!(read(text), Ok(spec));
        for (words, misplaced) in [("discard", "discard"), ("compress=zstd", "compress=")] {
            assert_eq!(read(&format!("nbd://h,{words}")), Err(SpecError::NbdWord(misplaced)));
        }
        assert_eq!(read("nbd+vsock://2"), Err(SpecError::Nbd(NbdSpecError::Scheme("nbd+vsock".into()))));
        assert_eq!(read("nbd://h,x=1"), Err(SpecError::Key("x".into())));
        assert_eq!(read("nbdkit:"), Err(SpecError::Kind("nbdkit:".into())));
    }

    #[test]
    fn failures_for_tests() {
        let fail = |what, at, from_there_on| Some(Fail { what, at, from_there_on });
        assert_eq!(parse_fail("read@7"), fail(FailWhat::Read, 7, false));
        assert_eq!(parse_fail("write@1+"), fail(FailWhat::Write, 1, true));
        assert_eq!(parse_fail("flip@3"), fail(FailWhat::Flip, 3, false));
        assert_eq!(parse_fail("nomem@9"), fail(FailWhat::NoMemory, 9, false));
        for text in ["", "read", "read@", "read@0", "read@+", "flip@3+", "nomem@3+", "read@-1", "sing@1"] {
            assert_eq!(parse_fail(text), None, "{text}");
        }
        assert_eq!(read("ram:,fail=flip@3").unwrap_err(), SpecError::Fail("flip@3".into()));
    }

    #[test]
    fn errors_name_the_part() {
        let error = |text: &str| read(text).unwrap_err();
        assert_eq!(error(""), SpecError::Kind(String::new()));
        assert_eq!(error("/var/tmp/swap"), SpecError::Kind("/var/tmp/swap".into()));
        assert_eq!(error("zram:"), SpecError::Kind("zram:".into()));
        assert_eq!(error("file:"), SpecError::EmptyPath);
        assert_eq!(error("file"), SpecError::EmptyPath);
        assert_eq!(error("file:,size=1G"), SpecError::EmptyPath);
        assert_eq!(error("ram:/tmp"), SpecError::RamPath("/tmp".into()));
        assert_eq!(error("ram:,"), SpecError::Form(String::new()));
        assert_eq!(error("ram:,loop"), SpecError::Form("loop".into()));
        assert_eq!(error("ram:,discard"), SpecError::RamDiscard);
        assert_eq!(error("ram:,overwrite"), SpecError::RamOverwrite);
        assert_eq!(error("file:/x,overwrite=on"), SpecError::Key("overwrite".into()));
        for text in ["", "yes", "once,discard=once "] {
            assert!(matches!(error(&format!("file:/x,discard={text}")), SpecError::Discard(_)), "{text}");
        }
        assert_eq!(error("file:/x,discard,discard=once"), SpecError::Twice("discard"));
        assert_eq!(error("ram:size=1G,compress=none,discard"), SpecError::RamDiscard);
        assert_eq!(error("ram:,encrypt=on"), SpecError::RamEncrypt);
        assert_eq!(error("ram:size=1G,compress=none,encrypt=off"), SpecError::RamEncrypt);
        for text in ["", "yes", "aes"] {
            assert_eq!(error(&format!("file:/x,encrypt={text}")), SpecError::Encrypt(text.into()));
        }
        assert_eq!(error("file:/x,encrypt=on,encrypt=on"), SpecError::Twice("encrypt"));
        assert_eq!(error("ram:compress=lz4,compress=lz4"), SpecError::Twice("compress"));
        assert_eq!(error("file:/x,compress=zstd"), SpecError::FileCompress);
        assert_eq!(error("ram:size=1G,compress=none,fail=flip@3"), SpecError::Fail("flip@3".into()));
        assert_eq!(error("ram:,sise=1G"), SpecError::Key("sise".into()));
        assert_eq!(error("ram:,size=1G,size=2G"), SpecError::Twice("size"));
        assert_eq!(error("ram:,size=max,size=2G"), SpecError::Twice("size"));
        assert_eq!(error("ram:,prio=1,prio=1"), SpecError::Twice("prio"));
        assert_eq!(error("ram:,size=-1G"), SpecError::Size("-1G".into(), SizeError::Negative));
        assert_eq!(error("ram:,size=0"), SpecError::Size("0".into(), SizeError::Zero));
        assert_eq!(error("ram:,size="), SpecError::Size(String::new(), SizeError::Empty));
        for priority in ["-1", "32768", "", "high", "1.5"] {
            assert_eq!(error(&format!("ram:,prio={priority}")), SpecError::Priority(priority.into()));
        }
    }

    #[test]
    fn errors_are_one_line_and_show_the_form() {
        for text in [
            "zram:",
            "file:",
            "ram:/x",
            "ram:,x",
            "ram:,x=1",
            "ram:,size=x",
            "ram:,prio=x",
            "ram:,discard",
            "ram:compress=x",
            "ram:compress=none",
            "file:/x,compress=lz4",
            "nbd://h,discard",
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(!message.contains('\n'), "{message}");
            assert!(message.contains("size") || message.contains("whole number"), "{message}");
        }
    }

    /// A percentage is the only reason to look at the machine.
    #[test]
    fn memory_is_read_only_for_a_percentage() {
        assert!(parse_with("ram:,size=1G", || panic!("not needed")).is_ok());
    }
}
