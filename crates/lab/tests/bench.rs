//! `memspill-lab bench compare` on this machine: both sides finish, and whatever its end, the machine is
//! as it was.
//!
//! Needs root, a memory cgroup and zram; says so and passes where they are not there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One at a time: the tests look at what is left on the whole machine.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

const ZSWAP: &str = "/sys/module/zswap/parameters";

/// Whether the kernel's side can be set up here.
fn able() -> bool {
    let cgroup = ["/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cgroup.controllers"];
    let able = rustix::process::geteuid().is_root()
        && cgroup.iter().any(|path| Path::new(path).exists())
        && Path::new("/sys/class/zram-control/hot_add").exists();
    if !able {
        eprintln!("skipped: needs root, a memory cgroup and zram");
    }
    able
}

/// All that a comparison sets up: swap, zram devices, zswap's settings, cgroups, files.
#[derive(PartialEq, Debug)]
struct Machine {
    swaps: String,
    zswap: [Option<String>; 2],
    found: Vec<PathBuf>,
}

fn machine() -> Machine {
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let names: Vec<&str> = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    let mut found: Vec<PathBuf> = Vec::new();
    for (folder, start) in [
        ("/sys/block", "zram"),
        ("/sys/fs/cgroup", "memspill-bench-"),
        ("/sys/fs/cgroup/memory", "memspill-bench-"),
        ("/var/tmp", "memspill-bench-"),
    ] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        found
            .extend(entries.filter(|e| e.file_name().to_string_lossy().starts_with(start)).map(|e| e.path()));
    }
    found.sort();
    let zswap = ["enabled", "compressor"].map(|name| fs::read_to_string(Path::new(ZSWAP).join(name)).ok());
    Machine { swaps: names.join(" "), zswap, found }
}

fn compare(words: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_memspill-lab"))
        .args(["bench", "compare"])
        .args(words.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Exit code, stdout, stderr.
fn end(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

const WORK: &str = "--workload populate --size 96M";

#[test]
fn both_sides_finish_and_nothing_is_left() {
    if !able() {
        return;
    }
    let _turn = turn();
    for kind in ["zram", "file", "zswap"] {
        if kind == "zswap" && !Path::new(ZSWAP).exists() {
            eprintln!("skipped: this kernel has no zswap");
            continue;
        }
        let before = machine();
        let json = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{kind}.json"));
        let words = format!("--quick --pairs 1 --kernel-swap {kind} --json {} {WORK}", json.display());
        let (code, table, told) = end(compare(&words));
        assert_eq!(code, 0, "{kind}: {told}{table}");
        assert!(table.contains("pages_per_s") && !table.contains("failed"), "{kind}: {table}");
        let raw = fs::read_to_string(&json).unwrap();
        assert_eq!(raw.matches("\"bad_pages\": 0").count(), 2, "{kind}: {raw}");
        assert_eq!(raw.matches("\"failed\": null").count(), 2, "{kind}: {raw}");
        let swapped =
            raw.split("\"pswpout\": ").nth(1).and_then(|rest| rest.split([',', '}']).next()?.parse().ok());
        assert!(swapped.is_some_and(|pages: u64| pages > 5000), "{kind}: {raw}");
        assert_eq!(machine(), before, "{kind}");
    }
}

/// In the middle: while the kernel's swap is on, and while memspill runs. A cgroup that is gone has no
/// process left.
#[test]
fn an_interrupted_comparison_leaves_nothing() {
    if !able() {
        return;
    }
    let _turn = turn();
    // A shell that starts us in the background may have SIGINT ignored, and then it stays so.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 2 != 0;
    let (signal, code) = if ignored { ("-TERM", 143) } else { ("-INT", 130) };
    for memspill in [false, true] {
        let before = machine();
        // While the kernel's swap is on, with zswap where there is one: then that is to be switched off too.
        let swap = if !memspill && Path::new(ZSWAP).exists() { "zswap" } else { "zram" };
        let bench = compare(&format!("--quick --pairs 50 --ratio 0.5 --kernel-swap {swap} {WORK}"));
        let pid = bench.id();
        let end_by = Instant::now() + Duration::from_secs(60);
        // With a ratio given, the first pair's kernel's side is the first to swap.
        while if memspill { !runs_memspill(pid) } else { machine().swaps == before.swaps } {
            assert!(Instant::now() < end_by, "it did not come so far");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_ne!(machine(), before);
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        let (found, _, told) = end(bench);
        assert_eq!(found, code, "memspill {memspill}: {told}");
        assert_eq!(machine(), before, "memspill {memspill}: {told}");
    }
}

fn descendants(parent: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_whitespace().map(String::from).collect()
}

fn runs_memspill(bench: u32) -> bool {
    descendants(bench).iter().any(|child| {
        fs::read_to_string(format!("/proc/{child}/cmdline"))
            .is_ok_and(|line| line.contains("\0run\0--memory-max"))
    })
}

#[test]
fn a_limit_above_what_the_command_takes_is_refused() {
    if !able() {
        return;
    }
    let _turn = turn();
    let before = machine();
    let (code, table, told) = end(compare("--limit 64M -- true"));
    assert_eq!((code, table.as_str()), (1, ""), "{told}");
    assert!(told.starts_with("memspill: nothing would be swapped") && told.lines().count() == 1, "{told}");
    let (code, _, told) = end(compare("-- false"));
    assert_eq!(code, 1);
    assert!(told.contains("fails without any limit, too: exit code 1"), "{told}");
    assert_eq!(machine(), before);
}
