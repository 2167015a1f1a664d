//! A child process that is waited for with a deadline: a message when it ends, and its output read meanwhile.

use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// A longer line is cut.
pub const LINE_BYTES_MAX: u64 = 1 << 16;

/// Tells when the process ended, and leaves it to be waited for.
pub fn when_ended(pid: Pid, start: Instant) -> Receiver<Duration> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), options) {}
        let _ = sender.send(start.elapsed());
    });
    receiver
}

/// Reads a pipe to its end, so that nobody waits for us, and keeps what `keep` makes of it.
pub fn drain<R: Read + Send + 'static>(
    pipe: Option<R>,
    keep: fn(BufReader<R>) -> String,
) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = pipe {
        thread::spawn(move || sender.send(keep(BufReader::new(pipe))));
    }
    receiver
}

/// The last one that holds something, cut to 200 characters.
pub fn last_line<R: Read>(mut pipe: BufReader<R>) -> String {
    let mut last = Vec::new();
    let mut line = Vec::new();
    while (&mut pipe).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        if !line.trim_ascii().is_empty() {
            std::mem::swap(&mut last, &mut line);
        }
        line.clear();
    }
    String::from_utf8_lossy(last.trim_ascii()).chars().take(200).collect()
}
