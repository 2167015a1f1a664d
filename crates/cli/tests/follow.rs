//! A budget that follows the limit of the memory cgroup that the run is in. As root, where there is a
//! hierarchy of version 1 at /sys/fs/cgroup/memory; elsewhere the tests beside `budget.rs` and `machine.rs`
//! stand for it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A group, which goes with this.
struct Group(PathBuf);

impl Group {
    fn make(name: &str, limit_mib: u64) -> Option<Group> {
        // Below our own group, which may be all that we may change.
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.split_once(":memory:"))?.1.to_string();
        let root = PathBuf::from("/sys/fs/cgroup/memory");
        let path =
            root.join(own.trim_start_matches('/')).join(format!("memspill-{}-{name}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Group(path);
        group.limit(limit_mib)?;
        Some(group)
    }

    fn limit(&self, limit_mib: u64) -> Option<()> {
        fs::write(self.0.join("memory.limit_in_bytes"), (limit_mib * MIB).to_string()).ok()
    }

    /// A run in it, with its command for some seconds.
    fn run(&self, memory_max: &str) -> Child {
        let procs = self.0.join("cgroup.procs");
        Command::new("/bin/sh")
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(procs)
            .args([env!("CARGO_BIN_EXE_memspill"), "run", "-m", memory_max, "--", "sleep", "60"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may take a moment to leave it.
        let begun = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The run's budget in MiB, once it lies within these bounds; else what it was after ten seconds.
fn budget_mib(run: &Child, wanted: std::ops::Range<u64>) -> u64 {
    let begun = Instant::now();
    loop {
        let stats = Command::new(env!("CARGO_BIN_EXE_memspill"))
            .args(["ctl", "--pid", &run.id().to_string(), "stats", "--json"])
            .output()
            .unwrap();
        let text = String::from_utf8(stats.stdout).unwrap();
        let bytes = text.split("\"memory_max_bytes\": ").last().and_then(|rest| rest.split(',').next());
        let mib = bytes.and_then(|bytes| bytes.trim().parse::<u64>().ok()).unwrap_or(0) / MIB;
        if wanted.contains(&mib) || begun.elapsed() > Duration::from_secs(10) {
            return mib;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn end(mut run: Child) {
    let pid = rustix::process::Pid::from_child(&run);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    run.wait().unwrap();
}

#[test]
fn auto_and_shares_follow_the_limit() {
    let (Some(first), Some(second)) = (Group::make("auto", 400), Group::make("share", 400)) else {
        eprintln!("skipped: no memory cgroup of version 1 can be made here");
        return;
    };
    let works = Command::new(env!("CARGO_BIN_EXE_memspill")).args(["run", "-m", "64M", "true"]).status();
    if !works.unwrap().success() {
        eprintln!("skipped: memspill run does not work here");
        return;
    }
    let (auto, share) = (first.run("auto"), second.run("50%"));
    // The reserve is 48 MiB, and the kernel takes some for processes.
    let at_first = (budget_mib(&auto, 320..353), budget_mib(&share, 200..201));
    first.limit(200).unwrap();
    second.limit(200).unwrap();
    let lower = (budget_mib(&auto, 110..153), budget_mib(&share, 100..101));
    first.limit(600).unwrap();
    let higher = budget_mib(&auto, 510..553);
    // By hand: from then on nothing follows.
    let pid = auto.id().to_string();
    let limit =
        Command::new(env!("CARGO_BIN_EXE_memspill")).args(["ctl", "--pid", &pid, "limit", "77M"]).output();
    first.limit(300).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let by_hand = budget_mib(&auto, 77..78);
    end(auto);
    end(share);
    assert!((320..353).contains(&at_first.0) && at_first.1 == 200, "{at_first:?}");
    assert!((110..153).contains(&lower.0) && lower.1 == 100, "{lower:?}");
    assert!((510..553).contains(&higher), "{higher}");
    assert!(limit.unwrap().status.success());
    assert_eq!(by_hand, 77);
}
