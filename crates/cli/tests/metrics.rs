//! The metrics of a run that goes on: served, asked for, and read by others than ourselves.
//!
//! Needs a machine on which `memspill run` starts; else it says so, and passes. If there is a Prometheus, it
//! reads them too.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use openmetrics_parser::openmetrics::parse_openmetrics;

const MEMSPILL: &str = env!("CARGO_BIN_EXE_memspill");

/// Ended when it goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// A run that sleeps, with a command whose name is hard to write down, and where its metrics are.
fn run() -> Option<(Running, String)> {
    let mut child = Command::new(MEMSPILL)
        .args(["run", "-m", "64M", "--metrics", "0", "--", "sleep", "60"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("memspill starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let address = lines.find_map(|line| {
        let line = line.expect("text");
        Some(line.strip_prefix("memspill: metrics at http://")?.strip_suffix("/metrics")?.to_owned())
    });
    let Some(address) = address else {
        println!("skipped: memspill run does not start on this machine");
        let _ = child.wait();
        return None;
    };
    // Nobody else reads what it has to say.
    std::thread::spawn(move || lines.for_each(drop));
    Some((Running(child), address))
}

/// The body of what a GET is answered with. By HTTP/1.0, in which it comes in one piece.
fn get(address: &str, path: &str) -> Option<String> {
    let mut server = TcpStream::connect(address).ok()?;
    write!(server, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}

/// What Prometheus has for a query: an object for each series.
fn series(web: &str, query: &str) -> Vec<serde_json::Value> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = get(web, &format!("/api/v1/query?query={encoded}")).unwrap_or_default();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    answer["data"]["result"].as_array().cloned().unwrap_or_default()
}

/// The queries of the dashboard, each with the labels that its legend names.
fn queries_of_the_dashboard() -> Vec<(String, Vec<String>)> {
    let dashboard = include_str!("../../../contrib/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let legend = |text: &str| {
        let parts = text.split("{{").skip(1).filter_map(|part| part.split("}}").next());
        parts.map(str::to_owned).collect()
    };
    targets
        .map(|target| (target["expr"].as_str().expect("expr"), target["legendFormat"].as_str()))
        .map(|(expression, text)| (expression.to_owned(), legend(text.expect("a legend"))))
        .collect()
}

/// All names under which the exposition has samples.
fn names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect()
}

/// Until the command has joined, there is no process to speak of.
fn with_a_process(address: &str) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = get(address, "/metrics").expect("metrics");
        if text.contains("memspill_process_resident_bytes{") {
            return text;
        }
        assert!(Instant::now() < until, "no process in\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_served_is_openmetrics() {
    let Some((run, address)) = run() else { return };
    let served = with_a_process(&address);
    let parsed = parse_openmetrics(&served).unwrap_or_else(|error| panic!("{error:?}\n{served}"));
    assert!(parsed.families.len() > 60, "{} families", parsed.families.len());
    assert!(served.contains("\nmemspill_memory_max_bytes 67108864\n"), "{served}");
    assert!(served.contains("command=\"sleep\""), "{served}");
    assert!(get(&address, "/").is_none(), "and nothing else is");

    let pid = run.0.id().to_string();
    let asked = Command::new(MEMSPILL).args(["ctl", "--pid", &pid, "metrics"]).output().expect("ctl");
    let asked = String::from_utf8(asked.stdout).expect("text");
    assert_eq!(names(&asked), names(&served), "memspill ctl metrics");
    parse_openmetrics(&asked).expect("OpenMetrics");

    // The dashboard shows what there is.
    let known = names(&served);
    let mut looked_at = 0;
    for (expression, _) in queries_of_the_dashboard() {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for word in expression.split(|c| !part(c)).filter(|word| word.starts_with("memspill_")) {
            assert!(known.contains(word), "{word} of {expression} is no metric");
            looked_at += 1;
        }
    }
    assert!(looked_at > 20);
}

#[test]
fn a_prometheus_reads_it() {
    if Command::new("prometheus")
        .arg("--version")
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("skipped: there is no Prometheus here");
        return;
    }
    let Some((_run, address)) = run() else { return };
    with_a_process(&address);
    let dir = std::env::temp_dir().join(format!("memspill-prometheus-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let config = [
        "global: { scrape_interval: 1s, scrape_timeout: 1s }",
        "scrape_configs:",
        "  - job_name: memspill",
        &format!("    static_configs: [{{ targets: ['{address}'] }}]"),
    ]
    .join("\n");
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let web = format!("127.0.0.1:{port}");
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address={web}"))
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus starts");
    let prometheus = Running(prometheus);
    let until = Instant::now() + Duration::from_secs(30);
    // The first that it has: a rate takes two readings.
    let first = |query: &str| loop {
        if let Some(first) = series(&web, query).into_iter().next() {
            return first;
        }
        assert!(Instant::now() < until, "nothing for {query}; {:?}", series(&web, "up"));
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(first("memspill_memory_max_bytes")["value"][1], "67108864");
    assert_eq!(first("memspill_process_resident_bytes")["metric"]["command"], "sleep");
    assert!(first("memspill_run_info")["metric"]["version"].is_string());
    assert_eq!(first("memspill_fault_seconds{quantile=\"0.99\"}")["metric"]["quantile"], "0.99");
    // What Grafana puts for its variables.
    for (expression, labels) in queries_of_the_dashboard() {
        let query = expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
        let found = first(&query);
        for label in labels {
            assert!(found["metric"][&label].is_string(), "{query} has no label {label}: {found}");
        }
    }
    drop(prometheus);
    let _ = std::fs::remove_dir_all(&dir);
}
