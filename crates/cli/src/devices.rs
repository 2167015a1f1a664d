//! The swap devices of a run: what `--swap` names, or the default.
//!
//! The default is one device: compressed RAM inside the budget, which moves its oldest pages out to an unlinked file in
//! the swap directory when its share of the budget is used up.

use crate::args::RunArgs;
use crate::spec::{Fail, FailWhat, SwapSpec};
use memspill_backing::faulty::{FaultPlan, FaultyBacking, bit_flip_at};
use memspill_backing::file::{FileBacking, FileConfig, FilePlace, IoEngine};
use memspill_backing::ram::{RamBacking, RamConfig};
use memspill_backing::tier::TierBacking;
use memspill_engine::backing::Backing;
use memspill_engine::engine::Device;
use memspill_engine::slots::SwapDevice;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::PAGE_SIZE;
use memspill_engine::word::ENTRY_DEVICES_MAX;
use memspill_pager::supervisor::Layout;
use std::sync::Arc;

/// Slots of a device whose size is not given (256 GiB): tables are made as slots are used, the disk sets the end.
const SLOTS_DEFAULT: u32 = 1 << 26;

/// The compressed pool's share of the budget, when a file stands behind it.
fn pool_share_bytes(memory_max_bytes: u64) -> u64 {
    memory_max_bytes * 2 / 5
}

/// Without a file the pool may take nearly all: what is left is what the program works in.
fn pool_alone_bytes(memory_max_bytes: u64) -> u64 {
    memory_max_bytes * 9 / 10
}

pub fn open(
    args: &RunArgs,
    memory_max_bytes: u64,
    ram_bytes: u64,
    tuning: &Tuning,
    layout: Layout,
) -> Result<Vec<Device>, String> {
    if args.swap.len() > ENTRY_DEVICES_MAX {
        return Err(format!("at most {ENTRY_DEVICES_MAX} swap devices can be used at once"));
    }
    let disk_free_bytes = args.disk_free.resolve(ram_bytes).unwrap_or(0);
    if args.swap.is_empty() {
        return Ok(vec![default_device(args, memory_max_bytes, disk_free_bytes, tuning, layout)?]);
    }
    let mut devices = Vec::new();
    for (n, spec) in args.swap.iter().enumerate() {
        // As swapon: without a priority, the first named is the first used.
        let default_priority = -2 - n as i16;
        devices.push(match spec {
            SwapSpec::Ram { size, priority, fail } => {
                let slots = slots_of(*size);
                let config = RamConfig { slots, ram_limit_bytes: pool_alone_bytes(memory_max_bytes) };
                let backing = failing(RamBacking::new(config), *fail);
                device("ram:", priority.unwrap_or(default_priority), backing, tuning, layout)
            }
            SwapSpec::File { path, size, priority, fail } => {
                let config = file_config(FilePlace::Path(path.clone()), *size, disk_free_bytes, layout);
                let backing =
                    FileBacking::open(config).map_err(|e| format!("--swap file:{}: {e}", path.display()))?;
                if let Some(Fail { what: FailWhat::Flip, at, .. }) = fail {
                    backing.set_tamper(bit_flip_at(*at));
                }
                let name = format!("file:{}", path.display());
                let backing = failing(backing, *fail);
                device(&name, priority.unwrap_or(default_priority), backing, tuning, layout)
            }
        });
    }
    Ok(devices)
}

/// With the failure that a test asks for.
fn failing<B: Backing + 'static>(backing: B, fail: Option<Fail>) -> Arc<dyn Backing> {
    let Some(Fail { what, at, from_there_on }) = fail.filter(|f| f.what != FailWhat::Flip) else {
        return Arc::new(backing);
    };
    let at_if = |wanted| if what == wanted { at } else { 0 };
    let (read_failure_at, write_failure_at) = (at_if(FailWhat::Read), at_if(FailWhat::Write));
    let plan = FaultPlan { read_failure_at, write_failure_at, from_there_on, ..FaultPlan::default() };
    Arc::new(FaultyBacking::new(backing, plan))
}

fn default_device(
    args: &RunArgs,
    memory_max_bytes: u64,
    disk_free_bytes: u64,
    tuning: &Tuning,
    layout: Layout,
) -> Result<Device, String> {
    let dir = args.swap_dir();
    let file = file_config(FilePlace::Temp { dir: dir.clone() }, None, disk_free_bytes, layout);
    let ram = RamConfig { slots: SLOTS_DEFAULT, ram_limit_bytes: pool_share_bytes(memory_max_bytes) };
    let backing = TierBacking::new(ram, file).map_err(|e| {
        format!("cannot make a swap file in {}: {e}; name another directory with --swap-dir", dir.display())
    })?;
    Ok(device("default", -1, Arc::new(backing), tuning, layout))
}

fn file_config(place: FilePlace, size: Option<u64>, free_floor_bytes: u64, layout: Layout) -> FileConfig {
    FileConfig {
        place,
        max_bytes: u64::from(slots_of(size)) * PAGE_SIZE as u64,
        free_floor_bytes,
        queues: layout.queues(),
        io: IoEngine::Auto,
    }
}

/// Slot 0 is never used, so a device of a given size has one more.
fn slots_of(size_bytes: Option<u64>) -> u32 {
    size_bytes.map_or(SLOTS_DEFAULT, |bytes| (bytes / PAGE_SIZE as u64 + 1).min(1 << 31) as u32)
}

fn device(name: &str, priority: i16, backing: Arc<dyn Backing>, tuning: &Tuning, layout: Layout) -> Device {
    let properties = backing.properties();
    let slots = SwapDevice::new(properties.slots, layout.queues(), properties.rotational, tuning);
    Device::new(name.to_string(), priority, slots, backing)
}
