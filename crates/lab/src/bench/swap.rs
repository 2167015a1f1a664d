//! The kernel's swap device of a run: a fresh zram device with lz4, or a file on a disk. It is made and
//! switched on as a whole or not at all, and switched off and removed when dropped. In front of a file there
//! may be zswap, whose settings are those of the machine: they are put back when dropped.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memspill_cli::signals::{self, Stop};

/// Above any swap that may be on already: ours fills first.
pub const PRIORITY: i32 = 32_000;
const HOT_ADD: &str = "/sys/class/zram-control/hot_add";
const HOT_REMOVE: &str = "/sys/class/zram-control/hot_remove";
const SWAPS: &str = "/proc/swaps";
const BLOCK_BYTES: usize = 1 << 20;
const ZSWAP: &str = "/sys/module/zswap/parameters";

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

/// What a pool of compressed pages holds: pages before and after compression.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct PoolUse {
    pub stored_bytes: u64,
    pub pool_bytes: u64,
    /// The most so far, where the kernel keeps it (zram).
    pub pool_peak_bytes: u64,
}

fn parse_mm_stat(text: &str) -> Option<PoolUse> {
    let words: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(PoolUse {
        stored_bytes: *words.first()?,
        pool_bytes: *words.get(2)?,
        pool_peak_bytes: *words.get(4)?,
    })
}

/// zswap's pool: the whole machine's.
fn parse_meminfo(text: &str) -> Option<PoolUse> {
    let bytes_of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    let pool_bytes = bytes_of("Zswap:")?;
    Some(PoolUse { stored_bytes: bytes_of("Zswapped:")?, pool_bytes, pool_peak_bytes: pool_bytes })
}

pub fn has_zswap() -> bool {
    Path::new(ZSWAP).is_dir()
}

/// zswap is on for as long as this is there; its settings and what they were, the last one changed last.
struct Zswap {
    folder: PathBuf,
    before: Vec<(&'static str, String)>,
}

impl Zswap {
    /// With lz4, as memspill compresses, or where the kernel has not that (CONFIG_CRYPTO_LZ4) with what was
    /// set.
    fn switch_on(folder: &Path) -> Result<Zswap, Stop> {
        let mut zswap = Zswap { folder: folder.into(), before: Vec::new() };
        // In this order: one that was never on takes any name, and then another compressor.
        let told = |e: std::io::Error| Stop::Refused(format!("zswap: {}/enabled: {e}", folder.display()));
        zswap.set("enabled", "Y").map_err(told)?;
        let _ = zswap.set("compressor", "lz4");
        Ok(zswap)
    }

    fn set(&mut self, name: &'static str, value: &str) -> std::io::Result<()> {
        let file = self.folder.join(name);
        let before = fs::read_to_string(&file)?.trim().to_owned();
        fs::write(&file, value)?;
        self.before.push((name, before));
        Ok(())
    }
}

impl Drop for Zswap {
    fn drop(&mut self) {
        for (name, value) in self.before.iter().rev() {
            let file = self.folder.join(name);
            if let Err(error) = fs::write(&file, value) {
                eprintln!("memspill: {0}: {error}: echo {value} > {0}", file.display());
            }
        }
    }
}

enum DeviceKind {
    Zram { number: u32 },
    File,
}

pub struct Device {
    path: PathBuf,
    kind: DeviceKind,
    on: bool,
    /// In front of it. Dropped last: what it holds comes back when the device is switched off.
    zswap: Option<Zswap>,
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
            zswap: None,
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
        let device = Device { path: path.clone(), kind: DeviceKind::File, on: false, zswap: None };
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

    /// The same with zswap in front of it.
    pub fn zswap(folder: &Path, size_bytes: u64) -> Result<Device, Stop> {
        let zswap = Zswap::switch_on(Path::new(ZSWAP))?;
        let mut device = Device::file(folder, size_bytes)?;
        device.zswap = Some(zswap);
        Ok(device)
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

    /// What zswap compresses with, where it is in front.
    pub fn zswap_compressor(&self) -> Option<String> {
        let zswap = self.zswap.as_ref()?;
        Some(fs::read_to_string(zswap.folder.join("compressor")).ok()?.trim().to_owned())
    }

    /// None where it has no pool. zswap's is of all devices.
    pub fn pool_use(&self) -> Option<PoolUse> {
        if self.zswap.is_some() {
            return parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?);
        }
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
        let expected = PoolUse { stored_bytes: 135168, pool_bytes: 73728, pool_peak_bytes: 581632 };
        assert_eq!(parse_mm_stat(mm_stat), Some(expected));
        assert_eq!(parse_mm_stat("1 2"), None);
        let meminfo = "MemTotal:  100 kB\nZswap:        12 kB\nZswapped:     40 kB\n";
        let expected = PoolUse { stored_bytes: 40 << 10, pool_bytes: 12 << 10, pool_peak_bytes: 12 << 10 };
        assert_eq!(parse_meminfo(meminfo), Some(expected));
        assert_eq!(parse_meminfo("MemTotal:  100 kB\n"), None);
    }

    #[test]
    fn settings_of_zswap_are_put_back() {
        let folder = std::env::temp_dir().join(format!("memspill-zswap-{}", std::process::id()));
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert!(matches!(Zswap::switch_on(&folder), Err(Stop::Refused(_))));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("enabled"), "N\n").unwrap();
        fs::write(folder.join("compressor"), "lzo\n").unwrap();
        let zswap = Zswap::switch_on(&folder).ok().unwrap();
        assert_eq!((read("enabled"), read("compressor")), ("Y".into(), "lz4".into()));
        drop(zswap);
        assert_eq!((read("enabled"), read("compressor")), ("N".into(), "lzo".into()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
