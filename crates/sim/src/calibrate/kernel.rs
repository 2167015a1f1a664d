//! What the kernel does with memory, timed in this process: faults, userfaultfd, moves, splits, staging.
//!
//! ```text
//!   touch ─▶ fault ─▶ pager thread on the same CPU: poll, read, UFFDIO_COPY ─▶ goes on
//!   UFFDIO_MOVE: of one page, of 64, of one page out of a huge page (which splits it)
//! ```
//!
//! None where the machine does not let it: no userfaultfd, no huge pages. What it does not do: change
//! settings of the machine.
#![allow(unsafe_code, reason = "mappings of our own, made and given back here, and ioctls on them")]

use memspill_uffd::userfaultfd::Uffd;
use memspill_uffd::vm;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

const PAGE: usize = 4096;
/// Pages of a huge page.
pub const HUGE: usize = 512;
/// Pages of a run, as batches have them.
const RUN: usize = 64;
const ROUNDS: usize = 5;

/// Anonymous memory of our own, aligned to a huge page.
struct Mapping {
    all: *mut u8,
    all_bytes: usize,
    at: *mut u8,
}

impl Mapping {
    fn new(pages: usize, huge: bool) -> Option<Mapping> {
        let all_bytes = (pages + HUGE) * PAGE;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping, wherever the kernel has room for it.
        let all = unsafe { libc::mmap(std::ptr::null_mut(), all_bytes, protection, flags, -1, 0) };
        if all == libc::MAP_FAILED {
            return None;
        }
        let all = all.cast::<u8>();
        let at = all.wrapping_add(all.align_offset(HUGE * PAGE));
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        let mapping = Mapping { all, all_bytes, at };
        // SAFETY: advice on our own mapping, which changes no byte of it.
        let advised = unsafe { libc::madvise(all.cast(), all_bytes, advice) } == 0;
        (advised || !huge).then_some(mapping)
    }

    fn addr(&self, page: usize) -> u64 {
        self.at as u64 + (page * PAGE) as u64
    }

    fn store(&self, page: usize) {
        self.store_word(page, 1);
    }

    fn store_word(&self, page: usize, word: u8) {
        // SAFETY: within the mapping, which is ours and holds plain bytes.
        unsafe { self.at.add(page * PAGE).write_volatile(word) };
    }

    fn empty(&self, page: usize, pages: usize) {
        // SAFETY: pages of our own mapping, of which nobody holds a reference.
        unsafe { libc::madvise(self.at.add(page * PAGE).cast(), pages * PAGE, libc::MADV_DONTNEED) };
    }

    /// Huge pages that the kernel has given us here.
    fn huge_pages(&self) -> usize {
        self.pages("AnonHugePages:") / HUGE
    }

    /// Pages that smaps counts under this name.
    fn pages(&self, name: &str) -> usize {
        let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
        let start = format!("{:x}-", self.all as usize);
        let of_mapping = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let counted = of_mapping.filter_map(|line| line.strip_prefix(name)).next();
        let kilobytes = counted.and_then(|text| text.trim().trim_end_matches(" kB").parse::<usize>().ok());
        kilobytes.unwrap_or(0) / (PAGE >> 10)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole of what `new` has mapped, which nobody uses any more.
        unsafe { libc::munmap(self.all.cast(), self.all_bytes) };
    }
}

#[repr(C)]
struct MoveArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}
const UFFDIO_MOVE: u64 = 3 << 30 | (size_of::<MoveArg>() as u64) << 16 | 0xaa << 8 | 0x05;
const UFFD_FEATURE_MOVE: u64 = 1 << 16;

/// Move pages of ours to where nothing is.
fn move_pages(uffd: &Uffd, dst: u64, src: u64, pages: usize) -> io::Result<()> {
    let mut arg = MoveArg { dst, src, len: (pages * PAGE) as u64, mode: 0, moved: 0 };
    // SAFETY: the number encodes the size of the argument, which lives; both ranges are mappings of ours.
    match unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_MOVE as _, &mut arg) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The least of some rounds, since whatever disturbs only adds. None: a round could not be made.
fn least(round: impl FnMut(usize) -> Option<f64>) -> Option<f64> {
    (0..ROUNDS).map(round).try_fold(f64::INFINITY, |least, ns| Some(least.min(ns?)))
}

fn ns_for_each(n: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..n).for_each(&mut work);
    start.elapsed().as_nanos() as f64 / n as f64
}

/// The first store to a page.
pub fn first_store() -> Option<f64> {
    least(|_| {
        let mapping = Mapping::new(8 * HUGE, false)?;
        Some(ns_for_each(8 * HUGE, |page| mapping.store(page)))
    })
}

/// The first store to a huge page.
pub fn first_store_huge() -> Option<f64> {
    const HUGE_PAGES: usize = 16;
    least(|_| {
        let mapping = Mapping::new(HUGE_PAGES * HUGE, true)?;
        let ns = ns_for_each(HUGE_PAGES, |n| mapping.store(n * HUGE));
        (mapping.huge_pages() >= HUGE_PAGES).then_some(ns)
    })
}

/// The kernel's reclaim of a page of zeros, which it writes to no device: of single pages, or of huge ones.
/// None where no swap device takes them.
pub fn page_out(huge: bool) -> Option<f64> {
    const PAGES: usize = 16 * HUGE;
    least(|_| {
        let mapping = Mapping::new(PAGES, huge)?;
        (0..PAGES).for_each(|page| mapping.store_word(page, 0));
        let ns = ns_for_each(1, |_| {
            // SAFETY: advice on our own mapping, which changes no byte of it.
            unsafe { libc::madvise(mapping.at.cast(), PAGES * PAGE, libc::MADV_PAGEOUT) };
        });
        (mapping.pages("Swap:") >= PAGES).then_some(ns / PAGES as f64)
    })
}

/// A userfaultfd, and so many pages whose missing ones it answers for.
fn managed(pages: usize) -> Option<(Uffd, Mapping)> {
    let uffd = Uffd::of_self(None).ok()?;
    uffd.api(UFFD_FEATURE_MOVE).ok()?;
    let mapping = Mapping::new(pages, false)?;
    uffd.register(mapping.addr(0), (pages * PAGE) as u64).ok()?;
    Some((uffd, mapping))
}

/// A page in a run: UFFDIO_COPY, UFFDIO_ZEROPAGE.
pub fn fill(zero: bool) -> Option<f64> {
    const RUNS: usize = 64;
    let bytes = vec![7u8; RUN * PAGE];
    least(|_| {
        let (uffd, mapping) = managed(RUNS * RUN)?;
        // What the page tables need is there before.
        (0..RUNS * RUN).step_by(HUGE).for_each(|page| _ = uffd.zeropage(mapping.addr(page), PAGE as u64));
        mapping.empty(0, RUNS * RUN);
        let ns = ns_for_each(RUNS, |run| {
            let at = mapping.addr(run * RUN);
            let filled = if zero { uffd.zeropage(at, bytes.len() as u64) } else { uffd.copy(at, &bytes) };
            assert_eq!(filled.bytes, bytes.len() as u64, "missing pages of our own are filled");
        });
        Some(ns / RUN as f64)
    })
}

/// UFFDIO_COPY of one page, and nobody waits.
pub fn copy_one() -> Option<f64> {
    let bytes = [7u8; PAGE];
    least(|_| {
        let (uffd, mapping) = managed(2 * HUGE)?;
        Some(ns_for_each(2 * HUGE, |page| _ = uffd.copy(mapping.addr(page), &bytes)))
    })
}

/// UFFDIO_WAKE where nobody waits.
pub fn wake() -> Option<f64> {
    let (uffd, mapping) = managed(HUGE)?;
    least(|_| Some(ns_for_each(HUGE, |page| uffd.wake(mapping.addr(page), PAGE as u64))))
}

/// A fault with all that comes of it, and of that the read of its message. The pager is on the CPU of the
/// thread that faults, as it is in a run.
pub fn fault_and_read() -> Option<(f64, f64)> {
    const FAULTS: usize = 2 * HUGE;
    let mut best: Option<(f64, f64)> = None;
    for _ in 0..ROUNDS {
        let (uffd, mapping) = managed(FAULTS)?;
        let (uffd, mapping) = (&uffd, &mapping);
        let addr = mapping.addr(0);
        let before = sched_getaffinity(None).ok()?;
        let here = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu))?;
        let mut one = CpuSet::new();
        one.set(here);
        let (total, read) = std::thread::scope(|scope| {
            let pager = scope.spawn(move || {
                sched_setaffinity(None, &one).ok()?;
                let (bytes, mut events, mut read_ns, mut served) = ([7u8; PAGE], Vec::new(), 0, 0);
                while served < FAULTS {
                    let mut poll = libc::pollfd { fd: uffd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: one pollfd, on our stack.
                    unsafe { libc::poll(&mut poll, 1, -1) };
                    let start = Instant::now();
                    events.clear();
                    let read = uffd.read(&mut events).ok()?;
                    read_ns += start.elapsed().as_nanos() as u64;
                    for _ in 0..read {
                        // Faults come in the order of the pages.
                        uffd.copy(addr + (served * PAGE) as u64, &bytes);
                        served += 1;
                    }
                }
                Some(read_ns as f64 / FAULTS as f64)
            });
            sched_setaffinity(None, &one).ok()?;
            let total = ns_for_each(FAULTS, |page| {
                // SAFETY: within the mapping, which is ours and holds plain bytes.
                unsafe { (addr as *mut u8).add(page * PAGE).write_volatile(1) };
            });
            let read = pager.join().ok()??;
            sched_setaffinity(None, &before).ok()?;
            Some((total, read))
        })?;
        if best.is_none_or(|(least, _)| total < least) {
            best = Some((total, read));
        }
    }
    best
}

/// UFFDIO_MOVE of runs of so many pages; each run by itself.
pub fn move_run(pages: usize) -> Option<f64> {
    const RUNS: usize = 32;
    least(|_| {
        let (uffd, staging) = managed(RUNS * RUN)?;
        let from = Mapping::new(RUNS * RUN, false)?;
        (0..RUNS * RUN).for_each(|page| from.store(page));
        (0..RUNS * RUN).step_by(HUGE).for_each(|page| _ = uffd.zeropage(staging.addr(page), PAGE as u64));
        staging.empty(0, RUNS * RUN);
        let mut moved = true;
        let ns = ns_for_each(RUNS, |run| {
            let at = run * RUN;
            moved &= move_pages(&uffd, staging.addr(at), from.addr(at), pages).is_ok();
        });
        moved.then_some(ns)
    })
}

/// UFFDIO_MOVE of one page out of a huge page that is whole.
pub fn move_out_of_huge() -> Option<f64> {
    const HUGE_PAGES: usize = 16;
    least(|_| {
        let (uffd, staging) = managed(HUGE)?;
        let from = Mapping::new(HUGE_PAGES * HUGE, true)?;
        (0..HUGE_PAGES * HUGE).for_each(|page| from.store(page));
        if from.huge_pages() < HUGE_PAGES {
            return None;
        }
        let mut moved = true;
        let ns = ns_for_each(HUGE_PAGES, |n| {
            moved &= move_pages(&uffd, staging.addr(n), from.addr(n * HUGE), 1).is_ok();
        });
        moved.then_some(ns)
    })
}

/// A page is copied out of staging, as out of another process, and staging is emptied.
pub fn stage() -> Option<f64> {
    const RUNS: usize = 64;
    let staging = Mapping::new(RUN, false)?;
    let mut frames = vec![0u8; RUN * PAGE];
    least(|_| {
        let mut ns = 0;
        for _ in 0..RUNS {
            (0..RUN).for_each(|page| staging.store(page));
            let start = Instant::now();
            vm::read(std::process::id(), &[(staging.addr(0), RUN * PAGE)], &mut frames).ok()?;
            staging.empty(0, RUN);
            ns += start.elapsed().as_nanos();
        }
        Some(ns as f64 / (RUNS * RUN) as f64)
    })
}

/// From one thread of a CPU to another one there.
pub fn context_switch() -> Option<f64> {
    const TURNS: usize = 1 << 12;
    let before = sched_getaffinity(None).ok()?;
    let here = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu))?;
    let mut one = CpuSet::new();
    one.set(here);
    let ns = least(|_| {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                _ = sched_setaffinity(None, &one);
                (0..TURNS).for_each(|_| std::thread::yield_now());
            });
            sched_setaffinity(None, &one).ok()?;
            // Until the other one is there too.
            std::thread::yield_now();
            // There and back.
            Some(ns_for_each(TURNS / 2, |_| std::thread::yield_now()) / 2.0)
        })
    });
    sched_setaffinity(None, &before).ok()?;
    ns
}
