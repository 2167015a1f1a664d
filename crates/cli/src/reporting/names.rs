//! From places in files to functions and lines, by a process of its own.
//!
//! ```text
//!   the report                          memspill resolve-names (hidden)
//!   inode, offset, path: a line each ─▶ the file, if it is still the same ─▶ segments: its address there
//!                                       debug information, its own or /usr/lib/debug's; symbols
//!   names, as they come ◀────────────── function, source, line
//! ```
//!
//! These files were made by the programs of the run: another process may take long over them, take much
//! memory or fail, and the report does without. After TIME it is ended, and what it has not named stays
//! module and address. Nothing is said of a file that has been replaced meanwhile.
//!
//! What it does not do: find out what an interpreter, or a compiler at run time, was about.

use crate::args::RESOLVE_NAMES;
use crate::message::plain;
use addr2line::Loader;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// So long the report waits for names.
pub const TIME: Duration = Duration::from_secs(5);
/// The limit for memory that is not a mapped file.
const DATA_BYTES_MAX: u64 = 1 << 30;
/// Answers that wait to be read.
const ANSWERS_AHEAD: usize = 64;
/// Dynamic symbols that are looked through in a file without others.
const SYMBOLS_MAX: usize = 1 << 20;

/// An instruction, as a place in a file.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Code {
    pub path: String,
    pub inode: u64,
    pub offset: u64,
}

/// The name of a place; each part may be empty.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Name {
    /// As the file counts: what other tools take.
    pub address: String,
    pub function: String,
    /// `file.c:12`.
    pub source: String,
}

// ---- who asks ---------------------------------------------------------------------------------------------

/// A name for each, by the program that this is; what takes longer than `time` has none.
pub fn resolve(program: &Path, codes: &[Code], time: Duration) -> Vec<Name> {
    let mut names = vec![Name::default(); codes.len()];
    if codes.is_empty() {
        return names;
    }
    let begun = Instant::now();
    let child = Command::new(program)
        .arg(RESOLVE_NAMES)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return names };
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let request: String = codes.iter().map(request_line).collect();
    let (tell, told) = mpsc::sync_channel(ANSWERS_AHEAD);
    // Either may wait for the other for as long as the child lives.
    std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(request.as_bytes())));
    std::thread::spawn(move || {
        let lines = stdout.map(|stdout| BufReader::new(stdout).lines());
        lines.into_iter().flatten().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    while let Some(left) = time.checked_sub(begun.elapsed())
        && let Ok(line) = told.recv_timeout(left)
    {
        if let Some((index, name)) = answer_in(&line)
            && let Some(slot) = names.get_mut(index)
        {
            *slot = name;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    names
}

fn request_line(code: &Code) -> String {
    // A path is shown as it is in maps: there is no end of a line in it.
    format!("{} {:x} {}\n", code.inode, code.offset, plain(&code.path))
}

fn answer_in(line: &str) -> Option<(usize, Name)> {
    let mut fields = line.split('\t');
    let index = fields.next()?.parse().ok()?;
    let mut field = || fields.next().map(str::to_owned);
    Some((index, Name { address: field()?, function: field()?, source: field()? }))
}

// ---- who answers ------------------------------------------------------------------------------------------

/// The hidden subcommand: requests on stdin, answers on stdout. Returns the exit code.
pub fn answer() -> u8 {
    let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let _ = setrlimit(Resource::Data, limit(DATA_BYTES_MAX));
    let _ = setrlimit(Resource::Core, limit(0));
    let _ = setrlimit(Resource::Cpu, limit(2 * TIME.as_secs()));
    let mut programs: HashMap<(String, u64), Option<Program>> = HashMap::new();
    let mut out = std::io::stdout();
    for (index, line) in std::io::stdin().lines().map_while(Result::ok).enumerate() {
        let Some(code) = request_in(&line) else { continue };
        let key = (code.path.clone(), code.inode);
        let program = programs.entry(key).or_insert_with(|| Program::open(&code));
        let Some(name) = program.as_ref().and_then(|program| program.name(code.offset)) else { continue };
        let Name { address, function, source } = name;
        let text = format!("{index}\t{address}\t{}\t{}\n", plain(&function), plain(&source));
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    0
}

fn request_in(line: &str) -> Option<Code> {
    let (inode, rest) = line.split_once(' ')?;
    let (offset, path) = rest.split_once(' ')?;
    let offset = u64::from_str_radix(offset, 16).ok()?;
    Some(Code { path: path.to_owned(), inode: inode.parse().ok()?, offset })
}

/// A file with code.
struct Program {
    segments: Vec<Segment>,
    loader: Option<Loader>,
    /// Where there are no others: address, size, name, by address.
    symbols: Vec<(u64, u64, String)>,
}

struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

impl Program {
    /// None: it is no longer the file that was mapped, or none with code.
    fn open(code: &Code) -> Option<Program> {
        let file = File::open(&code.path).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.ino() != code.inode {
            return None;
        }
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).ok()?;
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            Segment { address: segment.address(), offset, bytes }
        });
        let apart = elf.build_id().ok().flatten().and_then(debug_file);
        let paths = apart.into_iter().chain([PathBuf::from(&code.path)]);
        let loader = paths.into_iter().find_map(|path| Loader::new(path).ok());
        let mut symbols: Vec<(u64, u64, String)> = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .take(SYMBOLS_MAX)
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
            .collect();
        symbols.sort();
        Some(Program { segments: segments.collect(), loader, symbols })
    }

    fn name(&self, offset: u64) -> Option<Name> {
        let holds = |s: &&Segment| s.offset <= offset && offset - s.offset < s.bytes;
        let segment = self.segments.iter().find(holds)?;
        let address = segment.address.checked_add(offset - segment.offset)?;
        let mut name = self.by_debug_information(address).unwrap_or_default();
        if name.function.is_empty() {
            name.function = self.by_symbols(address).unwrap_or_default();
        }
        name.address = format!("{address:x}");
        Some(name)
    }

    /// The function that was called, and what was inlined into it at this line.
    fn by_debug_information(&self, address: u64) -> Option<Name> {
        let mut frames = self.loader.as_ref()?.find_frames(address).ok()?;
        let mut name = Name::default();
        let mut inlined = None;
        while let Ok(Some(frame)) = frames.next() {
            // The innermost comes first.
            if let Some(location) = frame.location
                && let Some(file) = location.file
                && name.source.is_empty()
            {
                name.source = format!("{file}:{}", location.line.unwrap_or(0));
            }
            let Some(function) =
                frame.function.and_then(|function| Some(function.demangle().ok()?.into_owned()))
            else {
                continue;
            };
            if !name.function.is_empty() && inlined.is_none() {
                inlined = Some(name.function);
            }
            name.function = function;
        }
        if let Some(inlined) = inlined {
            name.function = format!("{} ({inlined} is inlined)", name.function);
        }
        Some(name)
    }

    fn by_symbols(&self, address: u64) -> Option<String> {
        let own = self.loader.as_ref().and_then(|loader| loader.find_symbol(address));
        let dynamic = || {
            let behind = self.symbols.partition_point(|(start, ..)| *start <= address);
            let (start, bytes, name) = self.symbols.get(behind.checked_sub(1)?)?;
            (address - start < *bytes).then_some(name.as_str())
        };
        let name = own.or_else(dynamic)?;
        Some(addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned())
    }
}

/// Where distributions put debug information, by the program's build id.
fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_read_back() {
        let code = Code { path: "/a b/c (deleted)".into(), inode: 7, offset: 0x1234 };
        assert_eq!(request_in(request_line(&code).trim_end_matches('\n')), Some(code));
        for text in ["", "7", "7 12", "x 12 /a", "7 xyz /a"] {
            assert_eq!(request_in(text), None, "{text:?}");
        }
        let name = Name { address: "1f".into(), function: "f(int)".into(), source: "a.c:3".into() };
        assert_eq!(answer_in("12\t1f\tf(int)\ta.c:3"), Some((12, name)));
        assert_eq!(answer_in("12\t1f"), None);
        assert_eq!(answer_in("x\t\t\t"), None);
    }

    /// A function of this test's own program, by its address in memory.
    #[test]
    fn a_function_of_this_program_has_its_name() {
        let addr = a_function_of_this_program_has_its_name as fn() as usize as u64;
        let maps = File::open("/proc/self/maps").unwrap();
        let mapping = super::super::places::find(BufReader::new(maps), &[addr]).unwrap().remove(0);
        let file = mapping.file.clone().expect("a file");
        let offset = addr - mapping.start + file.offset;
        let code = Code { path: file.path, inode: file.inode, offset };
        let name = Program::open(&code).expect("an ELF file").name(offset).expect("in a segment");
        assert!(name.function.contains("a_function_of_this_program_has_its_name"), "{name:?}");
        let replaced = Code { inode: code.inode + 1, ..code.clone() };
        assert!(Program::open(&replaced).is_none(), "it is another file");
        let none = Code { path: "/proc/self/maps".into(), ..code };
        assert!(Program::open(&none).is_none());
    }

    #[test]
    fn who_talks_nonsense_is_not_waited_for() {
        let codes = [Code { path: "/x".into(), inode: 1, offset: 1 }];
        let begun = Instant::now();
        // It says its argument for ever, which is no answer.
        let names = resolve(Path::new("/usr/bin/yes"), &codes, Duration::from_millis(200));
        assert_eq!(names, [Name::default()]);
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(resolve(Path::new("/nowhere"), &codes, TIME), [Name::default()]);
    }
}
