//! One line on a terminal that says how far something is that takes long: what is done and what is left.
//!
//! ```text
//!   memspill: swapoff ram:: 12288 of 40000 pages, 9 s left
//! ```
//!
//! The line is written over in place, a few times a second, and is wiped at the end; lines that stay go above
//! it. If stderr is no terminal, there is neither. The time left supposes that the rest goes as what is done
//! went.
//!
//! What it does not do: find out how far something is.

use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines.
const EVERY: Duration = Duration::from_millis(100);
/// After less than this nothing can be said of the time left.
const JUDGED_AFTER: Duration = Duration::from_secs(1);
/// Where a terminal does not tell its width.
const COLUMNS_DEFAULT: usize = 80;

pub struct Progress {
    on_terminal: bool,
    began: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub fn begin() -> Progress {
        Progress { on_terminal: std::io::stderr().is_terminal(), began: Instant::now(), shown: None }
    }

    /// This text, and the time that is left where `done` of `total` are done.
    pub fn show_left(&mut self, text: &str, done: u64, total: u64) {
        self.show(&format!("{text}{}", time_left(self.began.elapsed(), done, total)));
    }

    pub fn show(&mut self, text: &str) {
        if !self.on_terminal || self.shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = format!("memspill: {}", crate::message::plain(text));
        eprint!("\r\x1b[K{}", cut(&line, columns()));
        let _ = std::io::stderr().flush();
    }

    /// A line that stays, and after it one of progress at once.
    pub fn note(&mut self, text: &str) {
        if self.on_terminal {
            self.clear();
            eprintln!("memspill: {text}");
        }
    }

    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A line that is as long as the terminal is wide would go on in the next one, and could not be wiped.
fn columns() -> usize {
    let told = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if told == 0 { COLUMNS_DEFAULT } else { told }
}

fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns.saturating_sub(1)).collect()
}

/// `, 9 s left`; empty where it cannot be said.
fn time_left(so_far: Duration, done: u64, total: u64) -> String {
    if done == 0 || so_far < JUDGED_AFTER {
        return String::new();
    }
    let left = total.saturating_sub(done);
    let seconds = (so_far.as_secs_f64() * left as f64 / done as f64).ceil() as u64;
    match seconds {
        0 => String::new(),
        1..100 => format!(", {seconds} s left"),
        100..6000 => format!(", {} min left", seconds.div_ceil(60)),
        _ => format!(", {} h left", seconds.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_in_words() {
        let left = |seconds, done, total| time_left(Duration::from_secs(seconds), done, total);
        assert_eq!(left(0, 5, 10), "", "too early to say");
        assert_eq!(left(10, 0, 10), "", "nothing is known");
        assert_eq!(left(10, 10, 10), "");
        assert_eq!(left(10, 12, 10), "", "more than there were");
        assert_eq!(left(10, 5, 10), ", 10 s left");
        assert_eq!(left(3, 2, 3), ", 2 s left");
        assert_eq!(left(60, 1, 3), ", 2 min left");
        assert_eq!(left(3600, 1, 4), ", 3 h left");
        assert_eq!(left(u64::from(u32::MAX), 1, u64::MAX), format!(", {} h left", u64::MAX.div_ceil(3600)));
    }

    #[test]
    fn a_line_fits_the_terminal() {
        assert_eq!(cut("memspill: é", 80), "memspill: é");
        assert_eq!(cut("memspill: é", 11), "memspill: ");
        assert_eq!(cut("memspill", 0), "");
    }
}
