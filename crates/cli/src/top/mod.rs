//! `memspill top`: all runs of this user on one screen, and the keys that change them.
//!
//! ```text
//!   each interval: runs (crates/ctl) ─ stats as JSON ─▶ model.rs ─▶ screen.rs   a terminal
//!                                                                          └──▶ a line each  else
//!   a key ─▶ a question ─▶ a request, on a thread of its own ─▶ what came of it, at the foot
//! ```
//!
//! The terminal is as it was afterwards, whatever happens: at the end, after signals, and before a panic says
//! its words. Signals have a thread of their own: where the terminal has gone, crossterm reads its end over
//! and over and does not come back.

mod model;
mod screen;

use crate::ctl::far;
use crate::exit;
use crate::machine::Memory;
use crate::size;
use clap::Args;
use memspill_ctl::{Request, RunSocket, runs};
use memspill_pager::signals::Interrupts;
use model::RunView;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::{Question, Screen};
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Held by who writes to the terminal.
static DRAWING: Mutex<()> = Mutex::new(());

/// The answer to a request is shown within this time.
const STEP: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    interval: f64,

    /// End after so many looks
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Lines, also on a terminal
    #[arg(long)]
    plain: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds from 0.1 to 3600".to_owned())
}

/// Returns the exit code.
pub fn top(args: &TopArgs) -> u8 {
    let shown = if args.plain || !io::stdout().is_terminal() { lines(args) } else { full_screen(args) };
    match shown {
        Ok(()) => 0,
        // Who closed the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            eprintln!("memspill: {error}");
            exit::FAILED
        }
    }
}

/// Ask all runs. One that does not answer is left out.
fn look(screen: &mut Screen) -> io::Result<()> {
    let mut answered = Vec::new();
    for run in runs()? {
        let Ok(text) = run.ask(&Request::Stats { json: true }, |_, _| (), || false) else { continue };
        let Ok(stats) = serde_json::from_str(&text) else { continue };
        screen.runs.update(run.pid, command_of(run.pid), &stats, disk_read_bytes(run.pid));
        answered.push(run.pid);
    }
    screen.runs.retain(&answered);
    screen.clamp();
    Ok(())
}

/// The command that is run, without directories: what follows memspill's own options, where `--` says so.
fn command_of(pid: u32) -> String {
    let line = crate::ctl::printable(&crate::ctl::command_line_of(pid));
    let command = line.split_once(" -- ").map_or(&line[..], |(_, command)| command);
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or_default();
    format!("{name} {arguments}").trim_end().to_owned()
}

/// What memspill has read from disks, of itself.
fn disk_read_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// Not on a terminal: a line for each run and look.
fn lines(args: &TopArgs) -> io::Result<()> {
    let mut screen = Screen::default();
    let mut out = io::stdout();
    for round in 1.. {
        look(&mut screen)?;
        for run in &screen.runs.0 {
            writeln!(out, "{}", line(run))?;
        }
        out.flush()?;
        if args.count.is_some_and(|count| round >= count) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
    unreachable!("rounds do not end")
}

fn line(run: &RunView) -> String {
    let [some, ..] = run.stall_some;
    let [full, ..] = run.stall_full;
    let disk = run.disk_read_per_s.map_or("-".to_owned(), |bytes| size::human(bytes as u64));
    format!(
        "run {}: used {} of {}, in memory {}, pool {}, file {}, swapped out {}, {:.0} faults/s, {disk}/s \
         from disk, stall {:.1} % (10 s: some {some:.1} %, full {full:.1} %), {}",
        run.pid,
        size::human(run.used_bytes),
        size::human(run.limit_bytes),
        size::human(run.resident_bytes),
        size::human(run.pool_bytes),
        size::human(run.file_bytes),
        size::human(run.swapped_bytes),
        run.faults_per_s,
        run.stall_percent,
        run.command,
    )
}

fn full_screen(args: &TopArgs) -> io::Result<()> {
    // Before there are other threads.
    let interrupts = Interrupts::block()?;
    // It also lets a panic give the terminal back first.
    let mut terminal = ratatui::try_init()?;
    let end_by_signal = move || {
        interrupts.wait();
        // Nothing is drawn any more.
        let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        give_back();
        std::process::exit(0)
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(end_by_signal);
    let result = started.and_then(|_| show(args, &mut terminal));
    give_back();
    result
}

/// The terminal, where it is still there. (ratatui's own tells stderr, and panics where that is gone too.)
fn give_back() {
    let _ = ratatui::try_restore();
}

fn show(args: &TopArgs, terminal: &mut DefaultTerminal) -> io::Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut screen = Screen::default();
    let (tell, told): (Sender<String>, Receiver<String>) = channel();
    for round in 1.. {
        look(&mut screen)?;
        let next = Instant::now() + interval;
        // A screen is drawn anew when something on it may be another: that costs a ms of CPU time.
        let mut is_changed = true;
        while Instant::now() < next {
            if let Some(message) = told.try_iter().last() {
                screen.message = message;
                is_changed = true;
            }
            if std::mem::take(&mut is_changed) {
                let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
                terminal.draw(|frame| screen.draw(frame))?;
            }
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left.min(STEP))? {
                // The size may have changed.
                is_changed = true;
                if let Event::Key(key) = event::read()?
                    && key.kind != KeyEventKind::Release
                    && press(&mut screen, key, &tell) == Pressed::Quit
                {
                    return Ok(());
                }
            }
        }
        if args.count.is_some_and(|count| round >= count) {
            return Ok(());
        }
    }
    unreachable!("rounds do not end")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pressed {
    Quit,
    GoesOn,
}

fn press(screen: &mut Screen, key: KeyEvent, tell: &Sender<String>) -> Pressed {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return Pressed::Quit;
    }
    screen.message.clear();
    match screen.question.take() {
        Some(question) => answer(screen, question, key.code, tell),
        None => match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Pressed::Quit,
            KeyCode::Up | KeyCode::Char('k') => screen.step(-1),
            KeyCode::Down | KeyCode::Char('j') => screen.step(1),
            KeyCode::Tab => screen.focus = screen.focus.next(),
            KeyCode::Char('s') => screen.order = screen.order.next(),
            KeyCode::Char('b') if screen.chosen_run().is_some() => {
                screen.question = Some(Question::Budget(String::new()));
            }
            KeyCode::Char('p') => {
                screen.question = screen.chosen_process().map(|process| Question::Pageout(process.pid));
            }
            KeyCode::Char('o') => {
                screen.question = screen.chosen_device().map(|device| Question::Swapoff(device.name.clone()));
            }
            _ => {}
        },
    }
    Pressed::GoesOn
}

/// A key while a question is asked.
fn answer(screen: &mut Screen, question: Question, key: KeyCode, tell: &Sender<String>) {
    let Some(pid) = screen.chosen_run().map(|run| run.pid) else { return };
    match (question, key) {
        (Question::Budget(mut typed), KeyCode::Char(c)) if typed.len() < 20 => {
            typed.push(c);
            screen.question = Some(Question::Budget(typed));
        }
        (Question::Budget(mut typed), KeyCode::Backspace) => {
            typed.pop();
            screen.question = Some(Question::Budget(typed));
        }
        (Question::Budget(typed), KeyCode::Enter) => match size::parse_nonzero(&typed) {
            Ok(size) => {
                let ram_bytes = Memory::of_this_machine().usable_bytes();
                let bytes = size.resolve(ram_bytes).unwrap_or(ram_bytes);
                ask(screen, pid, Request::Limit { bytes }, tell);
            }
            Err(error) => screen.message = format!("{typed}: {error}"),
        },
        (Question::Pageout(process), KeyCode::Char('y')) => {
            ask(screen, pid, Request::Pageout { pid: process, ranges: Vec::new() }, tell);
        }
        (Question::Swapoff(name), KeyCode::Char('y')) => {
            ask(screen, pid, Request::Swapoff { name }, tell);
        }
        _ => screen.message = "nothing was changed".into(),
    }
}

/// Have a request carried out. A swapoff may take minutes: it goes on beside the screen, and ends with it.
fn ask(screen: &mut Screen, pid: u32, request: Request, tell: &Sender<String>) {
    screen.message = "under way ...".into();
    let tell = tell.clone();
    let run = move || {
        let progress = |done, total| _ = tell.send(far(&request, done, total));
        let asked = |run: &RunSocket| run.ask(&request, progress, || false);
        let run = runs().ok().and_then(|runs| runs.into_iter().find(|run| run.pid == pid));
        let said = match run.as_ref().map(asked) {
            None => format!("the run {pid} has ended"),
            Some(Ok(said)) | Some(Err(said)) => said,
        };
        let _ = tell.send(crate::ctl::printable(&said).replace('\n', " "));
    };
    if let Err(error) = std::thread::Builder::new().spawn(run) {
        screen.message = format!("cannot start a thread: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_keys(screen: &mut Screen, keys: &[KeyCode]) -> (Pressed, Vec<String>) {
        let (tell, told) = channel();
        let mut last = Pressed::GoesOn;
        for key in keys {
            last = press(screen, KeyEvent::new(*key, KeyModifiers::NONE), &tell);
        }
        (last, told.try_iter().collect())
    }

    fn with_a_run() -> Screen {
        let mut screen = Screen::default();
        screen.runs.update(1, "job".into(), &model::tests::stats(1, 1, 1), None);
        screen
    }

    #[test]
    fn keys_ask_before_they_change_anything() {
        let mut screen = with_a_run();
        type_keys(&mut screen, &[KeyCode::Char('p')]);
        assert_eq!(screen.question, Some(Question::Pageout(4712)));
        type_keys(&mut screen, &[KeyCode::Char('n')]);
        assert_eq!((screen.question.clone(), screen.message.as_str()), (None, "nothing was changed"));
        type_keys(&mut screen, &[KeyCode::Char('o')]);
        assert_eq!(screen.question, Some(Question::Swapoff("default".into())));
        // Esc ends the question, and not the program.
        assert_eq!(type_keys(&mut screen, &[KeyCode::Esc]).0, Pressed::GoesOn);
        assert_eq!(type_keys(&mut screen, &[KeyCode::Char('q')]).0, Pressed::Quit);
        let (tell, _told) = channel();
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut screen, interrupt, &tell), Pressed::Quit);
    }

    #[test]
    fn a_budget_is_typed() {
        let mut screen = with_a_run();
        let keys = ['b', '3', 'x'].map(KeyCode::Char);
        type_keys(&mut screen, &keys);
        assert_eq!(screen.question, Some(Question::Budget("3x".into())));
        type_keys(&mut screen, &[KeyCode::Enter]);
        assert!(screen.question.is_none() && screen.message.starts_with("3x: "), "{}", screen.message);
        type_keys(&mut screen, &[KeyCode::Char('b'), KeyCode::Char('3'), KeyCode::Backspace]);
        assert_eq!(screen.question, Some(Question::Budget(String::new())));
    }

    #[test]
    fn without_a_run_nothing_is_asked() {
        let mut screen = Screen::default();
        for key in ['b', 'p', 'o', 's'] {
            type_keys(&mut screen, &[KeyCode::Char(key), KeyCode::Tab, KeyCode::Down]);
            assert_eq!(screen.question, None, "{key}");
        }
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "x", "NaN", "inf", "4000"] {
            assert!(parse_seconds(text).unwrap_err().contains("0.1 to 3600"), "{text}");
        }
    }
}
