//! The bytes that count against the budget and are no managed pages: memory of the targets that is not
//! managed, the compressed pool, frames, tables and all else of our own. A RAM disk does not count: it was
//! set aside.
//!
//! ```text
//!   other_bytes = pool + frames         known exactly: brought up to date after each batch
//!               + measured              the monitor's: unmanaged memory of the targets, shared memory
//!                                       (each object once), and our own
//! ```

use crate::proc::SharedKind;
use memspill_engine::engine::{Engine, TableBytes};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// All tables, and the pages (resident and swapped) that they were for.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    pub bytes: TableBytes,
    pub managed_pages: u64,
}

/// An object of shared memory that is not managed, or a part of one.
#[derive(Clone, Debug)]
pub struct UnmanagedShared {
    /// One that has it, for which it was counted. None: nobody has it any more, but it has a name.
    pub process: Option<u64>,
    pub kind: SharedKind,
    pub name: String,
    pub bytes: u64,
    /// It is to become managed, unless something is in the way.
    pub is_to_leave: bool,
}

#[derive(Default)]
pub struct Account {
    /// Parts of `other_bytes` that the monitor measures: unmanaged memory of the targets, tables, our own.
    measured_bytes: AtomicU64,
    counting: Mutex<()>,
    largest_pool_bytes: AtomicU64,
    largest_ram_disk_bytes: AtomicU64,
    largest_tables: Mutex<Tables>,
    largest_shared_bytes: AtomicU64,
    unmanaged_shared: Mutex<Vec<UnmanagedShared>>,
    shared_objects: AtomicU64,
    shared_pages_out: AtomicU64,
    awake_us: AtomicU64,
}

impl Account {
    pub fn measured_bytes(&self) -> u64 {
        self.measured_bytes.load(Ordering::Relaxed)
    }

    pub fn set_measured_bytes(&self, bytes: u64) {
        self.measured_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Between this and the end of the guard nobody else counts what processes have that is not managed.
    pub fn begin_counting(&self) -> MutexGuard<'_, ()> {
        self.counting.lock().expect("counting")
    }

    /// These bytes have come since the monitor measured it.
    pub fn more_unmanaged(&self, bytes: u64) {
        self.measured_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were counted as unmanaged until now are managed from here on.
    pub fn less_unmanaged(&self, bytes: u64) {
        let less = |measured: u64| Some(measured.saturating_sub(bytes));
        let _ = self.measured_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Pool, frames and tables change with every batch: bring the group's figure up to date.
    pub fn update(&self, engine: &Engine) {
        let DeviceRam { pool_bytes, ram_disk_bytes, .. } = held(engine);
        self.largest_pool_bytes.fetch_max(pool_bytes, Ordering::Relaxed);
        self.largest_ram_disk_bytes.fetch_max(ram_disk_bytes, Ordering::Relaxed);
        engine.root().set_other_bytes(pool_bytes + engine.frame_bytes() + self.measured_bytes());
    }

    /// Note how large the engine's tables are. To be called now and then.
    pub fn note_tables(&self, engine: &Engine) {
        let managed = engine.spaces().iter().map(|s| s.resident_pages() + s.swapped_pages()).sum();
        let now = Tables { bytes: engine.tables(), managed_pages: managed };
        let mut largest = self.largest_tables.lock().expect("tables");
        if now.bytes.sum() > largest.bytes.sum() {
            *largest = now;
        }
    }

    /// When they were at their largest.
    pub fn largest_tables(&self) -> Tables {
        *self.largest_tables.lock().expect("tables")
    }

    /// Notes how much shared memory is there, managed or not, and the large objects that are not managed.
    pub fn note_shared(&self, bytes: u64, unmanaged: Vec<UnmanagedShared>) {
        self.largest_shared_bytes.fetch_max(bytes, Ordering::Relaxed);
        *self.unmanaged_shared.lock().expect("shared memory") = unmanaged;
    }

    /// Large objects that are not managed, the largest first.
    pub fn unmanaged_shared(&self) -> Vec<UnmanagedShared> {
        let mut found = self.unmanaged_shared.lock().expect("shared memory").clone();
        found.sort_by_key(|object| std::cmp::Reverse(object.bytes));
        found
    }

    pub fn largest_shared_bytes(&self) -> u64 {
        self.largest_shared_bytes.load(Ordering::Relaxed)
    }

    /// One more object is managed.
    pub fn count_shared_object(&self) {
        self.shared_objects.fetch_add(1, Ordering::Relaxed);
    }

    /// Objects that have become managed so far.
    pub fn shared_objects(&self) -> u64 {
        self.shared_objects.load(Ordering::Relaxed)
    }

    pub fn count_shared_out(&self, pages: usize) {
        self.shared_pages_out.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Pages of shared memory that were taken out so far.
    pub fn shared_pages_out(&self) -> u64 {
        self.shared_pages_out.load(Ordering::Relaxed)
    }

    /// For so long idle CPUs were kept awake.
    pub fn add_awake(&self, time: Duration) {
        self.awake_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn awake_us(&self) -> u64 {
        self.awake_us.load(Ordering::Relaxed)
    }

    /// The most RAM that pools held, as it was seen after each batch.
    pub fn largest_pool_bytes(&self) -> u64 {
        self.largest_pool_bytes.load(Ordering::Relaxed)
    }

    /// The most RAM that RAM disks held.
    pub fn largest_ram_disk_bytes(&self) -> u64 {
        self.largest_ram_disk_bytes.load(Ordering::Relaxed)
    }
}

/// RAM that swap devices hold.
#[derive(Clone, Copy, Default)]
struct DeviceRam {
    /// Counts against the budget.
    pool_bytes: u64,
    /// The part of these in a file that agents read.
    pool_file_bytes: u64,
    /// Does not count.
    ram_disk_bytes: u64,
}

fn held(engine: &Engine) -> DeviceRam {
    engine.devices().iter().map(|device| device.backing.usage()).fold(DeviceRam::default(), |sum, usage| {
        DeviceRam {
            pool_bytes: sum.pool_bytes + usage.ram_bytes,
            pool_file_bytes: sum.pool_file_bytes + usage.ram_file_bytes,
            ram_disk_bytes: sum.ram_disk_bytes + usage.ram_disk_bytes,
        }
    })
}

/// Pools in RAM: what they take, and the pages in them.
pub fn pools(engine: &Engine) -> Pools {
    engine.devices().iter().map(|device| device.backing.usage()).fold(Pools::default(), |sum, usage| Pools {
        ram_bytes: sum.ram_bytes + usage.ram_bytes,
        ram_pages: sum.ram_pages + usage.ram_pages,
    })
}

/// See [`pools`].
#[derive(Clone, Copy, Default)]
pub struct Pools {
    pub ram_bytes: u64,
    pub ram_pages: u64,
}

/// RAM that swap devices hold and that counts against the budget.
pub fn pool_bytes(engine: &Engine) -> u64 {
    held(engine).pool_bytes
}

/// Memory of our own that is neither pool nor frames nor RAM disk, and not charged: tables, stacks, code's
/// data, and links to processes.
pub fn own_bytes(engine: &Engine) -> u64 {
    let held = held(engine);
    let own = crate::proc::own_memory().unwrap_or_default();
    // (Neither stands still while it is read.)
    let pool_bytes = held.pool_bytes.saturating_sub(held.pool_file_bytes);
    let elsewhere = pool_bytes + held.ram_disk_bytes + engine.frame_bytes() + engine.read_ahead_bytes();
    // Without a pool in a file nobody reads in his own thread. Then shared memory of ours is that of
    // programs, which is counted by itself.
    let links_bytes = match held.pool_file_bytes {
        0 => 0,
        pool_bytes => own.shmem_bytes.saturating_sub(pool_bytes),
    };
    own.anon_bytes.saturating_sub(elsewhere) + links_bytes
}
