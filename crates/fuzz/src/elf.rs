//! What a command's file is (`crates/cli/src/exec.rs`). An input is the file.

use crate::assert_one_line;
use memspill_cli::exec::{Inspection, inspect_file};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

thread_local! {
    /// The file, and the name by which it is opened: in RAM, and gone with this process.
    static FILE: (File, PathBuf) = {
        let file = rustix::fs::memfd_create("memspill-fuzz", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("memfd_create");
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        (File::from(file), path)
    };
}

pub fn check(input: &[u8]) {
    let (inspection, path) = FILE.with(|(file, path)| {
        file.set_len(input.len() as u64).expect("memory for the input");
        file.write_all_at(input, 0).expect("memory for the input");
        (inspect_file(path), path.clone())
    });
    // In one that is refused for more than what is in the file (a path that is not there), that is said too.
    if let Some((exit, line)) = inspection.refusal() {
        assert!((125..=127).contains(&exit));
        assert_one_line(&line);
    }
    match &inspection {
        Inspection::Dynamic(program) if program.loaded == program.command => {
            assert!(is_native(input), "not a program of this machine");
            // Only the loader has none. One that is found is a path that stands in the file.
            let loader = program.loader.as_deref().expect("not by this name");
            assert!(loader.exists() && stands_in(loader, input), "{loader:?}");
        }
        Inspection::Static(program) | Inspection::Privileged(program, _)
            if program.loaded == program.command =>
        {
            assert!(is_native(input), "not a program of this machine");
        }
        Inspection::Foreign(program, _) | Inspection::Damaged(program) => {
            assert!(program.loaded != program.command || input.starts_with(b"\x7fELF"));
        }
        Inspection::NoInterpreter { script, interpreter } if *script == path => {
            assert!(stands_in(interpreter, input), "{interpreter:?}");
        }
        Inspection::NotFound(_) => panic!("it was there"),
        _ => {}
    }
}

fn is_native(input: &[u8]) -> bool {
    const X86_64: [u8; 2] = [62, 0];
    input.starts_with(b"\x7fELF\x02\x01") && input[18..20] == X86_64
}

fn stands_in(path: &Path, input: &[u8]) -> bool {
    let path = path.as_os_str().as_bytes();
    path.is_empty() || input.windows(path.len()).any(|window| window == path)
}
