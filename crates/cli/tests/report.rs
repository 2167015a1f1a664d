//! `memspill run --report`: the page of a real program; of one that is
//! killed; and files that cannot be written.
//!
//! Needs a machine on which `memspill run` starts; else the cases that need one say so, and pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MEMSPILL: &str = env!("CARGO_BIN_EXE_memspill");

/// Touches 96 MiB that do not compress well, in order, again and again, in one function.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static long touch_all_of_it(unsigned char *bytes, size_t length) {
    long sum = 0;
    for (size_t i = 0; i < length; i += 4096)
        sum += bytes[i]++;
    return sum;
}

int main(int argc, char **argv) {
    size_t length = 96u << 20;
    unsigned long value = 88172645463325252ul;
    unsigned char *bytes = malloc(length);
    for (size_t i = 0; i < length; i += 8) {
        value ^= value << 13, value ^= value >> 7, value ^= value << 17;
        *(unsigned long *)(bytes + i) = i % 32 ? value : 0;
    }
    long sum = 0;
    for (int round = atoi(argv[1]); round > 0; round--)
        sum += touch_all_of_it(bytes, length);
    printf("%d\n", sum != 0);
}
"#;

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("memspill-report-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The program above, compiled. None: there is no C compiler, or no `memspill run` here.
    fn program(&self) -> Option<String> {
        if !memspill(&["-m", "64M", "--", "true"]).status.success() {
            println!("skipped: memspill run does not start on this machine");
            return None;
        }
        let (source, program) = (self.file("hot.c"), self.file("hot"));
        fs::write(&source, PROGRAM).unwrap();
        let status = Command::new("cc").args(["-O1", "-o", &program, &source]).status();
        assert!(status.expect("cc, which the build takes too").success());
        Some(program)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn memspill(arguments: &[&str]) -> Output {
    Command::new(MEMSPILL).arg("run").args(arguments).output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn page(path: &str) -> String {
    let page = fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "a whole page");
    for outside in ["http:", "https:", "src=", "href=", "url(", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    page
}

/// The row of a table that begins with these words.
fn row_of<'a>(page: &'a str, head: &str) -> &'a str {
    let from = page.find(&format!("<th scope=\"row\">{head}</th>"));
    let row = &page[from.unwrap_or_else(|| panic!("no row {head:?} in {page}"))..];
    &row[..row.find("</tr>").unwrap()]
}

#[test]
fn what_faults_is_named() {
    let folder = Folder::new("named");
    let Some(program) = folder.program() else { return };
    let report = folder.file("page.html");
    let output = memspill(&["-m", "32M", "--report", &report, "--", &program, "6"]);
    assert!(output.status.success() && output.stdout == b"1\n", "{}", words(&output));
    let page = page(&report);
    for title in ["In short", "Over time", "Processes", "Swap devices", "Settings and machine"] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert_eq!(page.matches("<div class=\"scroll time\">").count(), 4, "charts over time");
    assert!(row_of(&page, "ended").contains("exit code 0"));
    assert!(row_of(&page, "hot").contains("[anon] 64 to 128 MiB"), "{}", row_of(&page, "hot"));
}

#[test]
fn a_run_that_is_ended_has_a_report_too() {
    let folder = Folder::new("ended");
    let Some(program) = folder.program() else { return };
    // Swap is too small: memspill ends the run.
    let report = folder.file("full.html");
    let output =
        memspill(&["-m", "32M", "--swap", "ram:,size=16M", "--report", &report, "--", &program, "1000"]);
    assert_eq!(output.status.code(), Some(137), "{}", words(&output));
    let full = page(&report);
    assert!(row_of(&full, "ended").contains("exit code 137: killed: "), "{}", row_of(&full, "ended"));
    // Somebody ends it; what was in the file before goes.
    let report = folder.file("ended.html");
    fs::write(&report, "x".repeat(1 << 20)).unwrap();
    let mut run = Command::new(MEMSPILL)
        .args(["run", "-m", "32M", "--report", &report, "--", &program, "100000"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
    let begun = Instant::now();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(row_of(&page(&report), "ended").contains("exit code 130"));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_the_command_starts() {
    let folder = Folder::new("unwritable");
    let witness = folder.file("witness");
    let (nowhere, directory) = (folder.file("no/page.html"), folder.0.to_str().unwrap().to_owned());
    for (path, reason) in [(nowhere, "no such directory"), (directory, "is a directory")] {
        let output = memspill(&["-m", "64M", "--report", &path, "--", "touch", &witness]);
        if words(&output).contains("memspill doctor") {
            println!("skipped: memspill run does not start on this machine");
            return;
        }
        assert_eq!(output.status.code(), Some(125));
        let line = words(&output);
        assert!(line.starts_with("memspill: --report ") && line.contains(reason), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(!Path::new(&witness).exists());
    }
    let report = folder.file("left.html");
    let output =
        memspill(&["-m", "64M", "--report", &report, "--swap", "file:/nowhere/x,size=1G", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(!Path::new(&report).exists(), "no empty file of a run that did not begin");
    let full = memspill(&["-m", "64M", "--report", "/dev/full", "--", "true"]);
    assert!(full.status.success() && words(&full).contains("cannot write /dev/full"), "{}", words(&full));
}
