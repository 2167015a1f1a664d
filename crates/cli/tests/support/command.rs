//! A built binary, `BINARY` of the test that includes this file, is run as a shell would run it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

pub fn run(arguments: &[&str]) -> Output {
    Command::new(super::BINARY).args(arguments).output().unwrap()
}

/// The single line on stderr, and the exit code; stdout must be empty, as it belongs to the command.
pub fn refused(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{arguments:?} wrote to stdout");
    assert!(stderr.starts_with("memspill: "), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    (output.status.code().unwrap(), stderr)
}

pub fn scratch_file(name: &str, contents: &[u8], mode: u32) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}
