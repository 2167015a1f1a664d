//! A directory for the files of one benchmark, gone with it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use memspill_cli::signals::Stop;

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn make(dir: &Path) -> Result<Scratch, Stop> {
        let path = dir.join(format!("memspill-bench-{}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(error) => {
                Stop::refuse(format!("{}: {error} (--dir names another directory)", path.display()))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("memspill: could not remove {}: {error}", self.0.display());
        }
    }
}
