//! `--json`, `--csv`, `--markdown` and `--html FILE`: a report in the form that was asked for.

use crate::message::words;
use clap::Args;
use memspill_tables::{Form, Report};
use rustix::fs::{Access, access};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct OutputArgs {
    /// Print JSON: all numbers, with their spread
    #[arg(long)]
    json: bool,

    /// Print CSV: a line for each number
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Print Markdown tables
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    markdown: bool,

    /// Also write one HTML page with charts to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl OutputArgs {
    /// Is there a reason why the page cannot be written? Asked before hours are measured for it.
    pub fn check_page_path(&self) -> Result<(), String> {
        check_page_path(self.html.as_deref())
    }

    /// Returns the exit code.
    pub fn write(&self, report: &Report) -> u8 {
        self.write_from(report, 0)
    }

    /// Print what is new of a report that grows by tables: of its text `printed` bytes have been. In the
    /// other forms it is printed in the end.
    pub fn write_so_far(&self, report: &Report, printed: &mut usize) {
        if self.form() == Form::Text {
            let text = Form::Text.of(report);
            print(&text[*printed..]);
            *printed = text.len();
        }
    }

    /// The rest of it. Returns the exit code.
    pub fn write_from(&self, report: &Report, printed: usize) -> u8 {
        if let Some(path) = &self.html
            && let Err(e) = std::fs::write(path, memspill_tables::html(report))
        {
            eprintln!("memspill: cannot write {}: {e}", path.display());
            return 1;
        }
        print(&self.form().of(report)[printed..])
    }

    fn form(&self) -> Form {
        match self {
            OutputArgs { json: true, .. } => Form::Json,
            OutputArgs { csv: true, .. } => Form::Csv,
            OutputArgs { markdown: true, .. } => Form::Markdown,
            _ => Form::Text,
        }
    }
}

/// The same of any page.
pub fn check_page_path(path: Option<&Path>) -> Result<(), String> {
    check_path("--html", path)
}

/// The same of any file that is written in the end, which `option` names.
pub fn check_path(option: &str, path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let shown = path.display();
    if path.is_dir() {
        return Err(format!("{option} {shown}: that is a directory; name a file in it"));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return Err(format!("{option} {shown}: there is no directory {}", dir.display()));
    }
    let is_there = path.exists();
    let written = if is_there { path } else { dir };
    match access(written, Access::WRITE_OK) {
        Err(error) => {
            let what = if is_there { "it" } else { "in its directory" };
            Err(format!("{option} {shown}: this user may not write {what}: {}", words(&error.into())))
        }
        Ok(()) => Ok(()),
    }
}

/// A reader that has closed the pipe has seen enough. Returns the exit code.
pub fn print(text: &str) -> u8 {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("memspill: cannot write: {error}");
            1
        }
        _ => 0,
    }
}

/// The command line of this process, which is `program`, as one would type it.
pub fn command_line(program: &str) -> String {
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once(program.to_string()).chain(words).collect::<Vec<_>>().join(" ")
}

/// For a shell: words of harmless characters as they are.
fn quoted(word: &str) -> String {
    let harmless = |c: char| c.is_alphanumeric() || "-_=./,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(harmless) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("--cpus=1,2"), "--cpus=1,2");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
