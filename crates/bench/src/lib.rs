//! `memspill bench`: the same work in turns, under memspill and under the kernel's own swap (`compare`), or
//! under one setting of memspill and another (`seeds`).
//!
//! ```text
//!   compare.rs    learn what the work takes ─▶ pairs: kernel, memspill, memspill, kernel, …  ─▶ Comparison
//!     plan.rs       what is run, under which limit and budget
//!     cgroup.rs     the memory cgroup of a run, v1 or v2        ┐ made for one run and taken down after it,
//!     swap.rs       the kernel's swap device: zram or a file    ┘ whatever happens: they clean up in drop
//!     process.rs    one run: its time, memory, output and end
//!     signals.rs    Ctrl-C is a mark that is looked at, so that nothing is left half made
//!     scratch.rs    a directory for all of that
//!   outcome.rs    medians, ratios pair by pair, failures; as text and as JSON
//!     flat.rs       the line of JSON that workloads print, and memspill's statistics
//!   seeds/        tables of settings ─▶ runs of memspill with --tune ─▶ memspill_tables::Report
//! ```
//!
//! A run that failed is counted and shown, never dropped in silence. The machine is as it was afterwards:
//! swap devices, cgroups, zram devices, files. Only kill -9 of this program leaves something behind; the next
//! one names it.

pub mod cgroup;
pub mod compare;
pub mod flat;
pub mod outcome;
pub mod plan;
pub mod process;
mod scratch;
pub mod seeds;
pub mod signals;
pub mod swap;

/// Why there is no comparison, or no more of it.
#[derive(Debug, PartialEq)]
pub enum Stop {
    /// With the reason, and what mends it.
    Refused(String),
    /// By a signal.
    Interrupted(i32),
}

impl Stop {
    fn refuse<T>(reason: impl Into<String>) -> Result<T, Stop> {
        Err(Stop::Refused(reason.into()))
    }
}

pub const MIB: u64 = 1 << 20;

/// For messages and tables.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}
