//! `memspill run --report FILE`: one page about a run, written when it has ended, however it did.
//!
//! ```text
//!   before the command   FILE is opened: where it cannot be written, nothing starts          open
//!   thread, now and then run ─▶ history.rs   what is held, sums                              watched.rs
//!                            ─▶ seen.rs      processes, devices
//!                            ─▶ faulted.rs   the faults that pagers have noted (run/sampling.rs), with
//!                                            places.rs: what is at their addresses
//!   the end              page.rs ─▶ FILE                                                     end
//! ```
//!
//! All that is kept is bounded (tally.rs), and so is the time it takes: after a look that took long the next
//! one is later. Without a request there is no thread and no sample.
//!
//! What it does not do: survive a memspill that is killed with -9; then FILE is as it was, or empty.

mod faulted;
mod history;
mod page;
mod places;
mod seen;
mod tally;
mod watched;

pub use places::find as find_places;

use crate::args::Options;
use memspill_pager::door::source::Mode;
use memspill_pager::run::Run;
use memspill_pager::run::sampling::Sampling;
use memspill_pager::supervisor::Ended;
use memspill_tables::Report;
use page::Asked;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use watched::Watched;

/// The part of one CPU that looks may take.
const LOOK_PART: u32 = 50;
/// A look at least so often, however long buckets are.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A report in the making.
pub struct Reporting {
    path: PathBuf,
    file: File,
    /// FILE was not there before.
    is_new: bool,
    asked: Asked,
    watched: Mutex<Watched>,
}

impl Reporting {
    /// None: no report is wanted. An error: it cannot be written.
    pub fn open(args: &Options, mode: Mode, what: &str) -> Result<Option<Arc<Reporting>>, String> {
        let Some(path) = &args.report else { return Ok(None) };
        let (file, is_new) = open(path).map_err(|e| {
            format!("--report {}: {}: name a file that can be written", path.display(), describe(&e))
        })?;
        Ok(Some(Arc::new(Reporting {
            path: path.clone(),
            file,
            is_new,
            asked: Asked { what: what.into(), machine: crate::machine::described(), mode },
            watched: Mutex::new(Watched::new()),
        })))
    }

    /// What pagers are to note.
    pub fn sampling(&self) -> Sampling {
        Sampling::every(faulted::FAULTS_EVERY)
    }

    /// The run has begun: look at it until it ends.
    pub fn watch(self: &Arc<Reporting>, run: &Arc<Run>) -> io::Result<()> {
        let (reporting, run) = (self.clone(), run.clone());
        let thread = std::thread::Builder::new().name("memspill-report".into()).stack_size(256 << 10);
        thread.spawn(move || {
            while !run.is_stopping() {
                std::thread::sleep(reporting.look(&run));
            }
        })?;
        Ok(())
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time to the next one.
    fn look(&self, run: &Run) -> Duration {
        let begun = Instant::now();
        let mut watched = self.watched();
        if run.is_stopping() {
            return Duration::ZERO;
        }
        watched.look(run);
        let every = Duration::from_micros(watched.history.bucket_us());
        every.min(LOOK_MAX).max(begun.elapsed() * LOOK_PART)
    }

    /// The run has ended: the page is written.
    pub fn end(&self, args: &Options, ended: &Ended) {
        let run = &ended.run;
        let mut watched = self.watched();
        watched.end(run);
        let report = page::of(&self.asked, args, ended, &watched);
        if let Err(e) = self.write(&report) {
            eprintln!("memspill: cannot write {}: {e}", self.path.display());
        }
    }

    fn write(&self, report: &Report) -> io::Result<()> {
        let mut file = &self.file;
        // A pipe has neither length nor place.
        if file.set_len(0).is_ok() {
            file.rewind()?;
        }
        file.write_all(memspill_tables::html(report).as_bytes())
    }

    /// The run did not begin: no empty file stays.
    pub fn discard(&self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An existing file is kept until there is a page. True: nothing was there.
fn open(path: &Path) -> io::Result<(File, bool)> {
    match File::options().write(true).create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Ok((File::options().write(true).open(path)?, false))
        }
        opened => opened.map(|file| (file, true)),
    }
}

fn describe(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::NotFound => "there is no such directory".into(),
        io::ErrorKind::IsADirectory => "that is a directory".into(),
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_until_there_is_a_page() {
        let path = std::env::temp_dir().join(format!("memspill-report-{}", std::process::id()));
        std::fs::write(&path, "the old one").unwrap();
        assert!(!open(&path).unwrap().1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the old one");
        std::fs::remove_file(&path).unwrap();
        assert!(open(&path).unwrap().1);
        std::fs::remove_file(&path).unwrap();
        let error = |path: &str| describe(&open(Path::new(path)).unwrap_err());
        assert_eq!(error("/nowhere/x"), "there is no such directory");
        assert_eq!(error("/tmp"), "that is a directory");
    }
}
