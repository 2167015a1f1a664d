//! How `memspill top` looks: the state of the screen, drawn by ratatui.
//!
//! ```text
//!   title
//!   runs            a line each; one is chosen
//!   of that one     memory, stall and faults over the last minutes
//!                   its processes and groups; its devices
//!   keys, or a question, or what came of the last one
//! ```
//!
//! It fits into 80 columns and 24 lines; what does not fit is left out from below, devices and runs scroll.

use super::model::{DeviceView, Order, ProcessView, RunView, Runs, ServerView};
use crate::size::human;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Sparkline, Table, TableState};

/// Which list the arrow keys move in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Focus {
    Runs,
    #[default]
    Processes,
    Devices,
}

impl Focus {
    pub fn next(self) -> Focus {
        match self {
            Focus::Runs => Focus::Processes,
            Focus::Processes => Focus::Devices,
            Focus::Devices => Focus::Runs,
        }
    }
}

/// A question at the foot of the screen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// The budget, as typed so far.
    Budget(String),
    /// Page this process out?
    Pageout(u32),
    /// Switch this device off?
    Swapoff(String),
}

#[derive(Default)]
pub struct Screen {
    pub runs: Runs,
    pub focus: Focus,
    pub order: Order,
    pub run: usize,
    pub process: usize,
    pub device: usize,
    pub question: Option<Question>,
    pub message: String,
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
const KEYS: &str = "q quit  tab list  s sort  b budget  p page out  o device off";
/// Above this share of the time lost a figure is red, above half of it yellow.
const MUCH_PERCENT: f64 = 20.0;

impl Screen {
    pub fn chosen_run(&self) -> Option<&RunView> {
        self.runs.0.get(self.run)
    }

    pub fn chosen_process(&self) -> Option<ProcessView> {
        self.order.sorted(&self.chosen_run()?.processes).get(self.process).cloned()
    }

    pub fn chosen_device(&self) -> Option<&DeviceView> {
        self.chosen_run()?.devices.get(self.device)
    }

    /// Nothing is chosen that is not there any more.
    pub fn clamp(&mut self) {
        let within = |at: usize, length: usize| at.min(length.saturating_sub(1));
        self.run = within(self.run, self.runs.0.len());
        let (processes, devices) =
            self.chosen_run().map_or((0, 0), |run| (run.processes.len(), run.devices.len()));
        (self.process, self.device) = (within(self.process, processes), within(self.device, devices));
    }

    pub fn step(&mut self, by: isize) {
        let at = match self.focus {
            Focus::Runs => &mut self.run,
            Focus::Processes => &mut self.process,
            Focus::Devices => &mut self.device,
        };
        *at = at.saturating_add_signed(by);
        self.clamp();
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        let runs = self.runs.0.len().clamp(1, 5) as u16;
        let devices = self.chosen_run().map_or(0, |run| run.devices.len().min(3)) as u16;
        let [title, list, of_run, trends, processes, below, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1 + runs),
            Constraint::Length(3),
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(1 + devices),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_title(frame, title);
        self.draw_runs(frame, list);
        if let Some(run) = self.chosen_run() {
            draw_memory(frame, of_run, run);
            draw_trends(frame, trends, run);
            self.draw_processes(frame, processes, run);
            self.draw_devices(frame, below, run);
        }
        self.draw_foot(frame, foot);
    }

    fn draw_title(&self, frame: &mut Frame<'_>, area: Rect) {
        let what = match self.runs.0.len() {
            0 => "no run of ours is under way: memspill run -m SIZE -- COMMAND starts one".to_owned(),
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        };
        let line = Line::from(vec![Span::styled("memspill top", BOLD), Span::raw(format!("  {what}"))]);
        frame.render_widget(Paragraph::new(line), area);
    }

    fn draw_runs(&self, frame: &mut Frame<'_>, area: Rect) {
        let head = ["PID", "BUDGET", "USED", "POOL", "FILE", "FAULT/s", "DISK/s", "STALL", "COMMAND"];
        let rows = self.runs.0.iter().map(|run| {
            Row::new(vec![
                right(run.pid.to_string(), 7),
                right(short(run.limit_bytes), 6),
                right(percent(run.used_bytes, run.limit_bytes), 5),
                right(short(run.pool_bytes), 6),
                right(short(run.file_bytes), 6),
                right(rate(run.faults_per_s), 7),
                right(run.disk_read_per_s.map_or("-".into(), |bytes| short(bytes as u64)), 6),
                stall(run.stall_percent),
                Line::raw(run.command.clone()),
            ])
        });
        let widths =
            [7, 6, 5, 6, 6, 7, 6, 6].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let head = head.iter().enumerate().map(|(at, name)| match at {
            8 => Line::raw(*name),
            _ => Line::raw(*name).right_aligned(),
        });
        let table = Table::new(rows, widths)
            .header(Row::new(head).style(DIM))
            .row_highlight_style(self.style(Focus::Runs));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(self.run)));
    }

    fn style(&self, of: Focus) -> Style {
        if self.focus == of { CHOSEN } else { Style::new() }
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect, run: &RunView) {
        let sorted = |order: Order, name: &str| {
            let mark = if self.order == order { "▾" } else { "" };
            Line::raw(format!("{mark}{name}")).right_aligned()
        };
        let head = Row::new(vec![
            sorted(Order::Pid, "PROCESS"),
            sorted(Order::Resident, "MEMORY"),
            sorted(Order::Swapped, "SWAPPED"),
            sorted(Order::Faults, "FAULT/s"),
            sorted(Order::Stall, "STALL"),
            Line::raw("10 s").right_aligned(),
            Line::raw("COMMAND"),
        ]);
        let of_processes = self.order.sorted(&run.processes).into_iter().map(|process| {
            Row::new(vec![
                right(process.pid.to_string(), 8),
                right(human(process.resident_bytes), 10),
                right(human(process.swapped_bytes), 10),
                right(rate(process.faults_per_s), 8),
                stall(process.stall_percent),
                stall(process.stall_avg10),
                Line::raw(process.command),
            ])
        });
        let of_groups = run.groups.iter().map(|group| {
            Row::new(vec![
                right("group".into(), 8),
                right(human(group.used_bytes), 10),
                right(human(group.swapped_bytes), 10),
                Line::raw(""),
                Line::raw(""),
                Line::raw(""),
                Line::raw(group.name.clone()),
            ])
        });
        let widths = [8, 10, 10, 8, 6, 6].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let table = Table::new(of_processes.chain(of_groups), widths)
            .header(head.style(DIM))
            .row_highlight_style(self.style(Focus::Processes));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(self.process)));
    }

    fn draw_devices(&self, frame: &mut Frame<'_>, area: Rect, run: &RunView) {
        let head = ["DEVICE", "SIZE", "USED", "STATE", "ENCRYPTION", "SERVER"];
        let has_servers = run.devices.iter().any(|device| device.server.is_some());
        let head = head.iter().take(if has_servers { 6 } else { 5 }).enumerate().map(|(at, name)| match at {
            1 | 2 => Line::raw(*name).right_aligned(),
            _ => Line::raw(*name),
        });
        let rows = run.devices.iter().map(|device| {
            Row::new(vec![
                Line::raw(device.name.clone()),
                right(human(device.size_bytes), 10),
                right(human(device.used_bytes), 10),
                Line::raw(device.state.clone()),
                Line::raw(device.encryption.clone()),
                Line::raw(device.server.map_or(String::new(), server)),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(8),
            Constraint::Length(11),
            Constraint::Length(if has_servers { 22 } else { 0 }),
        ];
        let table = Table::new(rows, widths)
            .header(Row::new(head).style(DIM))
            .row_highlight_style(self.style(Focus::Devices));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(self.device)));
    }

    fn draw_foot(&self, frame: &mut Frame<'_>, area: Rect) {
        let line = match &self.question {
            Some(Question::Budget(typed)) => Line::from(vec![
                Span::styled("new budget (such as 3G): ", BOLD),
                Span::raw(format!("{typed}▏")),
            ]),
            Some(Question::Pageout(pid)) => {
                Line::styled(format!("page out all of process {pid}?  y yes, other keys no"), BOLD)
            }
            Some(Question::Swapoff(name)) => {
                Line::styled(format!("switch {name} off?  y yes, other keys no"), BOLD)
            }
            None if !self.message.is_empty() => Line::raw(self.message.clone()),
            None => Line::styled(KEYS, DIM),
        };
        frame.render_widget(Paragraph::new(line), area);
    }
}

/// What the budget is spent on, as a bar and in words.
fn draw_memory(frame: &mut Frame<'_>, area: Rect, run: &RunView) {
    let [_, bar, words] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let width = usize::from(bar.width);
    let part = |bytes: u64| (bytes as u128 * width as u128 / u128::from(run.limit_bytes.max(1))) as usize;
    let in_memory = part(run.resident_bytes).min(width);
    let pool = part(run.pool_bytes).min(width - in_memory);
    let other_bytes = run.used_bytes.saturating_sub(run.resident_bytes + run.pool_bytes);
    let other = part(other_bytes).min(width - in_memory - pool);
    let room = width - in_memory - pool - other;
    let line = Line::from(vec![
        Span::styled("█".repeat(in_memory), Style::new().fg(Color::Green)),
        Span::styled("▓".repeat(pool), Style::new().fg(Color::Cyan)),
        Span::styled("▒".repeat(other), Style::new().fg(Color::Yellow)),
        Span::styled("░".repeat(room), DIM),
    ]);
    frame.render_widget(Paragraph::new(line), bar);
    let ratio = run.pool_holds_bytes as f64 / run.pool_bytes.max(1) as f64;
    // One that holds few pages is its own tables, for the most part: 0.0 would say nothing.
    let ratio = if ratio >= 0.1 { format!(" ({ratio:.1} : 1)") } else { String::new() };
    let text = format!(
        "█ memory {}  ▓ pool {}{ratio}  ▒ other {}  swapped out {}",
        short(run.resident_bytes),
        short(run.pool_bytes),
        short(other_bytes),
        short(run.swapped_bytes),
    );
    frame.render_widget(Paragraph::new(text), words);
}

/// The last minutes.
fn draw_trends(frame: &mut Frame<'_>, area: Rect, run: &RunView) {
    let [stalls, faults] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let [some, _, full] = run.stall_some;
    let figures = format!("{:>5.1} %  10 s {some:.0} %, 300 s {full:.0} %", run.stall_percent);
    trend(frame, stalls, "stall ", &figures, run.stalls.iter().map(|percent| *percent as u64), Some(100));
    let figures = format!("{:>7} /s", rate(run.faults_per_s));
    trend(frame, faults, "faults", &figures, run.faults.iter().map(|rate| *rate as u64), None);
}

fn trend(
    frame: &mut Frame<'_>,
    area: Rect,
    name: &str,
    figures: &str,
    values: impl Iterator<Item = u64>,
    most: Option<u64>,
) {
    let [left, middle, right] =
        Layout::horizontal([Constraint::Length(7), Constraint::Fill(1), Constraint::Length(30)]).areas(area);
    let values: Vec<u64> = values.collect();
    let shown = &values[values.len().saturating_sub(usize::from(middle.width))..];
    frame.render_widget(Paragraph::new(name), left);
    let mut line = Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan));
    if let Some(most) = most {
        line = line.max(most);
    }
    frame.render_widget(line, middle);
    frame.render_widget(Paragraph::new(format!(" {figures}")), right);
}

fn right(text: String, width: usize) -> Line<'static> {
    Line::raw(format!("{text:>width$}"))
}

/// How long it takes to read a page, and what went out and came in.
fn server(ServerView { round_trip_us, sent_bytes, received_bytes }: ServerView) -> String {
    format!("{round_trip_us} us, >{} <{}", short(sent_bytes), short(received_bytes))
}

fn stall(percent: f64) -> Line<'static> {
    let colour = match percent {
        much if much >= MUCH_PERCENT => Some(Color::Red),
        some if some >= MUCH_PERCENT / 2.0 => Some(Color::Yellow),
        _ => None,
    };
    Line::styled(format!("{percent:>4.0} %"), colour.map_or(Style::new(), |colour| Style::new().fg(colour)))
}

/// At most six characters.
fn short(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G", "T", "P"] {
        if value < 999.5 || unit == "P" {
            let digits = usize::from(value < 9.95 && unit != "B");
            return format!("{value:.digits$}{unit}");
        }
        value /= 1024.0;
    }
    unreachable!("the last unit takes every number")
}

fn rate(per_second: f64) -> String {
    match per_second {
        few if few < 9999.5 => format!("{few:.0}"),
        many if many < 9_999_500.0 => format!("{:.0}k", many / 1e3),
        more => format!("{:.0}M", more / 1e6),
    }
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / of.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::stats;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(runs: u32) -> Screen {
        let mut screen = Screen::default();
        for round in 1..=70 {
            for run in 0..runs {
                let command = format!("python3 train.py --data /srv/a/long/path/{run}");
                let answer = stats(round, round * round * 90, round * 330_000);
                screen.runs.update(4711 + run * 100, command, &answer, Some(round * (3 << 20)));
            }
        }
        screen
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn all_of_it_fits_80_by_24() {
        let text = drawn(&screen(2), 80, 24);
        for words in [
            "memspill top  2 runs",
            "BUDGET",
            "4811   100M  96 %    20M   140M",
            "█ memory 60M  ▓ pool 20M (3.0 : 1)  ▒ other 16M  swapped out 200M",
            "stall ",
            "33.0 %  10 s 40 %, 300 s 5 %",
            "▾STALL",
            "4712   30.0 MiB    1.0 MiB",
            "group   10.0 MiB    5.0 MiB",
            "default",
            "aes-256-gcm",
            "140 us, >5.0M <1.0M",
            "q quit",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn no_size_and_no_state_is_too_odd() {
        for runs in [0, 1, 9] {
            for (width, height) in [(1, 1), (20, 5), (80, 24), (200, 60)] {
                let mut screen = screen(runs);
                for focus in [Focus::Runs, Focus::Processes, Focus::Devices] {
                    screen.focus = focus;
                    (0..20).for_each(|_| screen.step(1));
                    drawn(&screen, width, height);
                    (0..20).for_each(|_| screen.step(-1));
                }
                screen.question = Some(Question::Budget("3G".into()));
                drawn(&screen, width, height);
            }
        }
        assert!(drawn(&Screen::default(), 80, 24).contains("no run of ours is under way"));
    }

    #[test]
    fn what_is_chosen_stays_within() {
        let mut screen = screen(1);
        screen.step(5);
        assert_eq!(screen.chosen_process().map(|process| process.pid), Some(4720));
        screen.focus = screen.focus.next();
        screen.step(5);
        assert_eq!(
            screen.chosen_device().map(|device| device.name.as_str()),
            Some("nbd://store.example/swap")
        );
        screen.runs.retain(&[]);
        screen.clamp();
        assert!(screen.chosen_process().is_none() && screen.chosen_device().is_none());
    }

    #[test]
    fn figures_are_short() {
        for (bytes, text) in
            [(0, "0B"), (999, "999B"), (1000, "1.0K"), (1 << 20, "1.0M"), (150 << 30, "150G")]
        {
            assert_eq!(short(bytes), text);
        }
        assert!((0..64).all(|power| short((1u64 << power) - 1).len() <= 6 && short(1 << power).len() <= 6));
        assert_eq!([0.4, 999.0, 12_345.0, 2e7].map(rate), ["0", "999", "12k", "20M"]);
    }
}
