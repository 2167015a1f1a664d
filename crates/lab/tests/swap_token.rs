//! Threads that thrash, and the swap token: on up to two CPUs some wait for the one that has it, on more
//! nobody does, and every page is right either way. The workload checks each page; its four threads touch
//! 128 MiB at random in 80.

use std::process::Command;

/// How many faults waited for the token. Skips, and says so, where this mode does not work.
fn waits(mode: &[&str]) -> Option<u64> {
    let memspill = || Command::new(env!("CARGO_BIN_EXE_memspill-lab"));
    if !memspill()
        .args(["run", "-m", "64M"])
        .args(mode)
        .args(["--", "true"])
        .output()
        .unwrap()
        .status
        .success()
    {
        eprintln!("skipped: memspill run {mode:?} does not work here");
        return None;
    }
    let output = memspill()
        .args(["run", "-m", "80M", "--swap", "ram:", "--check", "--stats=all"])
        .args(mode)
        .args(["--", env!("CARGO_BIN_EXE_memspill-lab"), "bench", "workload", "pmbench", "--size", "128M"])
        .args(["--threads", "4", "--contents", "half", "--check", "full", "--seconds", "2"])
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let is_right = output.status.success() && stdout.contains("\"bad_pages\":0");
    assert!(is_right, "{mode:?}: {stdout}{stderr}");
    let words = stderr.lines().find_map(|line| line.strip_prefix("memspill: token_wait "));
    let words = words.unwrap_or_else(|| panic!("{stderr}"));
    Some(words.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn others_wait_while_one_is_served() {
    let serves_alone = std::thread::available_parallelism().unwrap().get() <= 2;
    for mode in [&["--mode=kernel"][..], &["--mode=agent"], &["--holes=guard"]] {
        let Some(waited) = waits(mode) else { continue };
        assert_eq!(waited > 0, serves_alone, "{mode:?}: {waited} faults have waited");
    }
}
