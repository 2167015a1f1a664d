//! The model behind `memspill top`: the last statistics of each run, what has changed since those before, and
//! how that was over the last minutes.
//!
//! Rates are differences by the run's own clock (`elapsed_us`). Nothing here draws, asks or waits.

use serde_json::Value;
use std::collections::VecDeque;

/// The number of values that are kept of each rate: two minutes, if it is asked once a second.
const HISTORY: usize = 120;

/// A run as it was when it was last asked.
#[derive(Clone, Default, Debug)]
pub struct RunView {
    pub pid: u32,
    pub command: String,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
    pub pool_bytes: u64,
    /// What the pool holds, before compression.
    pub pool_holds_bytes: u64,
    pub file_bytes: u64,
    pub faults_per_s: f64,
    /// None: the kernel does not tell us.
    pub disk_read_per_s: Option<f64>,
    pub stall_percent: f64,
    /// Averages over 10, 60 and 300 s.
    pub stall_some: [f64; 3],
    pub stall_full: [f64; 3],
    pub processes: Vec<ProcessView>,
    pub groups: Vec<GroupView>,
    pub devices: Vec<DeviceView>,
    /// The newest is the last one.
    pub stalls: VecDeque<f64>,
    pub faults: VecDeque<f64>,
    sums: Sums,
}

#[derive(Clone, Default, Debug)]
pub struct ProcessView {
    pub pid: u32,
    pub command: String,
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
    pub faults_per_s: f64,
    pub stall_percent: f64,
    pub stall_avg10: f64,
    sums: Sums,
}

#[derive(Clone, Default, Debug)]
pub struct GroupView {
    pub name: String,
    pub used_bytes: u64,
    pub swapped_bytes: u64,
}

#[derive(Clone, Default, Debug)]
pub struct DeviceView {
    pub name: String,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub state: String,
    pub encryption: String,
    /// Of the first one's: how long a read takes, and the bytes out and in.
    pub server: Option<ServerView>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ServerView {
    pub round_trip_us: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// The growing sums, as they were.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    faults: u64,
    stall_us: u64,
    elapsed_us: u64,
    disk_read_bytes: Option<u64>,
}

impl Sums {
    fn faults_per_s(&self, before: &Sums, elapsed_us: u64) -> f64 {
        self.faults.saturating_sub(before.faults) as f64 * 1e6 / elapsed_us.max(1) as f64
    }

    fn stall_percent(&self, before: &Sums, elapsed_us: u64) -> f64 {
        let share = self.stall_us.saturating_sub(before.stall_us) as f64 / elapsed_us.max(1) as f64;
        (share * 100.0).min(100.0)
    }
}

/// The runs, in the order of their process ids.
#[derive(Default)]
pub struct Runs(pub Vec<RunView>);

impl Runs {
    /// A run has answered. The answer may come from a run of another version, or from somebody who calls
    /// himself a run: missing values are 0.
    pub fn update(&mut self, pid: u32, command: String, stats: &Value, disk_read_bytes: Option<u64>) {
        let at = self.0.partition_point(|run| run.pid < pid);
        let before = self.0.get(at).filter(|run| run.pid == pid).cloned();
        let is_known = before.is_some();
        let mut run = before.clone().unwrap_or_default();
        let before = before.unwrap_or_default();
        let number = |name: &str| stats[name].as_u64().unwrap_or(0);
        run.sums = Sums {
            faults: number("pgfault"),
            stall_us: number("stall_some_us"),
            elapsed_us: number("elapsed_us"),
            disk_read_bytes,
        };
        let elapsed_us = run.sums.elapsed_us.saturating_sub(before.sums.elapsed_us);
        (run.pid, run.command) = (pid, command);
        run.limit_bytes = number("memory_max_bytes");
        run.used_bytes = number("memory_bytes");
        run.resident_bytes = number("resident_bytes");
        run.swapped_bytes = number("swapped_bytes");
        run.pool_bytes = number("swap_ram_bytes");
        run.pool_holds_bytes = number("swap_ram_pages").saturating_mul(4096);
        run.file_bytes = number("swap_file_bytes");
        run.stall_some = averages(&stats["stall"]["some"]);
        run.stall_full = averages(&stats["stall"]["full"]);
        run.faults_per_s = run.sums.faults_per_s(&before.sums, elapsed_us);
        run.stall_percent = run.sums.stall_percent(&before.sums, elapsed_us);
        run.disk_read_per_s = match (disk_read_bytes, before.sums.disk_read_bytes) {
            (Some(now), Some(then)) if elapsed_us > 0 => {
                Some(now.saturating_sub(then) as f64 * 1e6 / elapsed_us as f64)
            }
            (now, _) => now.map(|_| 0.0),
        };
        // The first answer is of all the time before: no rate of now.
        if is_known {
            push(&mut run.stalls, run.stall_percent);
            push(&mut run.faults, run.faults_per_s);
        }
        run.processes =
            list(&stats["processes"]).map(|value| process(value, &before.processes, elapsed_us)).collect();
        run.groups = list(&stats["groups"]).map(group).collect();
        run.devices = list(&stats["devices"]).map(device).collect();
        if is_known { self.0[at] = run } else { self.0.insert(at, run) }
    }

    /// Only these are left.
    pub fn retain(&mut self, pids: &[u32]) {
        self.0.retain(|run| pids.contains(&run.pid));
    }
}

fn push(history: &mut VecDeque<f64>, value: f64) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn averages(value: &Value) -> [f64; 3] {
    ["avg10", "avg60", "avg300"].map(|name| value[name].as_f64().unwrap_or(0.0))
}

fn process(value: &Value, before: &[ProcessView], elapsed_us: u64) -> ProcessView {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pid = number(&value["pid"]) as u32;
    let sums = Sums {
        faults: number(&value["pgfault"]),
        stall_us: number(&value["stall"]["some"]["total_us"]),
        ..Sums::default()
    };
    let before = before.iter().find(|process| process.pid == pid).map(|process| process.sums);
    let since = before.unwrap_or(sums);
    ProcessView {
        pid,
        command: text(&value["command"]),
        resident_bytes: number(&value["resident_bytes"]),
        swapped_bytes: number(&value["swapped_bytes"]),
        faults_per_s: sums.faults_per_s(&since, elapsed_us),
        stall_percent: sums.stall_percent(&since, elapsed_us),
        stall_avg10: averages(&value["stall"]["some"])[0],
        sums,
    }
}

fn group(value: &Value) -> GroupView {
    GroupView {
        name: text(&value["name"]),
        used_bytes: value["memory.current"].as_u64().unwrap_or(0),
        swapped_bytes: value["swap.current"].as_u64().unwrap_or(0),
    }
}

fn device(value: &Value) -> DeviceView {
    DeviceView {
        name: text(&value["name"]),
        size_bytes: value["size_bytes"].as_u64().unwrap_or(0),
        used_bytes: value["used_bytes"].as_u64().unwrap_or(0),
        state: text(&value["state"]),
        encryption: text(&value["encryption"]),
        server: list(&value["servers"]).next().map(server),
    }
}

fn server(value: &Value) -> ServerView {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    ServerView {
        round_trip_us: number("round_trip_us"),
        sent_bytes: number("sent_bytes"),
        received_bytes: number("received_bytes"),
    }
}

/// By what processes are listed; the largest first, but for the id.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    #[default]
    Stall,
    Faults,
    Resident,
    Swapped,
    Pid,
}

impl Order {
    pub fn next(self) -> Order {
        match self {
            Order::Stall => Order::Faults,
            Order::Faults => Order::Resident,
            Order::Resident => Order::Swapped,
            Order::Swapped => Order::Pid,
            Order::Pid => Order::Stall,
        }
    }

    pub fn sorted(self, processes: &[ProcessView]) -> Vec<ProcessView> {
        let mut processes = processes.to_vec();
        let key = |process: &ProcessView| match self {
            Order::Stall => process.stall_percent.max(process.stall_avg10),
            Order::Faults => process.faults_per_s,
            Order::Resident => process.resident_bytes as f64,
            Order::Swapped => process.swapped_bytes as f64,
            Order::Pid => -f64::from(process.pid),
        };
        processes.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.pid.cmp(&b.pid)));
        processes
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// A run after so many seconds, in which so many faults came and so many µs were waited.
    pub fn stats(seconds: u64, faults: u64, stall_us: u64) -> Value {
        let process = |pid: u32, command: &str, share: u64| {
            json!({
                "pid": pid, "command": command, "resident_bytes": 30 << 20, "swapped_bytes": share << 20,
                "pgfault": faults / share,
                "stall": { "some": { "avg10": 12.5, "avg60": 3.0, "total_us": stall_us / share } },
            })
        };
        json!({
            "memory_max_bytes": 100 << 20, "memory_bytes": 96 << 20, "resident_bytes": 60 << 20,
            "swapped_bytes": 200 << 20, "swap_ram_bytes": 20 << 20, "swap_ram_pages": (60 << 20) / 4096,
            "swap_file_bytes": 140 << 20, "pgfault": faults, "stall_some_us": stall_us,
            "elapsed_us": seconds * 1_000_000,
            "stall": {
                "some": { "avg10": 40.0, "avg60": 20.0, "avg300": 5.0 },
                "full": { "avg10": 30.0, "avg60": 15.0, "avg300": 4.0 },
            },
            "processes": [process(4712, "python3", 1), process(4720, "cc1plus\u{1b}[2J", 4)],
            "groups": [{ "name": "cc", "memory.current": 10 << 20, "swap.current": 5 << 20 }],
            "devices": [{
                "name": "default", "size_bytes": 256u64 << 30, "used_bytes": 200 << 20, "state": "on",
                "encryption": "aes-256-gcm",
            }, {
                "name": "nbd://store.example/swap", "size_bytes": 256u64 << 30, "used_bytes": 5 << 20,
                "state": "away", "encryption": "aes-256-gcm", "servers": [{
                    "round_trip_us": 140, "sent_bytes": 5 << 20, "received_bytes": 1 << 20,
                }],
            }],
        })
    }

    #[test]
    fn rates_are_of_the_time_between_two_answers() {
        let mut runs = Runs::default();
        runs.update(4711, "python3 job.py".into(), &stats(10, 5000, 1_000_000), Some(1 << 20));
        assert!(runs.0[0].stalls.is_empty(), "one answer makes no rate of now");
        runs.update(4711, "python3 job.py".into(), &stats(12, 7000, 2_000_000), Some(5 << 20));
        let run = &runs.0[0];
        assert_eq!((run.faults_per_s, run.stall_percent), (1000.0, 50.0));
        assert_eq!(run.disk_read_per_s, Some(f64::from(2 << 20)));
        assert_eq!((run.stalls.len(), run.faults.back()), (1, Some(&1000.0)));
        let python = &run.processes[0];
        assert_eq!((python.faults_per_s, python.stall_percent), (1000.0, 50.0));
        assert_eq!(run.processes[1].command, "cc1plus?[2J", "nobody moves our cursor");
        // Asked twice at once: nothing is divided by 0.
        runs.update(4711, "python3 job.py".into(), &stats(12, 7000, 2_000_000), None);
        assert_eq!((runs.0[0].faults_per_s, runs.0[0].disk_read_per_s), (0.0, None));
    }

    #[test]
    fn runs_come_and_go() {
        let mut runs = Runs::default();
        for pid in [30, 10, 20] {
            runs.update(pid, String::new(), &stats(1, 0, 0), None);
        }
        runs.update(40, String::new(), &json!({ "processes": 7, "stall": [] }), None);
        let pids = |runs: &Runs| runs.0.iter().map(|run| run.pid).collect::<Vec<_>>();
        assert_eq!(pids(&runs), [10, 20, 30, 40]);
        runs.retain(&[10, 30]);
        assert_eq!(pids(&runs), [10, 30]);
    }

    #[test]
    fn history_is_of_the_last_minutes() {
        let mut runs = Runs::default();
        for second in 0..500 {
            runs.update(1, String::new(), &stats(second, second * 100, second * 250_000), None);
        }
        assert_eq!(runs.0[0].stalls.len(), HISTORY);
        assert!(runs.0[0].stalls.iter().all(|percent| *percent == 25.0));
    }

    #[test]
    fn processes_in_order() {
        let process = |pid, resident_bytes, stall_percent| ProcessView {
            pid,
            resident_bytes,
            stall_percent,
            ..ProcessView::default()
        };
        let all = [process(3, 10, 0.0), process(1, 30, 5.0), process(2, 20, 50.0)];
        let pids = |order: Order| order.sorted(&all).iter().map(|p| p.pid).collect::<Vec<_>>();
        assert_eq!(pids(Order::Stall), [2, 1, 3]);
        assert_eq!(pids(Order::Resident), [1, 2, 3]);
        assert_eq!(pids(Order::Pid), [1, 2, 3]);
        let mut order = Order::Stall;
        (0..5).for_each(|_| order = order.next());
        assert_eq!(order, Order::Stall);
    }
}
