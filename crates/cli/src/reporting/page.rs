//! The page: tables and charts of what was seen of a run. How they look is the tables crate's.

use crate::args::Options;
use crate::output::command_line;
use crate::reporting::faulted::{FAULTS_EVERY, Faulted};
use crate::reporting::history::{History, Point, Rates};
use crate::reporting::seen::{DeviceSeen, ProcessSeen};
use crate::reporting::watched::Watched;
use crate::size::{human, short};
use crate::stats::{self, Stat, Unit as StatUnit};
use memspill_engine::backing::{Link, Usage};
use memspill_pager::ctl::operator::word_of;
use memspill_pager::ctl::thrash::would_do;
use memspill_pager::door::source::Mode;
use memspill_pager::run::Run;
use memspill_pager::supervisor::Ended;
use memspill_tables::{Cell, Chart, Column, Drawn, Report, Row, Table, Unit};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of processes and mappings that are listed.
const ROWS_MAX: usize = 25;
/// Budgets that are listed differ by this part.
const BUDGETS_PARTS: u64 = 8;

/// How the report was asked for, and where.
pub struct Asked {
    /// `memspill run: COMMAND`.
    pub what: String,
    pub machine: String,
    pub mode: Mode,
}

/// All of it.
pub fn of(asked: &Asked, args: &Options, ended: &Ended, watched: &Watched) -> Report {
    let run = &ended.run;
    let time = over_time(&watched.history, watched.cost);
    let mut tables = vec![in_short(ended, watched), time, processes(run, watched)];
    tables.push(mappings(&watched.faulted));
    tables.extend([budgets(run), devices(run, watched), servers(run), groups(run)].into_iter().flatten());
    tables.extend([settings(asked, args), statistics(run)]);
    Report {
        title: crate::message::plain(&asked.what),
        command: command_line("memspill"),
        machine: asked.machine.clone(),
        seed: None,
        notes: Vec::new(),
        tables,
    }
}

// ---- how tables are made ----------------------------------------------------------------------------------

fn column(key: &'static str, name: &'static str, unit: Unit, help: &'static str) -> Column {
    Column { key, name, unit, help }
}

fn row(setting: String, cells: Vec<Cell>) -> Row {
    Row { group: String::new(), setting, cells, published: None, detail: false }
}

fn table(
    id: &'static str,
    title: &str,
    row_name: &'static str,
    columns: Vec<Column>,
    rows: Vec<Row>,
) -> Table {
    let (notes, charts) = (Vec::new(), Vec::new());
    Table { id, title: title.into(), row_name, columns, rows, notes, change: None, charts }
}

/// A column, and what it shows of a row's subject.
type Shown<T> = (Column, fn(&T) -> Cell);

fn columns_of<T>(shown: &[Shown<T>]) -> Vec<Column> {
    shown.iter().map(|(column, _)| column.clone()).collect()
}

fn cells_of<T>(shown: &[Shown<T>], of: &T) -> Vec<Cell> {
    shown.iter().map(|(_, cell)| cell(of)).collect()
}

/// Words, and how many samples these have.
fn sampled<const N: usize>(words: [Column; N], of_what: &'static str) -> Vec<Column> {
    let samples = column("samples", "samples", Unit::Count, "Faults that were looked at.");
    words.into_iter().chain([samples, column("share", "of all", Unit::Share, of_what)]).collect()
}

/// What is not listed: a row with its count and share after `words` columns.
fn others(total: u64, listed: u64, words: usize, columns: usize) -> Option<Row> {
    let left = total.checked_sub(listed).filter(|left| *left > 0)?;
    let mut cells = vec![Cell::Words(String::new()); words];
    cells.extend([number(left), share(left, total)]);
    cells.resize(columns, Cell::Nothing);
    Some(row("others".into(), cells))
}

fn words_table(id: &'static str, title: &str, rows: Vec<(&str, String)>) -> Table {
    let rows = rows.into_iter().map(|(name, words)| row(name.into(), vec![Cell::Words(words)])).collect();
    table(id, title, "", vec![column("value", "", Unit::Words, "As it was.")], rows)
}

fn number(value: u64) -> Cell {
    Cell::once(value as f64)
}

fn share(part: u64, of: u64) -> Cell {
    Cell::once(part as f64 / of.max(1) as f64)
}

fn ns(us: u64) -> Cell {
    Cell::once(us as f64 * 1e3)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn seconds(us: u64) -> String {
    memspill_tables::number::shown(us as f64 / 1e6, Unit::Seconds)
}

// ---- the tables, from above -------------------------------------------------------------------------------

fn in_short(ended: &Ended, watched: &Watched) -> Table {
    let run = &ended.run;
    let elapsed_us = run.elapsed_us();
    let pressure = run.stall.pressure();
    let of_time = |us: f64| us / elapsed_us.max(1) as f64;
    let lost = of_time(pressure.full.total_us);
    let points = watched.history.points();
    let swapped_bytes = points.iter().map(|point| point.held.swapped_bytes).max().unwrap_or(0);
    let file_bytes = points.iter().map(|point| point.held.file_bytes).max().unwrap_or(0);
    let end = match run.verdict() {
        Some(verdict) => format!("exit code {}: {}", ended.exit_code, verdict.message),
        None => format!("exit code {}", ended.exit_code),
    };
    let root = run.engine.root();
    let mut rows = vec![
        ("ended", end),
        ("took", seconds(elapsed_us)),
        (
            "budget",
            format!("{}, at the end {}", human(run.settings.memory_max_bytes), human(root.limit_bytes())),
        ),
        ("counted against it", format!("{} at most", human(root.peak_bytes()))),
        ("swapped out", format!("{} at most; {} of disk at most", human(swapped_bytes), human(file_bytes))),
        ("faults", format!("{}", run.engine.stats().sum(|counters| &counters.pgfault))),
        (
            "waited for memory",
            format!(
                "{} of the time somebody, {} nobody ran meanwhile",
                percent(of_time(pressure.some.total_us)),
                percent(lost)
            ),
        ),
    ];
    if let Some(bytes) = would_do(&run.working_set(), lost) {
        rows.push(("what would do", format!("--memory-max {}, by how long pages were away", short(bytes))));
    }
    words_table("short", "In short", rows)
}

fn over_time(history: &History, cost: Duration) -> Table {
    let shown: [Shown<(&Point, Rates)>; 11] = [
        (column("resident_bytes", "resident", Unit::Bytes, "Managed pages in memory."), |(point, _)| {
            number(point.held.resident_bytes)
        }),
        (
            column("pool_bytes", "pool", Unit::Bytes, "Pages that are swapped out, compressed in RAM."),
            |(point, _)| number(point.held.pool_bytes),
        ),
        (
            column(
                "other_bytes",
                "other",
                Unit::Bytes,
                "All else that is counted: memory that is not managed, or not yet; tables; memspill's own.",
            ),
            |(point, _)| number(point.held.other_bytes),
        ),
        (column("budget_bytes", "budget", Unit::Bytes, "--memory-max, as it was then."), |(point, _)| {
            number(point.held.budget_bytes)
        }),
        (
            column(
                "swapped_bytes",
                "swapped out",
                Unit::Bytes,
                "Pages that are swapped out, as programs see them.",
            ),
            |(point, _)| number(point.held.swapped_bytes),
        ),
        (column("file_bytes", "in files", Unit::Bytes, "Disk that swap files hold."), |(point, _)| {
            number(point.held.file_bytes)
        }),
        (column("faults_per_s", "faults", Unit::PerSecond, "Faults that reached memspill."), |(_, rates)| {
            Cell::once(rates.faults_per_s)
        }),
        (
            column(
                "pages_in_per_s",
                "pages in",
                Unit::PerSecond,
                "Pages read from slots, readahead included.",
            ),
            |(_, rates)| Cell::once(rates.pages_in_per_s),
        ),
        (column("pages_out_per_s", "pages out", Unit::PerSecond, "Pages written to slots."), |(_, rates)| {
            Cell::once(rates.pages_out_per_s)
        }),
        (
            column("stall_some", "somebody waits", Unit::Share, "At least one thread waits for memory."),
            |(_, rates)| Cell::once(rates.stall_some),
        ),
        (
            column("stall_full", "nobody runs", Unit::Share, "Somebody waits, and no thread runs meanwhile."),
            |(_, rates)| Cell::once(rates.stall_full),
        ),
    ];
    let points = history.points().iter().zip(history.rates());
    let rows = points.map(|point| {
        let name = format!("{:.3}", point.0.at_us as f64 / 1e6);
        Row { detail: true, ..row(name, cells_of(&shown, &point)) }
    });
    let chart = |title, columns, drawn, limit| Chart::Time { title, columns, drawn, limit };
    let charts = vec![
        chart(
            "Memory that counts",
            &["resident_bytes", "pool_bytes", "other_bytes"][..],
            Drawn::Stacked,
            Some("budget_bytes"),
        ),
        chart("Swapped out", &["swapped_bytes", "file_bytes"], Drawn::Lines, None),
        chart("Faults", &["faults_per_s", "pages_in_per_s", "pages_out_per_s"], Drawn::Lines, None),
        chart("Time waited for memory", &["stall_some", "stall_full"], Drawn::Lines, None),
    ];
    let mut table =
        Table { charts, ..table("time", "Over time", "seconds", columns_of(&shown), rows.collect()) };
    let cost = seconds(cost.as_micros() as u64);
    let bucket = seconds(history.bucket_us());
    table.notes = vec![
        "Until memory is near the budget nothing is managed, and all of it is \"other\".".into(),
        format!("A point for each {bucket}: of the looks in it the one with most memory; rates are means."),
        format!("To look at the run took memspill {cost} of CPU time."),
    ];
    table
}

fn processes(run: &Run, watched: &Watched) -> Table {
    let all_faults = run.engine.stats().sum(|counters| &counters.pgfault);
    let mut processes = watched.seen.processes();
    processes.retain(|seen| seen.faults > 0 || seen.resident_most_bytes > 0);
    let shown: [Shown<(&ProcessSeen, u64)>; 8] = [
        (column("command", "command", Unit::Words, "As the kernel names it."), |(seen, _)| {
            Cell::Words(seen.command.clone())
        }),
        (column("faults", "faults", Unit::Count, "Faults that reached memspill."), |(seen, _)| {
            number(seen.faults)
        }),
        (column("share", "of all", Unit::Share, "Share of all faults."), |(seen, all_faults)| {
            share(seen.faults, *all_faults)
        }),
        (
            column("resident", "resident", Unit::Bytes, "The most managed memory that it had at a look."),
            |(seen, _)| number(seen.resident_most_bytes),
        ),
        (
            column("swapped", "swapped out", Unit::Bytes, "The most that was swapped out at a look."),
            |(seen, _)| number(seen.swapped_most_bytes),
        ),
        (
            column("some", "somebody waits", Unit::Nanoseconds, "Time in which one of its threads waited."),
            |(seen, _)| ns(seen.stall_some_us),
        ),
        (
            column(
                "full",
                "nobody runs",
                Unit::Nanoseconds,
                "Of that, time in which none of its threads ran.",
            ),
            |(seen, _)| ns(seen.stall_full_us),
        ),
        (
            column("seen", "seen for", Unit::Nanoseconds, "From the first look at it to the last."),
            |(seen, _)| ns(seen.last_us - seen.first_us),
        ),
    ];
    let listed = &processes[..processes.len().min(ROWS_MAX)];
    let listed = listed.iter().map(|seen| (*seen, all_faults));
    let mut rows: Vec<Row> =
        listed.clone().map(|of| row(of.0.pid.to_string(), cells_of(&shown, &of))).collect();
    let columns = columns_of(&shown);
    let listed: u64 = listed.map(|(seen, _)| seen.faults).sum();
    rows.extend(others(all_faults, listed, 1, columns.len()));
    let mut table = table("processes", "Processes", "process", columns, rows);
    if processes.is_empty() {
        table.notes = vec!["Memory was never short: none was managed, and none has faulted.".into()];
        return table;
    }
    table.notes = vec![
        "Those with most faults. Others came and went between two looks, or did less; those of memspill's \
         own thread in each process are among theirs."
            .into(),
    ];
    table
}

fn mappings(faulted: &Faulted) -> Table {
    let total = faulted.mappings.total();
    let what = column("mapping", "mapping", Unit::Words, "What is at the addresses, by /proc/PID/maps.");
    let columns = sampled([what], "Share of those that were looked at.");
    let mut rows: Vec<Row> = Vec::new();
    let mut listed = 0;
    for ((command, place), count) in faulted.mappings.sorted().into_iter().take(ROWS_MAX) {
        listed += count;
        rows.push(row(or_unknown(command), vec![Cell::Words(place), number(count), share(count, total)]));
    }
    rows.extend(others(total, listed, 1, columns.len()));
    let mut table = table("mappings", "Who faulted most: mappings", "command", columns, rows);
    let every = FAULTS_EVERY;
    table.notes = vec![match total {
        0 => format!("No fault was looked at. (About one in {every} is.)"),
        _ => format!("About one fault in {every} was looked at."),
    }];
    if faulted.left_out > 0 {
        let left_out = faulted.left_out;
        table
            .notes
            .push(format!("{left_out} more were not, for they came too fast: their shares are unknown."));
    }
    table
}

fn or_unknown(command: String) -> String {
    if command.is_empty() { "(unknown)".into() } else { command }
}

/// What refaults say of larger budgets.
fn budgets(run: &Run) -> Option<Table> {
    let mut curve = run.working_set().curve();
    let mut last_bytes = 0;
    curve.retain(|point| {
        let is_far = point.budget_bytes >= last_bytes + last_bytes / BUDGETS_PARTS;
        last_bytes = if is_far { point.budget_bytes } else { last_bytes };
        is_far
    });
    let rows: Vec<Row> = curve
        .iter()
        .take(ROWS_MAX)
        .map(|point| row(short(point.budget_bytes), vec![Cell::once(point.refaults_left)]))
        .collect();
    let help = "Of the pages that had to be read again, the share that would have been read again even so.";
    let columns = vec![column("refaults_left", "read again even so", Unit::Share, help)];
    let mut table = table("budgets", "What a larger budget would have spared", "budget", columns, rows);
    table.charts = vec![Chart::Bars { column: "refaults_left", one_scale: true }];
    (!curve.is_empty()).then_some(table)
}

fn devices(run: &Run, watched: &Watched) -> Option<Table> {
    let shown: [Shown<(&DeviceSeen, Usage)>; 7] = [
        (column("size", "size", Unit::Bytes, "What it can hold."), |(device, _)| number(device.size_bytes)),
        (column("used", "used", Unit::Bytes, "The most that was in its slots at a look."), |(device, _)| {
            number(device.used_most_bytes)
        }),
        (column("priority", "priority", Unit::Count, "The highest fills first."), |(device, _)| {
            Cell::once(f64::from(device.priority))
        }),
        (
            column("writes", "writes", Unit::Count, "Requests to write, each of pages that lie in a row."),
            |(_, usage)| number(usage.write_ios_total),
        ),
        (column("reads", "reads", Unit::Count, "Requests to read."), |(_, usage)| {
            number(usage.read_ios_total)
        }),
        (
            column("moved", "pool to file", Unit::Count, "Compressed pages moved from the pool to the file."),
            |(_, usage)| number(usage.written_back_pages_total),
        ),
        (column("encryption", "encryption", Unit::Words, "Of what leaves RAM."), |(device, _)| {
            Cell::Words(device.encryption.into())
        }),
    ];
    let usage = run.engine.devices().ever_added().map(|device| device.backing.usage());
    let devices = watched.seen.devices.iter().zip(usage);
    let rows: Vec<Row> = devices.map(|of| row(of.0.name.clone(), cells_of(&shown, &of))).collect();
    (!rows.is_empty()).then(|| table("devices", "Swap devices", "device", columns_of(&shown), rows))
}

/// The servers of devices on exports, as they are in the end.
fn servers(run: &Run) -> Option<Table> {
    let shown: [Shown<Link>; 6] = [
        (column("state", "state", Unit::Words, "In the end."), |link| {
            Cell::Words(word_of(link.state).into())
        }),
        (
            column("round_trip", "round trip", Unit::Nanoseconds, "Median of the last reads of one page."),
            |link| link.round_trip_us.map_or(Cell::Nothing, |us| number(us * 1000)),
        ),
        (column("sent", "sent", Unit::Bytes, "Bytes that went there."), |link| number(link.sent_bytes)),
        (column("received", "received", Unit::Bytes, "Bytes that came from there."), |link| {
            number(link.received_bytes)
        }),
        (column("reconnects", "reconnects", Unit::Count, "Times that it was connected to again."), |link| {
            number(link.reconnects)
        }),
        (column("since", "for", Unit::Seconds, "How long it has been in this state."), |link| {
            number(link.since_ms / 1000)
        }),
    ];
    let devices = run.engine.devices().ever_added();
    let rows: Vec<Row> = devices
        .flat_map(|device| {
            let links = device.backing.links().into_iter().enumerate();
            links.map(|(i, link)| {
                (if i == 0 { device.name.clone() } else { format!("{} mirror", device.name) }, link)
            })
        })
        .map(|(name, link)| row(name, cells_of(&shown, &link)))
        .collect();
    (!rows.is_empty()).then(|| table("servers", "Servers", "device", columns_of(&shown), rows))
}

fn groups(run: &Run) -> Option<Table> {
    let columns = [
        ("group_memory_peak_bytes", "most", Unit::Bytes, "The most that the group held."),
        ("group_events_high", "over high", Unit::Count, "Times that it was over memory.high."),
        ("group_events_max", "at max", Unit::Count, "Times that it was at memory.max."),
        ("group_events_swap_max", "at swap.max", Unit::Count, "Times that it was at swap.max."),
    ]
    .map(|(key, name, unit, help)| column(key, name, unit, help));
    let groups = run.engine.groups().all().iter().skip(1);
    let rows: Vec<Row> = groups
        .map(|group| {
            let stats = stats::of_group(group);
            let value = |column: &Column| stats.iter().find(|stat| stat.name == column.key);
            let cell = |column| value(column).map_or(Cell::Nothing, |stat| number(stat.value));
            row(group.name.clone(), columns.iter().map(cell).collect())
        })
        .collect();
    (!rows.is_empty()).then(|| table("groups", "Memory groups", "group", columns.into(), rows))
}

fn settings(asked: &Asked, args: &Options) -> Table {
    let directory = std::env::current_dir().map_or("unknown".into(), |dir| dir.display().to_string());
    let path = |path: &Path| path.display().to_string();
    let rows = vec![
        ("memspill", env!("CARGO_PKG_VERSION").into()),
        ("written", utc(SystemTime::now())),
        ("directory", directory),
        ("machine", asked.machine.clone()),
        ("mode", crate::doctor::described(asked.mode).into()),
        ("--swap-dir", path(&args.swap_dir())),
        ("--on-full", format!("{:?}", args.on_full).to_lowercase()),
        ("--on-thrash", format!("{:?}", args.on_thrash).to_lowercase()),
        ("--max-slowdown", args.max_slowdown.to_string()),
        ("--shared", format!("{:?}", args.shared).to_lowercase()),
        ("--encrypt", format!("{:?}", args.encrypt).to_lowercase()),
        ("--keep-cpus-awake", format!("{:?}", args.keep_cpus_awake).to_lowercase()),
        ("--tune", if args.tune.is_empty() { "as it ships".into() } else { args.tune.join(" ") }),
    ];
    words_table("settings", "Settings and machine", rows)
}

fn statistics(run: &Run) -> Table {
    let shown = |stat: &Stat| {
        let unit = match stat.unit {
            StatUnit::Bytes => Unit::Bytes,
            StatUnit::Ns | StatUnit::Us => Unit::Nanoseconds,
            StatUnit::None => Unit::Count,
        };
        let scale = if stat.unit == StatUnit::Us { 1e3 } else { 1.0 };
        memspill_tables::number::shown(stat.value as f64 * scale, unit)
    };
    let rows = stats::of_run(run)
        .iter()
        .map(|stat| {
            let cells = vec![Cell::Words(shown(stat)), Cell::Words(stat.help.trim().into())];
            row(stat.name.into(), cells)
        })
        .collect();
    let columns = vec![
        column("value", "value", Unit::Words, "At the end."),
        column("help", "what it is", Unit::Words, "What is counted."),
    ];
    table("statistics", "All statistics", "name", columns, rows)
}

/// `2026-11-24 19:20:33 UTC`.
fn utc(time: SystemTime) -> String {
    let s = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, s) = (s / 86_400, s % 86_400);
    let is_leap =
        |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let day = days + 1;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporting::history::{Held, Point, Sums};

    #[test]
    fn dates() {
        let at = |s: u64| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn charts_over_time_are_of_columns_that_are_there() {
        let mut history = History::new();
        for second in 1..100u64 {
            let held = Held { budget_bytes: 64 << 20, resident_bytes: second << 19, ..Held::default() };
            let sums = Sums { faults: second * 1000, stalls_at_us: second * 1_000_000, ..Sums::default() };
            history.add(Point { at_us: second * 1_000_000, held, sums });
        }
        let table = over_time(&history, Duration::ZERO);
        assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()));
        for chart in &table.charts {
            let Chart::Time { columns, limit, .. } = chart else { panic!("{chart:?}") };
            assert!(columns.iter().chain(limit).all(|key| table.column(key).is_some()), "{chart:?}");
        }
        let (title, command, machine) = ("a <b>".into(), "x".into(), "y".into());
        let page = memspill_tables::html(&Report {
            title,
            command,
            machine,
            seed: None,
            notes: Vec::new(),
            tables: vec![table],
        });
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("resident: at most 49.5 MiB, after 1 min 39 s."), "{page}");
        assert!(page.contains("faults: at most 1.00 k/s"), "the picture in words");
        assert!(!page.contains("<table>"), "points are for the charts");
        assert!(page.len() < 200_000, "{} bytes", page.len());
    }
}
