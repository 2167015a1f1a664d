//! A program that a test runs to its end: what it has written; and the agent with the doors of tests.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "names for all of the tests")]
#[path = "../../src/doors.rs"]
pub mod doors;

/// The agent whose doors are open (`doors.rs`).
pub const TEST_AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemspill_agent_test.so"));

const TIMEOUT: Duration = Duration::from_secs(60);

/// The output of a command, if it ends in time.
pub fn output(command: &mut Command) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = std::thread::spawn(move || {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| std::io::copy(&mut stderr, &mut err).unwrap());
            std::io::copy(&mut stdout, &mut out).unwrap();
        });
        (out, err)
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} (process {id}) does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (stdout, stderr) = read.join().unwrap();
    Output { status, stdout, stderr }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
