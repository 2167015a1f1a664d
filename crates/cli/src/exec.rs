//! Finds out what kind of program a command is, before it is started.
//!
//! memspill works through a library that the dynamic loader puts into the program (LD_PRELOAD), or memspill
//! itself where the command names no loader. A program for which the loader ignores that variable would run
//! outside its budget without any message. So memspill inspects the command first, the way execvp(3) and the
//! kernel will:
//!
//! ```text
//! NAME ── PATH lookup ──▶ file ── "#!" line ──▶ interpreter ── (again, up to 4 times) ──▶ ELF
//!                          └── no "#!", no ELF: /bin/sh runs it, as execvp does ──────────▲
//! ELF: 64-bit x86-64?  a loader named (PT_INTERP)?  set-user-ID, set-group-ID, capabilities?
//! ```
//!
//! This is an inspection, not a guard: the file may change before it is executed, and a program may start
//! others of any kind later. Those are found when they fail to report to the supervisor.
//!
//! The layout of ELF headers is the crate object's. This file decides which of them are read, and how far, as
//! the kernel decides it: object's readers of files refuse some that the kernel runs.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use object::elf;
use object::endian::LittleEndian;
use object::pod::{from_bytes, slice_from_all_bytes};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};

use crate::exit;
use crate::message::plain;
use crate::probe;

type FileHeader = elf::FileHeader64<LittleEndian>;
type ProgramHeader = elf::ProgramHeader64<LittleEndian>;

/// `#!` lines that are followed; the kernel gives up after about as many.
const SCRIPT_DEPTH_MAX: usize = 4;
/// The kernel looks at this much of a file for a `#!` line.
const SCRIPT_LINE_BYTES_MAX: usize = 256;
/// Program headers that a real program has are a dozen; more than this is not looked at.
const PROGRAM_HEADERS_MAX: u16 = 512;
/// What glibc's execvp searches where PATH is unset.
const PATH_UNSET: &str = "/bin:/usr/bin";

/// What a command turned out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inspection {
    /// The loader will put the agent into `program`.
    Dynamic(Program),
    /// `program` names no loader, so the agent is to be planted.
    Static(Program),
    /// `program` gets privileges when it starts, so that the loader ignores LD_PRELOAD.
    Privileged(Program, Privilege),
    /// `program` is for another machine.
    Foreign(Program, &'static str),
    /// `program` begins like an ELF file and is not a whole one.
    Damaged(Program),
    /// May be executed but not read, so that nothing is known (and the loader may well be able to).
    Unreadable(Program),
    /// Found at this path, but cannot be executed.
    NotExecutable(PathBuf, String),
    NotFound(OsString),
    /// A script whose interpreter is missing, or a program whose loader is.
    NoInterpreter {
        script: PathBuf,
        interpreter: PathBuf,
    },
}

/// A file that the kernel will load, and how it was come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// What is executed: the command found in PATH.
    pub command: PathBuf,
    /// What is loaded: the same, or the interpreter at the end of the scripts.
    pub loaded: PathBuf,
    /// PT_INTERP: the dynamic loader.
    pub loader: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    SetUserId,
    SetGroupId,
    FileCapabilities,
}

impl fmt::Display for Privilege {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Privilege::SetUserId => "set-user-ID",
            Privilege::SetGroupId => "set-group-ID",
            Privilege::FileCapabilities => "given file capabilities",
        })
    }
}

impl Inspection {
    /// Does the loader of a command that may be run put the agent into it?
    pub fn has_loader(&self) -> bool {
        !matches!(self, Inspection::Static(_))
    }

    /// Why this cannot be run under a budget: the exit code, and one line without the `memspill:` before it.
    pub fn refusal(&self) -> Option<(u8, String)> {
        let (exit, line) = match self {
            Inspection::Dynamic(_) | Inspection::Static(_) | Inspection::Unreadable(_) => return None,
            Inspection::Privileged(program, privilege) => (
                exit::OWN_FAILURE,
                format!(
                    "{program} is {privilege}: the loader ignores LD_PRELOAD in it, so the agent cannot be \
                     loaded; run it from an account that has the privileges already"
                ),
            ),
            Inspection::Foreign(program, machine) => (
                exit::OWN_FAILURE,
                format!("{program} is a program for {machine}: memspill's agent is for 64-bit x86-64 only"),
            ),
            Inspection::Damaged(program) => {
                (exit::NOT_EXECUTABLE, format!("{program} cannot be executed: it is not a complete ELF file"))
            }
            Inspection::NotExecutable(path, reason) => {
                (exit::NOT_EXECUTABLE, format!("{} cannot be executed: {reason}", path.display()))
            }
            Inspection::NotFound(name) => {
                let (shown, is_path) = (name.display(), name.as_bytes().contains(&b'/'));
                let line = match Path::new(name).exists() {
                    _ if is_path => format!("{shown} was not found"),
                    true => format!("{shown} was not found in PATH; the one in this directory is ./{shown}"),
                    false => format!("{shown} was not found in PATH"),
                };
                (exit::NOT_FOUND, line)
            }
            Inspection::NoInterpreter { script, interpreter } => (
                exit::NOT_FOUND,
                format!(
                    "{} is to be run by {}, which was not found",
                    script.display(),
                    interpreter.display()
                ),
            ),
        };
        // Names of files may have anything in them.
        Some((exit, plain(&line)))
    }
}

/// The command, and what runs it where that is another file.
impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.command != self.loaded {
            write!(out, "{} (which runs {})", self.loaded.display(), self.command.display())
        } else {
            write!(out, "{}", self.command.display())
        }
    }
}

/// Inspects `name` as execvp(3) would start it here and now, by the PATH of this process.
pub fn inspect(name: &OsStr) -> Inspection {
    let path = std::env::var_os("PATH");
    match find(name, path.as_deref()) {
        Found::At(command) => inspect_file(&command),
        Found::Denied(path) => denied(path),
        Found::Nowhere => Inspection::NotFound(name.to_owned()),
    }
}

enum Found {
    At(PathBuf),
    /// Something of that name is there, and may not be executed.
    Denied(PathBuf),
    Nowhere,
}

/// A name with a slash is a path; any other is looked for in PATH, where what may not be executed is passed
/// over (and remembered: it is the better answer when there is no other).
fn find(name: &OsStr, path: Option<&OsStr>) -> Found {
    if name.is_empty() {
        return Found::Nowhere;
    }
    if name.as_bytes().contains(&b'/') {
        return look_at(PathBuf::from(name));
    }
    let mut denied = None;
    for directory in std::env::split_paths(path.unwrap_or(OsStr::new(PATH_UNSET))) {
        // An empty element is the current directory; "./" keeps the slash that makes it a path.
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match look_at(directory.join(name)) {
            Found::At(file) => return Found::At(file),
            // A directory of PATH that this user may not search says nothing of what is in it: as shells do,
            // and unlike execvp, it is not taken for a command that may not be executed.
            Found::Denied(file) => denied = denied.or(file.exists().then_some(file)),
            Found::Nowhere => {}
        }
    }
    denied.map_or(Found::Nowhere, Found::Denied)
}

fn look_at(path: PathBuf) -> Found {
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() && may_execute(&path) => Found::At(path),
        Ok(_) => Found::Denied(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Found::Denied(path),
        Err(_) => Found::Nowhere,
    }
}

fn denied(path: PathBuf) -> Inspection {
    let reason = match std::fs::metadata(&path) {
        Ok(there) if there.is_dir() => "it is a directory",
        Ok(there) if there.is_file() && there.mode() & 0o111 == 0 => {
            "permission denied (chmod +x makes a program of it)"
        }
        _ => "permission denied",
    };
    Inspection::NotExecutable(path, reason.to_owned())
}

/// As execve decides, for the effective user: also no for a file on a noexec mount.
fn may_execute(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Inspects a file that may be executed: follows scripts to what is loaded.
pub fn inspect_file(command: &Path) -> Inspection {
    let mut current = command.to_owned();
    for _ in 0..=SCRIPT_DEPTH_MAX {
        let program = Program { command: command.to_owned(), loaded: current.clone(), loader: None };
        let contents = match File::open(&current).and_then(|file| contents_of(&file)) {
            Ok(contents) => contents,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Inspection::Unreadable(program);
            }
            Err(error) => return Inspection::NotExecutable(current, error.to_string()),
        };
        let interpreter = match contents {
            Contents::Elf(elf) => return judge(program, elf),
            Contents::Script(interpreter) => interpreter,
            // ENOEXEC: execvp then hands the file to the shell.
            Contents::Other => PathBuf::from("/bin/sh"),
        };
        match look_at(interpreter.clone()) {
            Found::At(file) => current = file,
            Found::Denied(file) => return denied(file),
            Found::Nowhere => return Inspection::NoInterpreter { script: current, interpreter },
        }
    }
    Inspection::NotExecutable(command.to_owned(), "too many levels of scripts that run scripts".to_owned())
}

fn judge(mut program: Program, elf: Elf) -> Inspection {
    match elf {
        Elf::Damaged => Inspection::Damaged(program),
        Elf::Foreign(machine) => Inspection::Foreign(program, machine),
        Elf::Native { loader } => {
            if let Some(interpreter) = loader.clone().filter(|path| !path.exists()) {
                return Inspection::NoInterpreter { script: program.loaded, interpreter };
            }
            program.loader = loader;
            match privilege(&program.loaded) {
                Some(privilege) => Inspection::Privileged(program, privilege),
                // The dynamic loader, run as a command, is static and still loads what LD_PRELOAD says.
                None if program.loader.is_none() && !is_loader(&program.loaded) => {
                    Inspection::Static(program)
                }
                None => Inspection::Dynamic(program),
            }
        }
    }
}

fn is_loader(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux-x86-64.so"))
}

/// Whether starting `path` changes privileges, which makes the loader run in its secure mode. Set-ID bits and
/// capabilities count only where they give the caller something new and the mount and the process let them.
fn privilege(path: &Path) -> Option<Privilege> {
    let metadata = std::fs::metadata(path).ok()?;
    if no_new_privileges() || on_nosuid_mount(path) {
        return None;
    }
    set_id(&metadata).or_else(|| has_new_capabilities(path).then_some(Privilege::FileCapabilities))
}

fn set_id(metadata: &Metadata) -> Option<Privilege> {
    const SET_USER_ID: u32 = 0o4000;
    /// Without the group's x bit, the set-group-ID bit once meant mandatory locking.
    const SET_GROUP_ID: u32 = 0o2010;
    let mode = metadata.mode();
    if mode & SET_USER_ID != 0 && metadata.uid() != rustix::process::getuid().as_raw() {
        return Some(Privilege::SetUserId);
    }
    let other_group = metadata.gid() != rustix::process::getgid().as_raw();
    (mode & SET_GROUP_ID == SET_GROUP_ID && other_group).then_some(Privilege::SetGroupId)
}

/// Root has all capabilities before: for root the loader stays as it is.
fn has_new_capabilities(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    !rustix::process::getuid().is_root() && probe::has_file_capabilities(&name)
}

fn on_nosuid_mount(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID))
}

fn no_new_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"))
}

/// What a file holds, as far as execve cares.
#[derive(PartialEq, Eq, Debug)]
enum Contents {
    Elf(Elf),
    /// With the interpreter of its `#!` line.
    Script(PathBuf),
    Other,
}

#[derive(PartialEq, Eq, Debug)]
enum Elf {
    /// 64-bit x86-64.
    Native {
        loader: Option<PathBuf>,
    },
    Foreign(&'static str),
    Damaged,
}

fn contents_of(file: &File) -> io::Result<Contents> {
    let mut start = Vec::with_capacity(SCRIPT_LINE_BYTES_MAX);
    file.take(SCRIPT_LINE_BYTES_MAX as u64).read_to_end(&mut start)?;
    if start.starts_with(b"\x7fELF") {
        return Ok(Contents::Elf(read_elf(file, &start)));
    }
    Ok(match script_interpreter(&start) {
        Some(interpreter) => Contents::Script(interpreter),
        None => Contents::Other,
    })
}

/// The first word after `#!`. A line that is cut off within it is no script, as the kernel has it.
fn script_interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?;
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let word_start = line.iter().position(|byte| !blank(byte))?;
    let word = &line[word_start..];
    let word_end = word.iter().position(|byte| blank(byte) || matches!(byte, b'\n' | 0));
    let word = match word_end {
        Some(end) => &word[..end],
        None if start.len() < SCRIPT_LINE_BYTES_MAX => word,
        None => return None,
    };
    (!word.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(word)))
}

/// Reads the ELF header in `start`, and the program headers from `file`.
fn read_elf(file: &File, start: &[u8]) -> Elf {
    let Ok((header, _)) = from_bytes::<FileHeader>(start) else { return Elf::Damaged };
    if header.e_ident.class != elf::ELFCLASS64 {
        return Elf::Foreign("a 32-bit machine");
    }
    if header.e_ident.data != elf::ELFDATA2LSB {
        return Elf::Foreign("a big-endian machine");
    }
    match header.e_machine.get(LittleEndian) {
        elf::EM_X86_64 => {}
        elf::EM_AARCH64 => return Elf::Foreign("64-bit ARM"),
        elf::EM_RISCV => return Elf::Foreign("RISC-V"),
        _ => return Elf::Foreign("another machine"),
    }
    if !matches!(header.e_type.get(LittleEndian), elf::ET_EXEC | elf::ET_DYN) {
        return Elf::Damaged;
    }
    match find_loader(file, header) {
        Ok(loader) => Elf::Native { loader },
        Err(_) => Elf::Damaged,
    }
}

/// The path in the PT_INTERP segment. An error: the headers do not lie within the file.
fn find_loader(file: &File, header: &FileHeader) -> io::Result<Option<PathBuf>> {
    let count = header.e_phnum.get(LittleEndian);
    let bytes_each = usize::from(header.e_phentsize.get(LittleEndian));
    if count == 0 || count > PROGRAM_HEADERS_MAX || bytes_each != size_of::<ProgramHeader>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut table = vec![0; usize::from(count) * bytes_each];
    file.read_exact_at(&mut table, header.e_phoff.get(LittleEndian))?;
    let segments = slice_from_all_bytes::<ProgramHeader>(&table).expect("the table is of whole headers");
    let Some(segment) = segments.iter().find(|s| s.p_type.get(LittleEndian) == elf::PT_INTERP) else {
        return Ok(None);
    };
    let bytes = segment.p_filesz.get(LittleEndian);
    // The kernel's own bounds: at least a letter and its NUL, at most PATH_MAX.
    if !(2..=libc::PATH_MAX as u64).contains(&bytes) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut path = vec![0; bytes as usize];
    file.read_exact_at(&mut path, segment.p_offset.get(LittleEndian))?;
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(Some(PathBuf::from(OsStr::from_bytes(path))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::pod::slice_from_bytes_mut;
    use std::mem::offset_of;
    use std::os::unix::fs::PermissionsExt;

    /// A directory of its own for each test, removed at its end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("memspill-exec-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Dir(path)
        }

        fn file(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn exit_and_text(inspection: &Inspection) -> (u8, String) {
        inspection.refusal().unwrap_or_else(|| panic!("not refused: {inspection:?}"))
    }

    /// /bin/true's bytes, to cut and to change.
    fn true_bytes() -> Vec<u8> {
        std::fs::read("/bin/true").unwrap()
    }

    /// The same program without its PT_INTERP, as a static one is built.
    fn static_bytes() -> Vec<u8> {
        let mut bytes = true_bytes();
        let header = *from_bytes::<FileHeader>(&bytes).unwrap().0;
        let table = &mut bytes[header.e_phoff.get(LittleEndian) as usize..];
        let count = usize::from(header.e_phnum.get(LittleEndian));
        for segment in slice_from_bytes_mut::<ProgramHeader>(table, count).unwrap().0 {
            if segment.p_type.get(LittleEndian) == elf::PT_INTERP {
                segment.p_type.set(LittleEndian, elf::PT_NULL);
            }
        }
        bytes
    }

    #[test]
    fn a_dynamic_program_is_found_in_path() {
        let Inspection::Dynamic(program) = inspect(OsStr::new("true")) else { panic!() };
        assert!(program.command.ends_with("true") && program.command == program.loaded);
        assert!(program.loader.unwrap().to_string_lossy().contains("ld-linux"));
    }

    #[test]
    fn not_found_is_127() {
        for name in ["no-such-program-here", "/no/such/program", "", "/bin/true/x"] {
            assert_eq!(exit_and_text(&inspect(OsStr::new(name))).0, 127, "{name:?}");
        }
    }

    #[test]
    fn not_executable_is_126() {
        let dir = Dir::new("mode");
        let file = dir.file("plain", b"#!/bin/sh\n", 0o644);
        assert_eq!(exit_and_text(&inspect(file.as_os_str())).0, 126);
        assert_eq!(exit_and_text(&inspect(dir.0.as_os_str())).0, 126);
    }

    #[test]
    fn path_passes_over_what_may_not_be_executed() {
        let (first, second) = (Dir::new("path1"), Dir::new("path2"));
        first.file("tool", b"", 0o644);
        let path = std::env::join_paths([&first.0, &second.0]).unwrap();
        assert!(matches!(find(OsStr::new("tool"), Some(&path)), Found::Denied(_)));
        let good = second.file("tool", &true_bytes(), 0o755);
        assert!(matches!(find(OsStr::new("tool"), Some(&path)), Found::At(file) if file == good));
        assert!(matches!(find(OsStr::new("sh"), None), Found::At(_)));
        // The current directory, by an empty element.
        assert!(matches!(find(OsStr::new("Cargo.toml"), Some(OsStr::new("/none::"))), Found::Denied(_)));
    }

    #[test]
    fn scripts_lead_to_their_interpreter() {
        let dir = Dir::new("script");
        let script = dir.file("script", b"#! /bin/sh -e\ntrue\n", 0o755);
        let Inspection::Dynamic(program) = inspect(script.as_os_str()) else { panic!() };
        assert_eq!(
            (program.command.as_path(), program.loaded.as_path()),
            (script.as_path(), Path::new("/bin/sh"))
        );

        let outer = dir.file("outer", format!("#!{}\n", script.display()).as_bytes(), 0o755);
        assert!(matches!(inspect(outer.as_os_str()), Inspection::Dynamic(_)));

        let lost = dir.file("lost", b"#!/no/such/sh\n", 0o755);
        let (exit, text) = exit_and_text(&inspect(lost.as_os_str()));
        assert_eq!(exit, 127);
        assert!(text.contains("/no/such/sh") && text.contains("lost"), "{text}");
    }

    #[test]
    fn a_script_that_runs_itself_ends() {
        let dir = Dir::new("loop");
        let path = dir.0.join("loop");
        let script = dir.file("loop", format!("#!{}\n", path.display()).as_bytes(), 0o755);
        assert_eq!(exit_and_text(&inspect(script.as_os_str())).0, 126);
    }

    #[test]
    fn a_text_without_a_first_line_is_run_by_the_shell() {
        let dir = Dir::new("text");
        for (name, contents) in
            [("text", &b"echo hello\n"[..]), ("empty", b""), ("bare", b"#!\n"), ("blank", b"#!  ")]
        {
            let file = dir.file(name, contents, 0o755);
            let Inspection::Dynamic(program) = inspect(file.as_os_str()) else { panic!("{name}") };
            assert_eq!(program.loaded, Path::new("/bin/sh"));
        }
    }

    #[test]
    fn static_programs_have_no_loader() {
        let dir = Dir::new("static");
        let file = dir.file("static", &static_bytes(), 0o755);
        let inspection = inspect(file.as_os_str());
        assert!(matches!(&inspection, Inspection::Static(program) if program.loaded == file));
        assert!(!inspection.has_loader() && inspection.refusal().is_none());

        let script = dir.file("script", format!("#!{}\n", file.display()).as_bytes(), 0o755);
        assert!(!inspect(script.as_os_str()).has_loader());
        assert!(inspect(OsStr::new("true")).has_loader());
    }

    /// Needs root, to give a file away; and a mount that honours the bit.
    #[test]
    fn set_user_id_programs_are_refused() {
        let dir = Dir::new("setuid");
        let file = dir.file("setuid", &true_bytes(), 0o755);
        if std::os::unix::fs::chown(&file, Some(65_534), None).is_err()
            || on_nosuid_mount(&file)
            || no_new_privileges()
        {
            return;
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let inspection = inspect(file.as_os_str());
        assert!(matches!(inspection, Inspection::Privileged(_, Privilege::SetUserId)), "{inspection:?}");
        let (exit, text) = exit_and_text(&inspection);
        assert!(exit == 125 && text.contains("set-user-ID: the loader ignores LD_PRELOAD"), "{text}");
    }

    #[test]
    fn the_loader_as_a_command_is_dynamic() {
        let Inspection::Dynamic(program) = inspect(OsStr::new("true")) else { panic!() };
        assert!(matches!(inspect(program.loader.unwrap().as_os_str()), Inspection::Dynamic(_)));
    }

    #[test]
    fn damaged_and_foreign_programs() {
        const CLASS: usize = offset_of!(FileHeader, e_ident.class);
        const DATA: usize = offset_of!(FileHeader, e_ident.data);
        const MACHINE: usize = offset_of!(FileHeader, e_machine);
        let dir = Dir::new("damaged");
        let whole = true_bytes();
        for length in [4, 5, 63, 64, 100, 500] {
            let file = dir.file("cut", &whole[..length], 0o755);
            assert!(matches!(inspect(file.as_os_str()), Inspection::Damaged(_)), "{length} bytes");
        }
        for (offset, value, machine) in [(CLASS, 1, "32-bit"), (DATA, 2, "big-endian"), (MACHINE, 183, "ARM")]
        {
            let mut bytes = whole.clone();
            bytes[offset] = value;
            let file = dir.file("foreign", &bytes, 0o755);
            let (exit, text) = exit_and_text(&inspect(file.as_os_str()));
            assert!(exit == 125 && text.contains(machine), "{text}");
        }
    }

    /// Any byte of the headers may be wrong: there is an answer, and no panic.
    #[test]
    fn headers_changed_anywhere() {
        let dir = Dir::new("fuzz");
        let whole = true_bytes();
        let count = from_bytes::<FileHeader>(&whole).unwrap().0.e_phnum.get(LittleEndian);
        let headers = size_of::<FileHeader>() + usize::from(count) * size_of::<ProgramHeader>();
        let path = dir.file("fuzz", &whole, 0o755);
        let file = File::options().write(true).open(&path).unwrap();
        for offset in 0..headers {
            for value in [0, 1, 0x7f, 0xff] {
                file.write_all_at(&[value], offset as u64).unwrap();
                let _ = inspect_file(&path).refusal();
            }
            file.write_all_at(&whole[offset..=offset], offset as u64).unwrap();
        }
        assert!(matches!(inspect_file(&path), Inspection::Dynamic(_)));
    }

    #[test]
    fn interpreter_lines() {
        let read = |line: &[u8]| script_interpreter(line).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(read(b"#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(read(b"#! \t/usr/bin/env python3 -u\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(read(b"#!/bin/sh").as_deref(), Some("/bin/sh"));
        assert_eq!(read(b"#!\n/bin/sh"), None);
        assert_eq!(read(b"#"), None);
        let long = [b"#!/".as_slice(), &[b'a'; 300]].concat();
        assert_eq!(read(&long[..SCRIPT_LINE_BYTES_MAX]), None);
    }
}
