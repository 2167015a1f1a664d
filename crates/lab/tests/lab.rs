//! The built laboratory against a shell's expectations: the same bytes for the same command, one line for
//! what is wrong, and short measurements on this machine. `memspill size` is tested here too, for its
//! workload is.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

#[path = "../../cli/tests/support/command.rs"]
mod command;

use command::{refused, run as lab, scratch_file};

const BINARY: &str = env!("CARGO_BIN_EXE_memspill-lab");

/// On a terminal of its own, by script(1).
fn on_terminal(command: &str) -> String {
    let command = format!("{} {command}", BINARY);
    let output = Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
    String::from_utf8(output.expect("script(1)").stdout).unwrap()
}

#[test]
fn progress_is_one_line_on_a_terminal_and_none_elsewhere() {
    const SIM: &str = "sim scale --cpus 1,2 --ms 1";
    let output = lab(&SIM.split(' ').collect::<Vec<_>>());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let shown = on_terminal(SIM);
    let (line, wipe) = ("\r\x1b[Kmemspill: 1 CPUs, 1 of 2", "\r\x1b[K");
    let after = shown.strip_prefix(line).unwrap_or_else(|| panic!("{shown:?}"));
    let table = after.rsplit(wipe).next().unwrap();
    assert_eq!(table.replace('\r', ""), String::from_utf8(output.stdout).unwrap());
}

#[test]
fn sim_says_what_is_wrong_with_its_options() {
    let cases: [(&[&str], &str); 13] = [
        (&["sim", "seeds", "--json", "--csv"], "cannot be used with"),
        (&["sim", "seeds", "--html", "/no/such/dir/page.html"], "there is no directory /no/such/dir"),
        (&["sim", "scale", "--html", "/"], "that is a directory"),
        (&["sim", "scale", "--cpus", "0"], "0 is not in 1..=1024"),
        (&["sim", "scale", "--tune", "nothing=1"], "there is no knob `nothing`"),
        (&["sim", "soak", "--seeds", "1", "--minutes", "1"], "cannot be used with"),
        (&["sim", "soak", "--minutes", "0"], "give minutes as 10, or 0.5"),
        (&["sim", "soak", "--minutes", "-1"], "unexpected argument '-1'"),
        (&["sim", "soak", "--seed", "18446744073709551615", "--seeds", "1"], "there are no seeds above"),
        (&["sim", "policy", "--memory", "100"], "100 is not in 1024..=1048576"),
        (&["sim", "policy", "--signal", "telepathy"], "invalid value 'telepathy'"),
        (&["sim", "policy", "/no/such/file"], "cannot read /no/such/file: No such file"),
        (
            &["sim", "policy", "/proc/version"],
            "/proc/version: this is no recording of `memspill run --record`",
        ),
    ];
    for (arguments, expected) in cases {
        let (code, message) = refused(arguments);
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn sim_prints_the_same_bytes_for_the_same_command() {
    let output = |arguments: &[&str]| {
        let output = lab(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "progress is for terminals");
        output.stdout
    };
    let scale = ["sim", "scale", "--cpus", "1,6", "--ms", "2"];
    for form in [&[][..], &["--json"], &["--csv"], &["--markdown"]] {
        let command = [&scale[..], form].concat();
        assert_eq!(output(&command), output(&command));
    }
    assert_eq!(output(&["sim", "soak", "--seeds", "5"]), output(&["sim", "soak", "--seeds", "5"]));
    let policy = ["sim", "policy", "--memory", "1024", "--touches", "10", "--csv"];
    assert_eq!(output(&policy), output(&policy));
    let seeds = ["sim", "seeds", "--thread", "003", "--ms", "1", "--seeds", "1", "--csv"];
    let seeds = String::from_utf8(output(&seeds)).unwrap();
    for table in ["003", "figures"] {
        assert!(
            seeds.lines().any(|line| line.starts_with(&format!("{table},"))),
            "{table} is missing: {seeds}"
        );
    }

    let page = scratch_file("page.html", b"", 0o644);
    let command = [&scale[..], &["--html", page.to_str().unwrap()]].concat();
    let pages = [(); 2].map(|()| {
        output(&command);
        fs::read_to_string(&page).unwrap()
    });
    assert_eq!(pages[0], pages[1]);
    assert!(pages[0].contains("<svg"), "{}", pages[0]);
    fs::remove_file(page).unwrap();
}

#[test]
fn a_soak_ends_after_its_minutes() {
    let begun = Instant::now();
    let output = lab(&["sim", "soak", "--minutes", "0.02"]);
    let took = begun.elapsed().as_secs_f64();
    assert!((1.2..8.0).contains(&took), "{took} s");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" histories, seeds 1 to "), "{text}");
}

/// A short run of one table on real memory, where this machine can run anything under memspill.
#[test]
fn bench_seeds_measures_on_this_machine() {
    let probe = lab(&["run", "-m", "64M", "--", "true"]);
    if !probe.status.success() {
        eprintln!("skipped: memspill run does not work here: {}", String::from_utf8_lossy(&probe.stderr));
        return;
    }
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-seeds-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let page = dir.join("page.html");
    let output = lab(&[
        "bench",
        "seeds",
        "001",
        "--quick",
        "--pairs",
        "1",
        "--csv",
        "--html",
        page.to_str().unwrap(),
        "--dir",
        dir.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.is_empty(), "progress is for terminals: {stderr}");
    let csv = String::from_utf8(output.stdout).unwrap();
    let pages_per_s = |setting: &str| -> Vec<f64> {
        let lines = csv.lines().filter(|line| line.contains(&format!("{setting},throughput,")));
        lines.map(|line| line.rsplit(',').nth(4).unwrap().parse().unwrap()).collect()
    };
    for setting in ["slot-batch=1 cache-batch=1", "slot-batch=64 cache-batch=32"] {
        let rates = pages_per_s(setting);
        assert_eq!(rates.len(), 4, "of two workloads, with the locks of then and of now: {csv}");
        assert!(rates.iter().all(|rate| *rate > 100.0), "{rates:?}");
    }
    assert!(fs::read_to_string(&page).unwrap().contains("001 batches"));
    fs::remove_file(page).unwrap();
    fs::remove_dir(&dir).expect("nothing else is left behind");
}

#[test]
fn bench_seeds_says_what_is_wrong_with_its_options() {
    let cases: [(&[&str], &str); 4] = [
        (&["bench", "seeds", "005"], "[possible values: 000, 001, 002, 003, 004]"),
        (&["bench", "seeds", "--pairs", "0"], "0 is not in 1..=1000"),
        (&["bench", "seeds", "--json", "--markdown"], "cannot be used with"),
        (&["bench", "seeds", "--html", "/no/such/dir/page.html"], "there is no directory"),
    ];
    for (arguments, expected) in cases {
        let (code, message) = refused(arguments);
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

/// Touches at random of 48 MiB: next to all of it is needed, and more than half of that for sure.
#[test]
fn size_finds_a_budget() {
    if !lab(&["run", "-m", "64M", "--", "true"]).status.success() {
        eprintln!("skipped: memspill run does not work here");
        return;
    }
    let page = scratch_file("size.html", b"", 0o644);
    let own = BINARY;
    // However fast the machine is, it takes long enough to be judged.
    let job = format!("sleep 0.7; {own} bench workload pmbench --size 48M --seconds 600 --ops 250000");
    let options = ["size", "--within", "50%", "--json", "--html", page.to_str().unwrap(), "--"];
    let output = lab(&[&options[..], &["sh", "-c", &job]].concat());
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert!(stderr.is_empty(), "progress is for terminals: {stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let rows = &report["tables"][0]["rows"];
    let bytes = |row: usize| rows[row]["cells"]["memory_max_bytes"]["median"].as_f64().unwrap();
    let (peak_mib, budget_mib) = (bytes(0) / 1_048_576.0, bytes(1) / 1_048_576.0);
    assert!((48.0..80.0).contains(&peak_mib) && (26.0..=80.0).contains(&budget_mib), "{stdout}");
    assert!(stdout.contains(&format!("{budget_mib}M is enough to be within 50 %")), "{stdout}");
    assert!(stdout.contains("at least so slow"), "half of it is far too little: {stdout}");
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    fs::remove_file(page).unwrap();
}
