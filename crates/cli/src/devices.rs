//! The swap devices of a run: what `--swap` names, or the default.
//!
//! The default is one device: compressed RAM inside the budget, which moves its oldest pages out to an
//! unlinked file in the swap directory when its share of the budget is used up. If that directory is RAM
//! itself, and nobody has asked for it, there is no file.

use crate::args::Options;
use crate::machine::{Memory, is_in_ram};
use crate::message::{plain, words};
use crate::size;
use crate::spec::{Fail, FailWhat, SwapSpec};
use memspill_backing::compress::Algorithm;
use memspill_backing::disk::RamDisk;
use memspill_backing::faulty::{FaultPlan, FaultyBacking, bit_flip_at};
use memspill_backing::file::{DiscardPolicy, FileBacking, FileConfig, FilePlace, IoEngine};
use memspill_backing::nbd::NbdConfig;
use memspill_backing::ram::{RamBacking, RamConfig};
use memspill_backing::tier::TierBacking;
use memspill_engine::backing::{Backing, BackingError};
use memspill_engine::devices::Device;
use memspill_engine::slots::Slots;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::PAGE_SIZE;
use memspill_engine::word::ENTRY_DEVICES_MAX;
use memspill_pager::limits;
use memspill_pager::pool_share;
use memspill_pager::run::Layout;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Slots of a device whose size is not given (256 GiB): tables are made as slots are used, the disk sets the
/// end.
const SLOTS_DEFAULT: u32 = 1 << 26;

/// Bytes of the tables that an encrypted file behind a pool takes for each slot: five words, and some bits.
/// They cost memory only where slots are used, and address space at once.
const TABLES_BYTES_PER_SLOT: u64 = 41;

/// The compressed pool's share of the budget, when a file stands behind it.
pub fn pool_share_bytes(memory_max_bytes: u64, percent: u32) -> u64 {
    limits::pool_bytes(memory_max_bytes / 100 * u64::from(percent))
}

/// The pool's share of the budget when no file stands behind it: nearly all. The program works in the rest.
pub fn pool_alone_bytes(memory_max_bytes: u64) -> u64 {
    limits::pool_bytes(memory_max_bytes - memory_max_bytes / 10)
}

/// What all devices of a run are opened with.
#[derive(Clone)]
pub struct Opening {
    pub disk_free_bytes: u64,
    /// Programs read their pages out of pools by themselves.
    pub shared_pools: bool,
    /// The default for files whose spec does not say.
    pub encrypt: bool,
    pub tuning: Tuning,
    pub layout: Layout,
}

/// The devices with which a run begins.
pub fn open(args: &Options, memory_max_bytes: u64, opening: &Opening) -> Result<Vec<Device>, String> {
    if args.swap.len() > ENTRY_DEVICES_MAX {
        return Err(format!("at most {ENTRY_DEVICES_MAX} swap devices can be used at once"));
    }
    if args.swap.is_empty() {
        return Ok(vec![default_device(args, memory_max_bytes, opening)?]);
    }
    let mut devices: Vec<Device> = Vec::new();
    for spec in &args.swap {
        let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
        let device = open_one(spec, memory_max_bytes, devices.len(), &names, opening)
            .map_err(|e| format!("--swap {e}"))?;
        devices.push(device);
    }
    Ok(devices)
}

/// `before`: how many devices were named before it. `names`: those that are taken.
pub fn open_one(
    spec: &SwapSpec,
    memory_max_bytes: u64,
    before: usize,
    names: &[&str],
    opening: &Opening,
) -> Result<Device, String> {
    // As swapon: without a priority, the first named is the first used.
    let default_priority = -2 - before as i16;
    match spec {
        SwapSpec::Ram { size, priority, algorithm, fail } => {
            let slots = slots_here(*size);
            let ram_limit_bytes = pool_alone_bytes(memory_max_bytes);
            let shared = opening.shared_pools;
            let config = RamConfig { slots, ram_limit_bytes, algorithm: *algorithm, shared };
            let backing = with_planned_failure(
                RamBacking::open(config).map_err(|e| format!("ram: {}", with_remedy(&e)))?,
                *fail,
            );
            let name = match algorithm {
                Algorithm::Lz4 => "ram:",
                Algorithm::Zstd => "ram:zstd",
                Algorithm::ZstdFast => "ram:zstd-fast",
                Algorithm::Wordwise => "ram:wordwise",
            };
            Ok(device(name, names, priority.unwrap_or(default_priority), backing, opening))
        }
        SwapSpec::RamDisk { size, priority, fail } => {
            let name = "ram:none";
            let there = Memory::of_this_machine().usable_bytes();
            if *size > there {
                let (asked_for, there) = (size::human(*size), size::human(there));
                return Err(format!(
                    "{name}: a RAM disk of {asked_for} does not fit into the {there} of RAM here: \
                     give a smaller size="
                ));
            }
            let disk = RamDisk::open(slots_of(Some(*size)))
                .map_err(|e| format!("{name}: no room for {}: {}", size::human(*size), with_remedy(&e)))?;
            let backing = with_planned_failure(disk, *fail);
            Ok(device(name, names, priority.unwrap_or(default_priority), backing, opening))
        }
        SwapSpec::File { path, size, priority, discard, encrypt, overwrite, fail } => {
            let place = if *overwrite { FilePlace::Overwritten } else { FilePlace::Path };
            let config = FileConfig {
                discard: *discard,
                encrypt: encrypt.unwrap_or(opening.encrypt),
                ..file_config(place(path.clone()), *size, opening)
            };
            let config = within_file_limit(config, size.is_some())
                .map_err(|e| format!("file:{}: {e}", path.display()))?;
            let backing =
                FileBacking::open(config).map_err(|e| format!("file:{}", why_not_opened(path, &e)))?;
            if let Some(Fail { what: FailWhat::Flip, at, .. }) = fail {
                backing.set_tamper(bit_flip_at(*at));
            }
            let name = format!("file:{}", path.display());
            tell_of_unlocked_key(&backing, &name);
            let backing = with_planned_failure(backing, *fail);
            Ok(device(&name, names, priority.unwrap_or(default_priority), backing, opening))
        }
        SwapSpec::Nbd { address, words, size, priority, encrypt, overwrite, fail } => {
            let target = NbdConfig::new(address.target(words));
            let config = NbdConfig {
                mirror: words.mirror.as_ref().map(|mirror| mirror.target(words)),
                size_bytes: *size,
                connections: words.connections,
                timeout: words.timeout.unwrap_or(target.timeout),
                encrypt: encrypt.unwrap_or(opening.encrypt),
                overwrite: *overwrite,
                queues: opening.layout.queues(),
                ..target
            };
            let name = address.to_string();
            let pool = pool_in_front(memory_max_bytes, opening);
            let backing = TierBacking::on_export(pool, config).map_err(|e| format!("{name}: {e}"))?;
            if let Some(Fail { what: FailWhat::Flip, at, .. }) = fail {
                backing.file().set_tamper(bit_flip_at(*at));
            }
            tell_of_unlocked_key(backing.file(), &name);
            let backing = with_planned_failure(backing, *fail);
            Ok(device(&name, names, priority.unwrap_or(default_priority), backing, opening))
        }
    }
}

/// The compressed pool of a device that is slower. How much can be swapped in all, it leaves to what is
/// behind it.
fn pool_in_front(memory_max_bytes: u64, opening: &Opening) -> RamConfig {
    let ram_limit_bytes = pool_share_bytes(memory_max_bytes, pool_share::PERCENT_AT_FIRST);
    let (algorithm, shared) = (Algorithm::default(), opening.shared_pools);
    RamConfig { slots: slots_here(None), ram_limit_bytes, algorithm, shared }
}

/// What a device may hold in RAM, under this budget and with this share for pools in front of files.
pub fn ram_limit_bytes(device: &Device, memory_max_bytes: u64, pool_share_percent: u32) -> u64 {
    // Only a device of RAM alone reads without waiting; for files and RAM disks the figure means nothing.
    if device.backing.properties().synchronous {
        pool_alone_bytes(memory_max_bytes)
    } else {
        pool_share_bytes(memory_max_bytes, pool_share_percent)
    }
}

/// The backing with the failure that a test asks for.
fn with_planned_failure<B: Backing + 'static>(backing: B, fail: Option<Fail>) -> Arc<dyn Backing> {
    let Some(Fail { what, at, from_there_on }) = fail.filter(|f| f.what != FailWhat::Flip) else {
        return Arc::new(backing);
    };
    let at_if = |wanted| if what == wanted || what == FailWhat::NoMemory { at } else { 0 };
    let (read_failure_at, write_failure_at) = (at_if(FailWhat::Read), at_if(FailWhat::Write));
    let mut plan = FaultPlan { read_failure_at, write_failure_at, ..FaultPlan::default() };
    if from_there_on {
        plan.in_a_row = u64::MAX;
    }
    if what == FailWhat::NoMemory {
        plan = FaultPlan {
            in_a_row: 100,
            error: BackingError::Short(rustix::io::Errno::NOMEM.raw_os_error()),
            ..plan
        };
    }
    Arc::new(FaultyBacking::new(backing, plan))
}

fn default_device(args: &Options, memory_max_bytes: u64, opening: &Opening) -> Result<Device, String> {
    let dir = args.swap_dir();
    let is_in_ram = is_in_ram(&dir);
    if is_in_ram && !args.names_swap_dir() {
        eprintln!(
            "memspill: {} is in RAM: no swap file is made, pages are compressed in RAM only; name a \
             directory on a disk with --swap-dir",
            plain(&dir.display().to_string())
        );
        let spec = SwapSpec::Ram { size: None, priority: None, algorithm: Algorithm::default(), fail: None };
        return open_one(&spec, memory_max_bytes, 0, &[], opening);
    }
    let file = file_config(FilePlace::Temp { dir: dir.clone() }, None, opening);
    let file = within_file_limit(file, false).map_err(|e| format!("cannot make a swap file: {e}"))?;
    let pool = pool_in_front(memory_max_bytes, opening);
    let slots = pool.slots.min((file.max_bytes / PAGE_SIZE as u64) as u32);
    let ram = RamConfig { slots, ..pool };
    let backing = TierBacking::new(ram, file).map_err(|e| {
        let other = if e.kind() == ErrorKind::NotFound {
            "make it, or name another directory with --swap-dir"
        } else {
            "name another directory with --swap-dir"
        };
        let mends = limits::remedy(&e).unwrap_or_else(|| other.to_owned());
        format!("cannot make a swap file in {}: {}; {mends}", dir.display(), words(&e))
    })?;
    if is_in_ram {
        eprintln!(
            "memspill: swap directory {} is in RAM: what is written there frees no memory; name one on a \
             disk with --swap-dir",
            plain(&dir.display().to_string())
        );
    }
    tell_of_unlocked_key(backing.file(), "default");
    Ok(device("default", &[], -1, Arc::new(backing), opening))
}

fn file_config(place: FilePlace, size: Option<u64>, opening: &Opening) -> FileConfig {
    FileConfig {
        place,
        max_bytes: u64::from(slots_here(size)) * PAGE_SIZE as u64,
        free_floor_bytes: opening.disk_free_bytes,
        queues: opening.layout.queues(),
        io: IoEngine::Auto,
        discard: DiscardPolicy::default(),
        encrypt: opening.encrypt,
    }
}

fn tell_of_unlocked_key(file: &FileBacking, device: &str) {
    if file.has_unlocked_key() {
        let device = plain(device);
        eprintln!(
            "memspill: swap device {device}: its key is not locked in memory, so a swap of the kernel may \
             get it: allow 64 KiB more of locked memory (ulimit -l)"
        );
    }
}

/// As `slots_of`, and without a size no more than there is address space for.
fn slots_here(size_bytes: Option<u64>) -> u32 {
    let slots = slots_of(size_bytes);
    match limits::tables_bytes().filter(|_| size_bytes.is_none()) {
        Some(bytes) => u64::from(slots).min(bytes / TABLES_BYTES_PER_SLOT) as u32,
        None => slots,
    }
}

/// The limit on the size of files (ulimit -f): a file whose size was not asked for ends there.
fn within_file_limit(config: FileConfig, asked_for: bool) -> Result<FileConfig, String> {
    let is_no_file = |path| std::fs::metadata(path).is_ok_and(|file| !file.is_file());
    let is_device = match &config.place {
        FilePlace::Path(path) | FilePlace::Overwritten(path) => is_no_file(path),
        FilePlace::Temp { .. } => false,
    };
    let Some(most) = limits::file_bytes().filter(|most| !is_device && *most < config.max_bytes) else {
        return Ok(config);
    };
    let (most_text, needed) = (size::human(most), size::human(limits::FILE_BYTES_MIN));
    if asked_for {
        return Err(format!(
            "the limit on the size of files (ulimit -f) is {most_text}: raise it, or give a smaller size="
        ));
    }
    if most < limits::FILE_BYTES_MIN {
        return Err(format!(
            "the limit on the size of files (ulimit -f) is {most_text}, and at least {needed} are needed: \
             raise it, or use --swap ram:"
        ));
    }
    Ok(FileConfig { max_bytes: most, ..config })
}

/// The text of an error, with what mends it where a limit of this process is the cause.
fn with_remedy(error: &std::io::Error) -> String {
    limits::remedy(error).map_or(error.to_string(), |mends| format!("{error}; {mends}"))
}

/// The path, why the swap file could not be opened, and what mends it.
fn why_not_opened(path: &Path, error: &std::io::Error) -> String {
    let name = path.display();
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("{name}: permission denied: name a file in a directory that you may write to")
        }
        ErrorKind::NotFound => {
            let dir = path.parent().unwrap_or(path).display();
            format!("{name}: there is no directory {dir}")
        }
        _ => format!("{name}: {}", with_remedy(error)),
    }
}

/// Slot 0 is never used, so a device of a given size has one more.
pub fn slots_of(size_bytes: Option<u64>) -> u32 {
    size_bytes.map_or(SLOTS_DEFAULT, |bytes| (bytes / PAGE_SIZE as u64 + 1).min(1 << 31) as u32)
}

fn device(name: &str, names: &[&str], priority: i16, backing: Arc<dyn Backing>, opening: &Opening) -> Device {
    let properties = backing.properties();
    let slots = Slots::new(properties.slots, opening.layout.queues(), properties.rotational, &opening.tuning);
    Device::new(unique_name(name, names), priority, slots, backing)
}

/// The second `ram:` is `ram:#2`: by its name a device is switched off.
fn unique_name(name: &str, names: &[&str]) -> String {
    let numbered = (2..).map(|n| format!("{name}#{n}"));
    std::iter::once(name.to_string())
        .chain(numbered)
        .find(|n| !names.contains(&n.as_str()))
        .expect("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_devices_have_one_name() {
        assert_eq!(unique_name("ram:", &[]), "ram:");
        assert_eq!(unique_name("ram:", &["ram:", "file:/x"]), "ram:#2");
        assert_eq!(unique_name("ram:", &["ram:", "ram:#2"]), "ram:#3");
        assert_eq!(unique_name("ram:", &["ram:#2"]), "ram:");
    }
}
