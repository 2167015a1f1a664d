//! The kernel's swap device of a run: a fresh zram device with lz4, or a file on a disk. It is made and
//! switched on as a whole or not at all, and switched off and removed when dropped.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Stop, signals};

/// Above any swap that may be on already: ours fills first.
pub const PRIORITY: i32 = 32_000;
const HOT_ADD: &str = "/sys/class/zram-control/hot_add";
const HOT_REMOVE: &str = "/sys/class/zram-control/hot_remove";
const SWAPS: &str = "/proc/swaps";
const BLOCK_BYTES: usize = 1 << 20;

/// Device and priority of each swap device that is on.
pub fn active() -> Vec<(String, i32)> {
    parse_swaps(&fs::read_to_string(SWAPS).unwrap_or_default())
}

fn parse_swaps(text: &str) -> Vec<(String, i32)> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some((words.first()?.to_string(), words.last()?.parse().ok()?))
        })
        .collect()
}

pub fn has_zram() -> bool {
    Path::new(HOT_ADD).exists()
}

/// What a zram device holds: pages before and after compression.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct ZramUse {
    pub stored_bytes: u64,
    pub pool_bytes: u64,
    pub pool_peak_bytes: u64,
}

fn parse_mm_stat(text: &str) -> Option<ZramUse> {
    let words: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(ZramUse {
        stored_bytes: *words.first()?,
        pool_bytes: *words.get(2)?,
        pool_peak_bytes: *words.get(4)?,
    })
}

enum DeviceKind {
    Zram { number: u32 },
    File,
}

pub struct Device {
    path: PathBuf,
    kind: DeviceKind,
    on: bool,
}

impl Device {
    pub fn zram(size_bytes: u64) -> Result<Device, Stop> {
        let told = |what: &str, error: std::io::Error| Stop::Refused(format!("zram: {what}: {error}"));
        let number = fs::read_to_string(HOT_ADD).map_err(|e| told("hot_add", e))?;
        let Ok(number) = number.trim().parse() else {
            return Stop::refuse(format!("zram: hot_add says '{}'", number.trim()));
        };
        let device = Device {
            path: format!("/dev/zram{number}").into(),
            kind: DeviceKind::Zram { number },
            on: false,
        };
        let block = PathBuf::from(format!("/sys/block/zram{number}"));
        fs::write(block.join("comp_algorithm"), "lz4").map_err(|e| told("comp_algorithm lz4", e))?;
        fs::write(block.join("disksize"), size_bytes.to_string()).map_err(|e| told("disksize", e))?;
        device.switch_on()
    }

    /// A file without holes in `folder`, which is on a disk.
    pub fn file(folder: &Path, size_bytes: u64) -> Result<Device, Stop> {
        let path = folder.join("kernel-swap");
        let told = |error: std::io::Error| Stop::Refused(format!("{}: {error}", path.display()));
        let device = Device { path: path.clone(), kind: DeviceKind::File, on: false };
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(told)?;
        let block = vec![0; BLOCK_BYTES];
        for _ in 0..size_bytes.div_ceil(BLOCK_BYTES as u64) {
            if let Some(signal) = signals::seen() {
                return Err(Stop::Interrupted(signal));
            }
            file.write_all(&block).map_err(told)?;
        }
        file.sync_all().map_err(told)?;
        device.switch_on()
    }

    fn switch_on(mut self) -> Result<Device, Stop> {
        let path = self.path.to_string_lossy().into_owned();
        tool("mkswap", &[&path])?;
        let hint = match self.kind {
            DeviceKind::Zram { .. } => "",
            DeviceKind::File => " (--dir names a directory of ext4 or xfs)",
        };
        tool("swapon", &["-p", &PRIORITY.to_string(), &path]).map_err(|stop| match stop {
            Stop::Refused(reason) => Stop::Refused(reason + hint),
            other => other,
        })?;
        self.on = true;
        Ok(self)
    }

    /// None where it is not zram.
    pub fn zram_use(&self) -> Option<ZramUse> {
        match self.kind {
            DeviceKind::Zram { number } => {
                parse_mm_stat(&fs::read_to_string(format!("/sys/block/zram{number}/mm_stat")).ok()?)
            }
            DeviceKind::File => None,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let path = self.path.to_string_lossy().into_owned();
        if self.on && tool("swapoff", &[&path]).is_err() {
            eprintln!("memspill: could not switch off the swap on {path}: swapoff {path}, then remove it");
            return;
        }
        let removed = match self.kind {
            DeviceKind::Zram { number } => {
                let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
                fs::write(HOT_REMOVE, number.to_string())
            }
            DeviceKind::File => fs::remove_file(&self.path),
        };
        if let Err(error) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("memspill: could not remove {path}: {error}");
        }
    }
}

/// Runs one of util-linux' tools, in a process group of its own: Ctrl-C does not reach it.
fn tool(name: &str, words: &[&str]) -> Result<(), Stop> {
    // As root, but perhaps with a user's PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let done =
        Command::new(name).args(words).env("PATH", path).stdin(Stdio::null()).process_group(0).output();
    match done {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr);
            Stop::refuse(format!(
                "{name} {}: {}",
                words.join(" "),
                told.trim().lines().last().unwrap_or("failed")
            ))
        }
        Err(error) => Stop::refuse(format!("{name}: {error} (it is part of util-linux)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lists() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram0                              partition\t4194300\t\t0\t\t32000\n\
                    /swap\\040file file 100 0 -2\n";
        assert_eq!(
            parse_swaps(text),
            [("/dev/zram0".to_string(), 32000), ("/swap\\040file".to_string(), -2)]
        );
        assert_eq!(parse_swaps(""), []);
        let mm_stat = "  135168    65536    73728        0   581632        7        0       12       12";
        let expected = ZramUse { stored_bytes: 135168, pool_bytes: 73728, pool_peak_bytes: 581632 };
        assert_eq!(parse_mm_stat(mm_stat), Some(expected));
        assert_eq!(parse_mm_stat("1 2"), None);
    }
}
