//! Every constant of the simulation, each with where it comes from. Nanoseconds of virtual time.
//!
//! `memspill-lab sim calibrate` measures those marked (c) on the machine where it runs, and shows them beside
//! these. They are constants, not settings, so that the same command prints the same bytes everywhere. None
//! is fitted to a result.

// ---- cache lines and locks --------------------------------------------------------------------------------

/// (c) A load that hits the first cache.
pub const LOAD_NS: u64 = 1;
/// (c) A locked instruction on a line that this CPU has alone: 18 to 20 cycles (Agner Fog's tables, Skylake
/// `lock xadd`).
pub const RMW_NS: u64 = 6;
/// (c) A line that this CPU had and dropped for others: second cache or so (14 cycles on Skylake, Intel's
/// optimization manual).
pub const L2_NS: u64 = 5;
/// (c, with misses of the TLB) A line that no CPU has: memory of the own socket (Memory Latency Checker,
/// common two-socket Xeons: 70 to 90).
pub const DRAM_NS: u64 = 80;
/// A line that another core of the socket has changed: 40.3 to 42.3 on a Xeon E5-2660 v4 (Memory Latency
/// Checker, quoted by J. McCalpin, Intel forum topic 700477). (c) with two CPUs of one socket.
pub const LINE_SAME_SOCKET_NS: u64 = 42;
/// The same from another socket, one hop: 289 cycles at 2.13 GHz (T. David, R. Guerraoui, V. Trigonakis,
/// "Everything you always wanted to know about synchronization but were afraid to ask", SOSP 2013, Xeon,
/// loads of modified lines).
pub const LINE_OTHER_SOCKET_NS: u64 = 136;
/// (c) The `pause` of a spin: 140 cycles since Skylake (Intel's optimization manual).
pub const PAUSE_NS: u64 = 45;
/// (c) sched_yield(2) with nobody else on the CPU.
pub const SCHED_YIELD_NS: u64 = 300;
/// How long std's locks spin before they sleep: 100 rounds of `pause`.
pub const SPIN_NS: u64 = 100 * PAUSE_NS;
/// (c) From one thread of a CPU to another one there: 1.2 to 1.5 µs for a pair of pinned threads (E.
/// Bendersky, "Measuring context switching and memory overheads for Linux threads", 2018).
pub const CONTEXT_SWITCH_NS: u64 = 1_300;
/// (c) What a wake costs the one who wakes: FUTEX_WAKE or a write to an eventfd with a sleeper.
pub const WAKE_NS: u64 = 1_000;
/// Until the one who is woken runs, on a CPU that has not gone to sleep deeply. An idle CPU of a virtual
/// machine takes 50 µs (measured for the pager, see `group.rs`); one that polls when idle
/// takes about this.
pub const WAKE_LATENCY_NS: u64 = 5_000;

// ---- the pager's work on one page, measured on a two-CPU virtual machine with kernel 6.18 -----------------

/// An access to a page that is there: a miss of cache and TLB.
pub const ACCESS_NS: u64 = 100;
/// (c) Exception, message, poll, and the way back: 6.0 µs a fault with its read and its UFFDIO_COPY, less
/// those.
pub const FAULT_NS: u64 = 4_650;
/// (c) The read of a userfaultfd, alone in the gate of its address space.
pub const READ_MESSAGE_NS: u64 = 500;
/// (c) UFFDIO_COPY, a page in a run; the least of what was seen is 790.
pub const COPY_PAGE_NS: u64 = 850;
/// (c) UFFDIO_ZEROPAGE, a page in a run, where the page table is there.
pub const ZERO_PAGE_NS: u64 = 110;
/// (c) UFFDIO_WAKE, with who waits.
pub const WAKE_PAGE_NS: u64 = 500;
/// (c) UFFDIO_MOVE: a page in a run of 32, and what a run costs by itself (0.96 for a run of one).
pub const MOVE_PAGE_NS: u64 = 200;
pub const MOVE_RUN_NS: u64 = 760;
/// (c) A page is copied out of staging: 0.53 to 0.64 µs.
pub const STAGE_PAGE_NS: u64 = 590;
/// An object of shared memory: splice, hole and read, a page in a run of 64 that two processes have mapped;
/// 1.7 to 2.3 µs.
pub const SPLICE_PAGE_NS: u64 = 1_900;
/// Ring the evictor, and hear that it has done: two wakes.
pub const EVICTOR_NS: u64 = 2 * WAKE_NS + 2 * WAKE_LATENCY_NS;
/// (c) Is a page all zeros? Almost always answered by its last word.
pub const IS_ZERO_NS: u64 = 10;

// ---- the kernel's own work, on that machine, idle ---------------------------------------------------------

/// (c) The first store to a page of a mapping: exception, page, charge, zeros, way back.
pub const FIRST_STORE_NS: u64 = 1_300;
/// (c) Each further page of a folio that comes with one fault: zeros. 153 to 155 for a huge page.
pub const FRESH_PAGE_NS: u64 = 150;
/// A fault that the kernel serves, without what is read: the first store without its zeros.
pub const KERNEL_FAULT_NS: u64 = FIRST_STORE_NS - FRESH_PAGE_NS;
/// (c) A folio is split before a page of it leaves, for each of its pages: a huge page takes 296 µs, by the
/// UFFDIO_MOVE of one of its pages, less one that has nothing to split.
pub const SPLIT_PAGE_NS: u64 = 579;
/// And by itself: a page of one of 64 KiB took 0.05 to 0.31 µs more than one of 2 MiB.
pub const SPLIT_FOLIO_NS: u64 = 2_900;
/// Reclaim, without unmapping (`MOVE_RUN_NS`) and the device: a folio, and each of its pages. (c)
/// MADV_PAGEOUT of pages of zeros, of which nothing is written: 2.05 µs a page. A memory group's reclaim
/// takes 4.2 of system time (6.1 a fault, less 1.6 and the access), of which 2.0 are IPIs that leave the
/// guest. To zram, all of one word, a page of 64 KiB takes 1.0 to 1.1 µs, and one of 2 MiB 0.65 to 0.8.
pub const RECLAIM_FOLIO_NS: u64 = 1_040;
pub const RECLAIM_PAGE_NS: u64 = 400;

// ---- devices ----------------------------------------------------------------------------------------------

/// (c) LZ4 of a page, in and out: 3.8 and 1.24 µs for a heap of small objects.
pub const COMPRESS_PAGE_NS: u64 = 3_800;
pub const DECOMPRESS_PAGE_NS: u64 = 1_240;
/// A RAM disk: the request for a page or a run, by way of the block layer. Assumed, for the machine at hand
/// has none: about twice (c) what a write of a page to a file in memory takes beyond the page (440 to 590),
/// which has a system call and no block layer.
pub const RAMDISK_REQUEST_NS: u64 = 1_000;
/// (c) memcpy of a page that is in no cache.
pub const RAMDISK_PAGE_NS: u64 = 300;
/// An NVMe drive: until a read of one page has come (66 to 84 µs for a file on a virtual disk here), each
/// further page at 2 GB/s.
pub const NVME_READ_NS: u64 = 70_000;
pub const NVME_WRITE_NS: u64 = 20_000;
pub const NVME_PAGE_NS: u64 = 2_000;
