//! Finds the memspill command: `$MEMSPILL`, what the program has named, beside the library, in PATH.

use crate::error::Error;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Set by the program: the wheel knows where pip has put the command.
static NAMED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Name the command, for what has it in a place of its own. `$MEMSPILL` goes before it.
pub fn name(path: PathBuf) {
    *NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(path);
}

/// A command of this library's version.
pub fn find() -> Result<PathBuf, Error> {
    let command = match std::env::var_os("MEMSPILL").filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => places().find(|path| is_command(path)).ok_or(Error::NoCommand)?,
    };
    let answer = Command::new(&command).arg("--version").stdin(Stdio::null()).output();
    let answer = answer.map_err(|error| Error::NotACommand(command.clone(), error))?;
    let said = String::from_utf8_lossy(&answer.stdout);
    let found = said.lines().next().unwrap_or_default().to_owned();
    if found != concat!("memspill ", env!("CARGO_PKG_VERSION")) {
        return Err(Error::Version { command, found });
    }
    Ok(command)
}

fn places() -> impl Iterator<Item = PathBuf> {
    let named = NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    let beside = library().and_then(|path| path.parent().map(Path::to_owned));
    let beside =
        beside.into_iter().flat_map(|folder| [folder.join("memspill"), folder.join("../bin/memspill")]);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path: Vec<PathBuf> = std::env::split_paths(&paths).map(|folder| folder.join("memspill")).collect();
    named.into_iter().chain(beside).chain(in_path)
}

fn is_command(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The file of this library, or of the program that it is part of.
fn library() -> Option<PathBuf> {
    let inside = library as *const () as usize;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let range = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
        let (from, to) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let path = &line[line.iter().position(|byte| *byte == b'/')?..];
        (address(from)?..address(to)?).contains(&inside).then(|| PathBuf::from(OsStr::from_bytes(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_this_program() {
        assert_eq!(library(), std::env::current_exe().ok());
    }
}
