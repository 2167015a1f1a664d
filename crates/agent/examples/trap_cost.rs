//! The cost of a system call as it is and trapped (`src/agent/trap/`), in ns:
//!
//!     cargo run --release -p memspill-agent --example trap_cost
//!
//! The program runs itself with the agent and without, in turns, so that both meet the same noise; it prints
//! the median of the turns, the least and the most.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "system calls to be timed")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Instant;

const TURNS: usize = 11;
const CALLS: u32 = 100_000;
/// Traps without a supervisor.
const TEST_AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemspill_agent_test.so"));
const INSIDE: &str = "MEMSPILL_TRAP_COST";

fn time(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// The three calls, in ns each.
fn measure() -> [f64; 3] {
    let zero = File::open("/dev/zero").unwrap();
    let mut buffer = vec![1u8; 4096];
    let mut read = |len: usize| {
        let (fd, at) = (zero.as_raw_fd(), buffer.as_mut_ptr());
        time(|| assert_eq!(unsafe { libc::read(fd, at.cast(), len) }, len as isize))
    };
    let (one, page) = (read(1), read(4096));
    [time(|| assert!(unsafe { libc::getppid() } > 0)), one, page]
}

fn run(agent: Option<&std::path::Path>) -> [f64; 3] {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(INSIDE, "1");
    if let Some(agent) = agent {
        command.env("LD_PRELOAD", agent).env("MEMSPILL_DISPATCH", "1");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

fn main() {
    if std::env::var_os(INSIDE).is_some() {
        let [a, b, c] = measure();
        println!("{a} {b} {c}");
        return;
    }
    let agent = std::env::temp_dir().join(format!("memspill-trap-cost-{}.so", std::process::id()));
    std::fs::write(&agent, TEST_AGENT_SO).unwrap();
    let (mut plain, mut trapped) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        plain.push(run(None));
        trapped.push(run(Some(&agent)));
    }
    std::fs::remove_file(&agent).unwrap();
    println!("{:<24} {:>24} {:>28}", "ns a call", "as it is", "trapped");
    for (index, name) in ["getppid", "read of 1 byte", "read of 4 KiB"].into_iter().enumerate() {
        let row = |turns: &[[f64; 3]]| {
            let mut values: Vec<f64> = turns.iter().map(|turn| turn[index]).collect();
            values.sort_by(f64::total_cmp);
            format!("{:.0} ({:.0} to {:.0})", values[TURNS / 2], values[0], values[TURNS - 1])
        };
        println!("{name:<24} {:>24} {:>28}", row(&plain), row(&trapped));
    }
}
