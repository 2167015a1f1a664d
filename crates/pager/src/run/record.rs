//! `--record`: faults go to a file in the order in which they are served, for `memspill-lab sim policy`.
//!
//! The file is bounded: what comes after so many faults is counted, and not written. A write that fails ends
//! the recording, not the run. The form is `fault_trace.rs` of the engine.

use memspill_engine::fault_trace::{FAULT_BYTES, HEADER, Touch};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, PoisonError};

/// The most that a recording takes on disk.
pub const FILE_MAX_BYTES: u64 = 256 << 20;
const FAULTS_MAX: u64 = (FILE_MAX_BYTES - HEADER.len() as u64) / FAULT_BYTES as u64;

/// The file that a run's faults are written to, if they are.
#[derive(Default)]
pub struct Recording(Option<Mutex<Out>>);

struct Out {
    file: BufWriter<File>,
    recorded: Recorded,
}

/// What came of a recording.
#[derive(Default, Debug)]
pub struct Recorded {
    pub written: u64,
    /// Beyond what the file may hold, or after a write failed.
    pub left_out: u64,
    pub error: Option<io::Error>,
}

impl Recording {
    pub fn to(file: File) -> Recording {
        let mut file = BufWriter::with_capacity(1 << 16, file);
        let error = file.write_all(&HEADER).err();
        Recording(Some(Mutex::new(Out { file, recorded: Recorded { error, ..Recorded::default() } })))
    }

    pub fn note(&self, touch: Touch) {
        let Some(out) = &self.0 else { return };
        let Out { file, recorded } = &mut *out.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded.written < FAULTS_MAX && recorded.error.is_none() {
            recorded.error = file.write_all(&touch.to_bytes()).err();
        }
        let is_written = recorded.written < FAULTS_MAX && recorded.error.is_none();
        *if is_written { &mut recorded.written } else { &mut recorded.left_out } += 1;
    }

    /// Everything is in the file. None: there is no recording.
    pub fn end(&self) -> Option<Recorded> {
        let mut out = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let flushed = out.file.flush();
        let recorded = std::mem::take(&mut out.recorded);
        Some(Recorded { error: recorded.error.or(flushed.err()), ..recorded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine::fault_trace;
    use memspill_engine::units::{SpaceId, Vpn};
    use std::io::{Read, Seek};

    const TOUCH: Touch = Touch { space: SpaceId(3), vpn: Vpn(9), write: true };

    #[test]
    fn what_is_noted_is_in_the_file() {
        let mut file =
            File::from(rustix::fs::memfd_create("recording", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let recording = Recording::to(file.try_clone().unwrap());
        (0..1000).for_each(|_| recording.note(TOUCH));
        let recorded = recording.end().unwrap();
        assert!(recorded.error.is_none());
        assert_eq!((recorded.written, recorded.left_out), (1000, 0));
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert!(fault_trace::read(&bytes).unwrap().eq([TOUCH; 1000]));
    }

    #[test]
    fn a_file_that_is_full_ends_the_recording_alone() {
        let recording = Recording::to(File::options().write(true).open("/dev/full").unwrap());
        (0..20_000).for_each(|_| recording.note(TOUCH));
        let recorded = recording.end().unwrap();
        assert_eq!(recorded.error.unwrap().kind(), io::ErrorKind::StorageFull);
        assert!(recorded.left_out > 0 && recorded.written + recorded.left_out == 20_000);
        assert!(Recording::default().end().is_none());
    }
}
