//! The built binary against a shell's expectations: exit codes, one line on stderr, nothing on stdout.
//!
//! Here belongs what a user sees when the command line, the command or the machine is wrong. What options
//! mean is tested beside their parsers (args.rs, size.rs, spec.rs), and what doctor says of other machines in
//! doctor/tests.rs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[path = "support/command.rs"]
mod command;

use command::{refused, run as memspill, scratch_file};

const BINARY: &str = env!("CARGO_BIN_EXE_memspill");

#[test]
fn a_wrong_command_line_of_run_is_125() {
    let cases: [(&[&str], &str); 13] = [
        (&["run"], "--memory-max <SIZE> <COMMAND>..."),
        (&["run", "true"], "--memory-max"),
        (&["run", "-m", "1G"], "<COMMAND>"),
        (&["run", "-m", "1X", "true"], "unknown unit \"X\""),
        (&["run", "-m", "-1G", "true"], "a size cannot be negative"),
        (&["run", "-m", "0", "true"], "must be more than zero"),
        (&["run", "-m", "1G", "--stat", "true"], "; a similar argument exists: '--stats'"),
        (&["run", "-m", "1G", "--swap", "zram:", "true"], "unknown kind of swap \"zram:\""),
        (&["run", "-m", "1G", "--swap", "file:", "true"], "file: needs a path"),
        (&["run", "-m", "1G", "--swap", "ram:,size=1G,size=2G", "true"], "size= is given twice"),
        (&["run", "-m", "1G", "--swap", "ram:,prio=-2", "true"], "0 to 32767"),
        (&["run", "-m", "1G", "--on-full", "cry", "true"], "[possible values: kill, grow]"),
        (&["run", "-m", "1G", "--tune", "slot-batch", "true"], "NAME=VALUE"),
    ];
    for (arguments, words) in cases {
        let (exit, line) = refused(arguments);
        assert_eq!(exit, 125, "{line}");
        assert!(line.contains(words), "{line}");
        assert!(line.ends_with("(see memspill run --help)\n"), "{line}");
    }
}

#[test]
fn what_a_newcomer_types_is_answered_with_what_would_do() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&["python3", "job.py"], 2, "to run a command: memspill run -m 2G -- COMMAND"),
        (&["-m", "1G", "python3"], 2, "to run a command: memspill run -m 2G -- COMMAND"),
        (&["run", "python3", "job.py"], 125, "such as: memspill run -m 2G -- python3"),
        (&["run", "-m", "100", "true"], 125, "a size without a unit is in bytes, 100M is 100 MiB"),
        (&["run", "-m", "1M", "true"], 125, "at least 8.0 MiB are needed\n"),
        (&["run", "-m", "64M", "--swap-dir", "/no/such", "true"], 125, "make it, or name another directory"),
        (&["run", "-m", "64M", "--stats-json", "/no/such/x", "true"], 125, "is no directory /no/such"),
        (&["run", "-m", "64M", "--record", "/tmp", "true"], 125, "name a file in it"),
    ];
    for (arguments, code, words) in cases {
        let (exit, line) = refused(arguments);
        assert!(exit == code && line.contains(words) && !line.contains("os error"), "{exit} {line}");
    }
}

#[test]
fn the_command_is_in_this_directory_and_not_in_path() {
    let file = scratch_file("here", b"#!/bin/sh\n", 0o755);
    let name = file.file_name().unwrap().to_str().unwrap();
    let mut command = Command::new(BINARY);
    let output =
        command.args(["run", "-m", "64M", name]).current_dir(file.parent().unwrap()).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains(&format!("not found in PATH; the one in this directory is ./{name}")), "{line}");
    assert_eq!(output.status.code(), Some(127));
    fs::remove_file(file).unwrap();
}

#[test]
fn what_cannot_be_printed_is_an_error_and_no_panic() {
    for arguments in [&["run", "--tune", "help"][..], &["completions", "bash"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(BINARY);
        let output = command.args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(output.stderr.starts_with(b"memspill: cannot write"), "{arguments:?}: {output:?}");
    }
}

#[test]
fn man_pages_are_of_all_that_help_shows() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    assert!(memspill(&["man", dir.to_str().unwrap()]).status.success());
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for name in ["memspill.1", "memspill-size.1", "memspill-ctl-swapoff.1"] {
        assert!(page(name).contains(".TH "), "{name}");
    }
    let run = page("memspill-run.1");
    assert!(run.contains("\\-\\-memory\\-max") && run.contains(".SH EXAMPLES"), "{run}");
    assert!(!run.contains("thrash\\-window"), "that is hidden");
    fs::remove_dir_all(&dir).unwrap();
    let (exit, line) = refused(&["man", "/proc/none"]);
    assert!(exit == 1 && line.contains("cannot write man pages to /proc/none"), "{line}");
}

#[test]
fn a_swap_file_that_cannot_be_made_is_said_with_its_mend() {
    let spec = "file:/no/such/directory/swap,size=1G";
    let (exit, line) = refused(&["run", "-m", "1G", "--swap", spec, "true"]);
    assert_eq!(exit, 125, "{line}");
    assert!(line.ends_with("swap: there is no directory /no/such/directory\n"), "{line}");
}

#[test]
fn any_other_wrong_command_line_is_2() {
    for arguments in [&["rum"][..], &["--bogus"], &["doctor", "--bogus"], &["doctor", "extra"]] {
        assert_eq!(refused(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn a_wrong_command_line_of_ctl_is_2() {
    let cases: [(&[&str], &str); 6] = [
        (&["ctl", "swapof", "x"], "swapof"),
        (&["ctl", "swapoff"], "<NAME> (see memspill ctl swapoff --help)"),
        (&["ctl", "limit", "0"], "must be more than zero"),
        (&["ctl", "--pid", "1", "--all", "swaps"], "cannot be used with"),
        (&["ctl", "--pid", "x", "swaps"], "--pid"),
        (&["ctl", "pageout", "1", "0x1000"], "FROM-TO in hexadecimal"),
    ];
    for (arguments, words) in cases {
        let (exit, line) = refused(arguments);
        assert!(exit == 2 && line.contains(words), "{line}");
    }
}

#[test]
fn without_a_subcommand_there_is_help_and_2() {
    for (arguments, words) in [(&[][..], "memspill run"), (&["ctl"], "swapoff")] {
        let output = memspill(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{text}");
        assert!(text.contains("Usage: memspill") && text.contains(words), "{text}");
    }
}

#[test]
fn asking_a_run_that_is_not_there_is_1() {
    let own = std::process::id().to_string();
    let (exit, line) = refused(&["ctl", "--pid", &own, "swaps"]);
    assert_eq!(
        (exit, line),
        (1, format!("memspill: no run of ours has process id {own}: see memspill ctl list\n"))
    );
    let (exit, line) = refused(&["ctl", "--pid", &own, "swapon", "zram:"]);
    assert!(exit == 1 && line.contains(&own), "{line}");
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let (exit, line) = refused(&["run", "-m", "1G", "no-such-command"]);
    assert_eq!((exit, line.as_str()), (127, "memspill: no-such-command was not found in PATH\n"));
    assert_eq!(refused(&["run", "-m", "1G", "/no/such/command"]).0, 127);
    let script = scratch_file("lost", b"#!/no/such/interpreter\n", 0o755);
    let (exit, line) = refused(&["run", "-m", "1G", script.to_str().unwrap()]);
    assert!(exit == 127 && line.contains("/no/such/interpreter, which was not found"), "{line}");
    fs::remove_file(script).unwrap();
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let file = scratch_file("plain", b"text", 0o644);
    let (exit, line) = refused(&["run", "-m", "1G", file.to_str().unwrap()]);
    assert!(exit == 126 && line.contains("cannot be executed: permission denied (chmod +x"), "{line}");
    fs::remove_file(file).unwrap();
    let (exit, line) = refused(&["run", "-m", "1G", "/"]);
    assert_eq!((exit, line.as_str()), (126, "memspill: / cannot be executed: it is a directory\n"));
    let cut = scratch_file("cut", b"\x7fELF\x02\x01\x01", 0o755);
    let (exit, line) = refused(&["run", "-m", "1G", cut.to_str().unwrap()]);
    assert!(exit == 126 && line.contains("not a complete ELF file"), "{line}");
    fs::remove_file(cut).unwrap();
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["-h"], &["run", "--help"], &["ctl", "--help"], &["doctor", "--help"]]
    {
        let output = memspill(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: memspill"), "{text}");
    }
    let version = memspill(&["--version"]).stdout;
    assert_eq!(String::from_utf8(version).unwrap(), format!("memspill {}\n", env!("CARGO_PKG_VERSION")));
}

/// Wider than a terminal is hard to read, and a README shows it as it is.
#[test]
fn help_fits_100_columns() {
    let text = String::from_utf8(memspill(&["run", "--help"]).stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for words in ["Examples:", "Exit status:", "--memory-max", "125", "Not counted:"] {
        assert!(text.contains(words), "{words}");
    }
}

/// The exit code and the marks agree, whatever machine this is.
#[test]
fn doctor_answers_on_any_machine() {
    let output = memspill(&["doctor", "-v"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let fails = text.lines().any(|line| line.starts_with("FAIL"));
    assert_eq!(output.status.code(), Some(i32::from(fails)), "{text}");
    assert!(output.stderr.is_empty());
    assert!(text.contains("kernel") && text.contains("/dev/userfaultfd"), "{text}");
    assert!(!text.contains('\x1b'), "colour without a terminal");
}

#[test]
fn doctor_looks_at_the_directory_it_is_told() {
    let by_option = memspill(&["doctor", "--swap-dir", "/no/such/dir"]).stdout;
    assert!(String::from_utf8(by_option).unwrap().contains("/no/such/dir"));
    let by_variable = Command::new(BINARY).arg("doctor").env("MEMSPILL_DIR", "/no/dir").output().unwrap();
    assert!(String::from_utf8(by_variable.stdout).unwrap().contains("/no/dir"));
}

/// A closed pipe is success (or what doctor found); any other failure to write is a failure.
#[test]
fn stdout_that_cannot_be_written() {
    let mut child = Command::new(BINARY).arg("--help").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());

    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(BINARY).arg("doctor").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("memspill: cannot write to stdout"));
}

#[test]
fn size_says_why_it_cannot_judge() {
    assert_eq!(refused(&["size", "no-such-command"]).0, 127);
    assert_eq!(refused(&["size"]).0, 2);
    let (code, line) = refused(&["size", "--within", "0%", "true"]);
    assert!(code == 2 && line.contains("from 1% to 1000%"), "{line}");
    let (code, line) = refused(&["size", "--html", "/no/such/dir/page.html", "true"]);
    assert!(code == 2 && line.contains("there is no directory"), "{line}");
    if !memspill(&["run", "-m", "64M", "--", "true"]).status.success() {
        eprintln!("skipped: memspill run does not work here");
        return;
    }
    let (code, line) = refused(&["size", "--", "sh", "-c", "echo no data >&2; exit 3"]);
    assert!(code == 1 && line.contains("exit code 3, \"no data\""), "{line}");
    let (code, line) = refused(&["size", "true"]);
    assert!(code == 1 && line.contains("too short to judge"), "{line}");
    let (code, line) = refused(&["size", "--run-option=--bogus", "true"]);
    assert!(code == 1 && line.contains("--bogus"), "{line}");
}

/// tmpfs is no place for a swap file: it is told, or passed over where nobody has named it.
#[test]
fn a_swap_directory_in_ram_is_noticed() {
    let run = |variable: &str| {
        let mut command = Command::new(BINARY);
        command.args(["run", "-m", "64M", "true"]).env_remove("MEMSPILL_DIR").env_remove("TMPDIR");
        command.env(variable, "/dev/shm").output().unwrap()
    };
    if !memspill(&["run", "-m", "64M", "--", "true"]).status.success() {
        eprintln!("skipped: memspill run does not work here");
        return;
    }
    let (named, passed_over) = (run("MEMSPILL_DIR"), run("TMPDIR"));
    let line = String::from_utf8(named.stderr).unwrap();
    assert!(
        named.status.success() && line.starts_with("memspill: swap directory /dev/shm is in RAM"),
        "{line}"
    );
    assert!(passed_over.status.success() && passed_over.stderr.is_empty(), "{passed_over:?}");
}

#[test]
fn a_budget_that_the_machine_has_not_is_told() {
    let output = memspill(&["run", "-m", "1P", "--", "true"]);
    let line = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        assert!(line.starts_with("memspill: --memory-max 1.0 PiB is more than the "), "{line}");
        assert!(line.contains("-m auto") && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn an_automatic_budget_does_not_grow_besides() {
    let (code, line) = refused(&["run", "-m", "auto", "--on-thrash=grow", "true"]);
    assert!(code == 125 && line.contains("leave out --on-thrash=grow"), "{line}");
}
