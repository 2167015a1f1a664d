//! The processes and devices of a run, as they were at the looks: those that have ended are remembered.
//!
//! A process that came and went between two looks was not seen. Its faults are in the run's sum, and so in
//! what is left over when those of all others are taken away.

use crate::stats;
use memspill_engine::devices::Device;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::ctl::operator::encryption_of;
use memspill_pager::process::Process;
use memspill_pager::run::Run;
use std::collections::HashMap;

/// The number of processes that are remembered; the ended ones with the fewest faults are forgotten.
const PROCESSES_MAX: usize = 512;

#[derive(Default)]
pub struct Seen {
    processes: HashMap<u64, ProcessSeen>,
    /// In the order in which they were added.
    pub devices: Vec<DeviceSeen>,
    /// When the look before this one began.
    last_look_us: u64,
}

#[derive(Clone, Default, Debug)]
pub struct ProcessSeen {
    pub pid: u32,
    pub command: String,
    pub faults: u64,
    pub resident_most_bytes: u64,
    pub swapped_most_bytes: u64,
    pub stall_some_us: u64,
    pub stall_full_us: u64,
    pub first_us: u64,
    pub last_us: u64,
}

pub struct DeviceSeen {
    pub name: String,
    pub size_bytes: u64,
    pub used_most_bytes: u64,
    pub priority: i16,
    pub encryption: &'static str,
}

impl Seen {
    pub fn look(&mut self, run: &Run) {
        let now_us = run.elapsed_us();
        self.make_room();
        for process in run.processes() {
            self.process(&process, now_us);
        }
        self.last_look_us = now_us;
        for (i, device) in run.engine.devices().ever_added().enumerate() {
            let used_bytes = device.slots.used_slots() * PAGE_SIZE as u64;
            match self.devices.get_mut(i) {
                Some(seen) => seen.used_most_bytes = seen.used_most_bytes.max(used_bytes),
                None => self.devices.push(DeviceSeen::new(device, used_bytes)),
            }
        }
    }

    fn process(&mut self, process: &Process, now_us: u64) {
        let pid = process.memory.pid();
        // The child of a fork may not be known yet.
        let is_known = self.processes.contains_key(&process.key);
        if pid == 0 || (self.processes.len() >= PROCESSES_MAX && !is_known) {
            return;
        }
        let seen = self.processes.entry(process.key).or_insert_with(|| ProcessSeen {
            pid,
            first_us: now_us,
            ..ProcessSeen::default()
        });
        if seen.command.is_empty() {
            seen.command = stats::command_of(pid);
        }
        let (bytes, pressure) = (|pages: u64| pages * PAGE_SIZE as u64, process.stall.pressure());
        seen.faults = process.faults();
        seen.resident_most_bytes = seen.resident_most_bytes.max(bytes(process.space.resident_pages()));
        seen.swapped_most_bytes = seen.swapped_most_bytes.max(bytes(process.space.swapped_pages()));
        seen.stall_some_us = pressure.some.total_us as u64;
        seen.stall_full_us = pressure.full.total_us as u64;
        seen.last_us = now_us;
    }

    /// Processes that were not there at the last look have ended.
    fn make_room(&mut self) {
        if self.processes.len() < PROCESSES_MAX {
            return;
        }
        let ended = self.processes.iter().filter(|(_, seen)| seen.last_us < self.last_look_us);
        let mut ended: Vec<(u64, u64)> = ended.map(|(key, seen)| (seen.faults, *key)).collect();
        ended.sort_unstable();
        ended.truncate(PROCESSES_MAX / 2);
        ended.iter().for_each(|(_, key)| _ = self.processes.remove(key));
    }

    /// The processes with most faults first.
    pub fn processes(&self) -> Vec<&ProcessSeen> {
        let mut processes: Vec<&ProcessSeen> = self.processes.values().collect();
        processes.sort_by_key(|seen| (std::cmp::Reverse(seen.faults), seen.pid));
        processes
    }
}

impl DeviceSeen {
    fn new(device: &Device, used_most_bytes: u64) -> DeviceSeen {
        DeviceSeen {
            name: device.name.clone(),
            size_bytes: device.slots.all_slots() * PAGE_SIZE as u64,
            used_most_bytes,
            priority: device.priority,
            encryption: encryption_of(device),
        }
    }
}
