//! The statistics as OpenMetrics text: `memspill ctl metrics`, and `memspill run --metrics`.
//!
//! ```text
//!   stats.rs (names, units, what is counted) ─▶ families ─▶ render ─▶ text that ends in # EOF
//! ```
//!
//! A metric has the name of the statistic with `memspill_` before it, and seconds in place of ns and µs.
//! Metrics of a process, device, group, lock or size of folios have labels.
//!
//! What it does not do: serve it (`serve.rs`).

use crate::stats::{self, Kind, Stat, Unit};
use memspill_pager::ctl::operator::encryption_of;
use memspill_pager::run::Run;
use std::fmt::Write;

/// As a reader of OpenMetrics wants to be told.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Samples of one name, which stand together.
#[derive(Clone, PartialEq, Debug)]
struct Family {
    name: String,
    kind: &'static str,
    unit: &'static str,
    help: String,
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: String,
}

pub fn of_run(run: &Run) -> String {
    render(&families(run))
}

fn families(run: &Run) -> Vec<Family> {
    let mut all = Families::default();
    let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
    let pid = ("pid", std::process::id().to_string());
    all.add_info("run", "memspill itself.", vec![version, pid]);
    stats::of_run(run).iter().for_each(|stat| all.add(stat, "", &[]));
    for (size, counts) in stats::folios(run) {
        let size = size.trim_start_matches("hugepages-").to_owned();
        counts.iter().for_each(|stat| all.add(stat, "hugepages_", &[("size", size.clone())]));
    }
    for (lock, totals) in stats::locks(&run.engine) {
        stats::of_lock(&totals).iter().for_each(|stat| all.add(stat, "", &[("lock", lock.to_owned())]));
    }
    for process in stats::living(run) {
        let pid = process.memory.pid();
        let labels = [("pid", pid.to_string()), ("command", stats::command_of(pid))];
        stats::of_process(&process).iter().for_each(|stat| all.add(stat, "", &labels));
    }
    for device in run.engine.devices().iter().filter(|device| !device.is_off()) {
        let name = ("device", device.name.clone());
        let labels = vec![name.clone(), ("encryption", encryption_of(device).to_owned())];
        all.add_info("device", "Swap devices.", labels);
        let stats = stats::of_device(device);
        stats.iter().for_each(|stat| all.add(stat, "", std::slice::from_ref(&name)));
        for (number, link) in device.backing.links().iter().enumerate() {
            let labels = [name.clone(), ("server", number.to_string())];
            stats::of_server(link).iter().for_each(|stat| all.add(stat, "", &labels));
        }
    }
    for group in run.engine.groups().all().iter().skip(1) {
        let name = ("group", group.name.clone());
        let stats = stats::of_group(group);
        stats.iter().for_each(|stat| all.add(stat, "", std::slice::from_ref(&name)));
    }
    all.0
}

#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, stat: &Stat, prefix: &str, labels: &[(&'static str, String)]) {
        let (base, kind, unit) = (prefix.to_owned() + &base_of(stat), kind_of(stat), unit_of(stat.unit));
        let name =
            if unit.is_empty() { format!("memspill_{base}") } else { format!("memspill_{base}_{unit}") };
        let mut labels = labels.to_vec();
        labels.extend(stat.quantile.map(|quantile| ("quantile", quantile.to_owned())));
        self.add_sample(name, kind, unit, stat.help.trim(), Sample { labels, value: value_of(stat) });
    }

    fn add_info(&mut self, name: &str, help: &str, labels: Vec<(&'static str, String)>) {
        self.add_sample(format!("memspill_{name}"), "info", "", help, Sample { labels, value: "1".into() });
    }

    fn add_sample(
        &mut self,
        name: String,
        kind: &'static str,
        unit: &'static str,
        help: &str,
        sample: Sample,
    ) {
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.0.push(Family { name, kind, unit, help: help.to_owned(), samples: vec![sample] }),
        }
    }
}

/// The name without its unit, which stands in its middle where a quantile follows.
fn base_of(stat: &Stat) -> String {
    let unit = match stat.unit {
        Unit::None => return stat.name.replace(['.', '-'], "_"),
        Unit::Bytes => "_bytes",
        Unit::Ns => "_ns",
        Unit::Us => "_us",
    };
    stat.name.split(unit).next().unwrap_or_default().replace(['.', '-'], "_")
}

fn kind_of(stat: &Stat) -> &'static str {
    match (stat.quantile, stat.kind) {
        (Some(_), _) => "summary",
        (None, Kind::Counter) => "counter",
        (None, Kind::Gauge) => "gauge",
    }
}

fn unit_of(unit: Unit) -> &'static str {
    match unit {
        Unit::None => "",
        Unit::Bytes => "bytes",
        Unit::Ns | Unit::Us => "seconds",
    }
}

fn value_of(stat: &Stat) -> String {
    match stat.unit {
        Unit::None | Unit::Bytes => stat.value.to_string(),
        Unit::Ns => format!("{}.{:09}", stat.value / 1_000_000_000, stat.value % 1_000_000_000),
        Unit::Us => format!("{}.{:06}", stat.value / 1_000_000, stat.value % 1_000_000),
    }
}

fn render(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { name, kind, unit, help, samples } in families {
        let _ = writeln!(text, "# TYPE {name} {kind}");
        // Some readers take no unit of a summary. Its name has it.
        if !unit.is_empty() && *kind != "summary" {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {}", escaped(help));
        let suffix = match *kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        for Sample { labels, value } in samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{name}{suffix}{labels} {value}");
        }
    }
    text + "# EOF\n"
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmetrics_parser::openmetrics::parse_openmetrics;

    fn stat(name: &'static str, kind: Kind, unit: Unit, value: u64) -> Stat {
        Stat { name, kind, unit, value, help: "What \"it\" is,\nand \\ that.", quantile: None }
    }

    fn some() -> Vec<Family> {
        let mut all = Families::default();
        all.add_info("run", "memspill itself.", vec![("version", "1".into())]);
        all.add(&stat("memory_max_bytes", Kind::Gauge, Unit::Bytes, 7), "", &[]);
        for (name, quantile) in [("fault_ns_p50", "0.5"), ("fault_ns_p99", "0.99")] {
            all.add(
                &Stat { quantile: Some(quantile), ..stat(name, Kind::Gauge, Unit::Ns, 1_000_000_007) },
                "",
                &[],
            );
        }
        for command in ["plain", "a \"b\" \\n\n}", "\u{9b}é,=#"] {
            let labels = [("command", command.to_owned())];
            all.add(&stat("process_stall_some_us", Kind::Counter, Unit::Us, 12), "", &labels);
            all.add(&stat("process_faults", Kind::Counter, Unit::None, 1 << 60), "", &labels);
        }
        all.add(&stat("group_events.high", Kind::Counter, Unit::None, 3), "", &[("group", "cc".into())]);
        all.0
    }

    #[test]
    fn names_units_and_values() {
        let text = render(&some());
        for line in [
            "# TYPE memspill_memory_max_bytes gauge",
            "# UNIT memspill_memory_max_bytes bytes",
            "memspill_memory_max_bytes 7",
            "# TYPE memspill_fault_seconds summary",
            "memspill_fault_seconds{quantile=\"0.99\"} 1.000000007",
            "memspill_process_stall_some_seconds_total{command=\"plain\"} 0.000012",
            "memspill_process_faults_total{command=\"plain\"} 1152921504606846976",
            "memspill_process_faults_total{command=\"a \\\"b\\\" \\\\n\\n}\"} 1152921504606846976",
            "memspill_group_events_high_total{group=\"cc\"} 3",
            "memspill_run_info{version=\"1\"} 1",
            "# HELP memspill_memory_max_bytes What \\\"it\\\" is,\\nand \\\\ that.",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\nin\n{text}");
        }
        assert_eq!(text.lines().last(), Some("# EOF"));
    }

    /// Another implementation of the format takes it, and finds as many samples.
    #[test]
    fn a_strict_parser_takes_it() {
        let families = some();
        let parsed = parse_openmetrics(&render(&families)).expect("OpenMetrics");
        assert_eq!(parsed.families.len(), families.len());
        let broken = render(&families).replace("# EOF\n", "");
        assert!(parse_openmetrics(&broken).is_err(), "the parser is strict");
    }
}
