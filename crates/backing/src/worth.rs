//! Whether a second compression is worth its time (recompress.rs).
//!
//! It costs CPU time for each page that is tried, and saves the time of a read from the file for each such
//! page that comes back while it is still in the pool. It depends on the disk, on the program and on how its
//! pages compress which of them is more: a read of 10 µs saves less than zstd takes, one of 500 µs pays for
//! twenty pages that never come back. So an account is kept, in nanoseconds:
//!
//! ```text
//!   balance = loan                                    once the file has been read from
//!           + reads of zstd pages × (saved part × what a read from the file takes of late − what zstd takes)
//!           + 1/32 of what reads from the file took   so that it is tried again, now and then
//!           − half of what compressing by zstd took
//!           − zstd pages moved to the file after all × what a write takes
//! ```
//!
//! *The saved part* is by how much pages become shorter: of three pages that become shorter by a third one
//! would have gone to the file, and nobody knows which. For a page that LZ4 does not compress it is all.
//!
//! *Half*, for reclaim compresses beside the program, and mostly on another CPU. (By all of it, a program of
//! dicts took 11 % less time in three runs; by half of it 23 % less in two, and 15 % in three.)
//!
//! While it is above zero pages may be tried. So where it does not pay it costs twice the loan and 6 % of
//! what the disk costs already, and no more. Earnings are kept up to a second: a program that changes its
//! ways spends no more than that before it is noticed.
//!
//! *The account alone is not enough.* It takes reads of zstd pages as spread evenly over the pool, and most
//! are of the youngest: of a hundred such reads 3 would have been of the file in node, 5 to 13 in java, 17 in
//! a program of dicts, 60 in sort. So node ran 14 % longer with it, for file reads that had taken 7 % of its
//! time. Therefore pages are tried only for a turn of ten seconds after a second in which reads of the file
//! took a quarter of the time (a third of it in that program of dicts, 0.7 in sort). Nobody knows what reads
//! would take while pages are tried: a quarter of what the account says counts, or it must be seen again when
//! the turn is over. (Without this quarter sort took 81 s, and with the account alone 60.)
//!
//! What it does not do: know how many pages would have come back from the file. A pool that is just full
//! enough to be recompressed, and would not have overflown, earns all the same; so tier.rs begins at the mark
//! down to which pages leave. To take what part of all reads came from the file while nothing was
//! recompressed would be exact, and too strict: of a program of dicts 5 % did, which is less than the
//! compressing takes, and it ran a sixth faster with it, for the compressing is done while the other CPU
//! waits, and a pool that does not overflow leaves more memory to the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memspill_engine::sync::lock;

/// Are pages of the pool in front of a file compressed once more, by a stronger algorithm, before they go
/// there?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recompress {
    Off,
    On,
    /// While the reads of the file that it saves take longer than it does.
    Auto,
}

/// With which the account begins.
const LOAN_NS: i64 = 100_000_000;
/// The most that is kept, or owed.
const BALANCE_MAX_NS: i64 = 1_000_000_000;
/// One part in so many of the time of the file's reads may be spent, whatever it brings.
const SHARE_OF_READS: i64 = 32;
/// Reads of the file from which on their time is known.
const READS_MIN: u64 = 64;
/// The time that a read makes programs wait is the mean over about this many of the last ones, awaited or
/// not.
const READS_OF_LATE: u64 = 1024;
/// So long it is looked at which part of the time the file's reads take, and so long a turn is.
const LOOK: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_secs(10);
/// They must take one part in so many.
const READS_PART: u64 = 4;
/// This small a part of what the account takes for saved reads is sure enough to go on with when a turn ends.
const SPREAD_PART: i64 = 4;
/// What it takes to write a page to the file, among others.
const FILE_WRITE_NS: i64 = 5_000;
/// A try counts for one part in so many of its time.
const TRY_PART: i64 = 2;
/// The longest time that one try counts for, if the thread was stopped meanwhile.
const TRY_MAX_NS: u64 = 1_000_000;
/// The saved part is the mean over about so many bytes of pages.
const SAVED_OF_LATE_BYTES: u64 = 4 << 20;
/// What a block of zstd takes more to read than one of LZ4.
const ZSTD_READ_NS: i64 = 5_000;
/// And where threads read LZ4 from the pool by themselves, but have to ask for this.
const ASKED_READ_NS: i64 = 15_000;

/// The account, and whether what comes compresses at all. See the module's header.
pub(crate) struct Worth {
    setting: Recompress,
    luck: Luck,
    /// The luck of blocks that did not come in by LZ4 (dense.rs): fewer become shorter.
    dense_luck: Luck,
    /// What a read costs more than one of LZ4.
    read_extra_ns: i64,
    balance_ns: AtomicI64,
    /// Its turn has come, for the file's reads took much of the time.
    has_turn: AtomicBool,
    /// Pages that were tried so far, and blocks of zstd that were read for a fault.
    tried_total: AtomicU64,
    reads_total: AtomicU64,
    /// Recent pages: bytes that tried ones took or would have taken in the pool, and how much of that was
    /// saved.
    tried_bytes: AtomicU64,
    saved_bytes: AtomicU64,
    seen: Mutex<Seen>,
}

/// What was read from the file, in all.
#[derive(Clone, Copy, Default)]
pub(crate) struct FileReads {
    pub all: u64,
    /// By faults. Some of the others are waited for too, by a fault that comes while they are under way: how
    /// many is not known.
    pub awaited: u64,
    /// In which some of those were under way.
    pub awaited_us: u64,
}

/// What has been entered into the account.
#[derive(Default)]
struct Seen {
    reads: u64,
    file: FileReads,
    /// Recent reads.
    late_reads: u64,
    late_us: u64,
    has_begun: bool,
    /// Since when the file's reads are looked at, and what they took since.
    look_since: Option<Instant>,
    look_us: u64,
    look_from: FileReads,
    turn_until: Option<Instant>,
}

impl Seen {
    /// The file's reads took `new_us` more, or would have. Is it the second compression's turn now? Not where
    /// programs wait for the fewest of them: the CPUs have enough to do then, and the disk is not waited for.
    fn look(&mut self, new_us: u64, now: Instant) -> bool {
        let took = now - *self.look_since.get_or_insert(now);
        self.look_us += new_us;
        if took >= LOOK {
            let awaited = self.file.awaited - self.look_from.awaited;
            if 2 * awaited < self.file.all - self.look_from.all {
                self.turn_until = None;
            } else if self.look_us * READS_PART >= took.as_micros() as u64 {
                self.turn_until = Some(now + TURN);
            }
            (self.look_since, self.look_us, self.look_from) = (Some(now), 0, self.file);
        }
        self.turn_until.is_some_and(|until| now < until)
    }
}

impl Worth {
    /// `is_shared`: programs read the pool by themselves.
    pub(crate) fn new(setting: Recompress, is_shared: bool) -> Worth {
        Worth {
            setting,
            luck: Luck::default(),
            dense_luck: Luck::default(),
            read_extra_ns: if is_shared { ASKED_READ_NS } else { ZSTD_READ_NS },
            balance_ns: AtomicI64::new(0),
            has_turn: AtomicBool::new(false),
            tried_total: AtomicU64::new(0),
            reads_total: AtomicU64::new(0),
            tried_bytes: AtomicU64::new(0),
            saved_bytes: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Is it worth while just now?
    pub(crate) fn pays(&self) -> bool {
        match self.setting {
            Recompress::Off => false,
            Recompress::On => true,
            Recompress::Auto => {
                self.has_turn.load(Ordering::Relaxed) && self.balance_ns.load(Ordering::Relaxed) > 0
            }
        }
    }

    /// Is the next page to be tried? `is_dense`: its block did not come in by the pool's algorithm.
    pub(crate) fn tries(&self, is_dense: bool) -> bool {
        self.pays() && self.luck_of(is_dense).tries()
    }

    fn luck_of(&self, is_dense: bool) -> &Luck {
        if is_dense { &self.dense_luck } else { &self.luck }
    }

    /// Does it pay, and do most pages compress?
    pub(crate) fn is_likely(&self) -> bool {
        self.pays() && self.luck.is_good()
    }

    /// A page was tried that takes `len_bytes` in the pool, or none, and could become so short, or not.
    pub(crate) fn note_tried(
        &self,
        is_dense: bool,
        took_ns: u64,
        len_bytes: usize,
        shorter_bytes: Option<usize>,
    ) {
        self.luck_of(is_dense).note(shorter_bytes.is_some());
        self.tried_total.fetch_add(1, Ordering::Relaxed);
        self.balance_ns.fetch_sub(took_ns.min(TRY_MAX_NS) as i64 / TRY_PART, Ordering::Relaxed);
        let Some(shorter_bytes) = shorter_bytes else { return };
        let (tried, saved) = match len_bytes {
            0 => (shorter_bytes, shorter_bytes),
            len_bytes => (len_bytes, len_bytes.saturating_sub(shorter_bytes)),
        };
        self.tried_bytes.fetch_add(tried as u64, Ordering::Relaxed);
        self.saved_bytes.fetch_add(saved as u64, Ordering::Relaxed);
    }

    /// A page that zstd had made shorter was moved to the file.
    pub(crate) fn note_moved_out(&self) {
        self.balance_ns.fetch_sub(FILE_WRITE_NS, Ordering::Relaxed);
    }

    /// The saved part of the room that shorter pages took before, in thousandths.
    fn saved_per_mille(&self) -> i64 {
        let tried = self.tried_bytes.load(Ordering::Relaxed);
        let saved = self.saved_bytes.load(Ordering::Relaxed);
        if tried > SAVED_OF_LATE_BYTES {
            self.tried_bytes.fetch_sub(tried / 2, Ordering::Relaxed);
            self.saved_bytes.fetch_sub(saved / 2, Ordering::Relaxed);
        }
        (saved * 1000 / tried.max(1)).min(1000) as i64
    }

    /// A block of zstd was read for a fault.
    pub(crate) fn note_read(&self) {
        self.reads_total.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn tried_total(&self) -> u64 {
        self.tried_total.load(Ordering::Relaxed)
    }

    pub(crate) fn reads_total(&self) -> u64 {
        self.reads_total.load(Ordering::Relaxed)
    }

    /// Enter what has happened since the last time.
    pub(crate) fn settle(&self, file: FileReads, now: Instant) {
        let mut seen = lock(&self.seen);
        let (new_reads, new_us) = (file.all - seen.file.all, file.awaited_us - seen.file.awaited_us);
        seen.file = file;
        seen.late_reads += new_reads;
        seen.late_us += new_us;
        while seen.late_reads > 2 * READS_OF_LATE {
            seen.late_reads /= 2;
            seen.late_us /= 2;
        }
        if file.all < READS_MIN {
            return;
        }
        let file_read_ns = (seen.late_us * 1000 / seen.late_reads.max(1)) as i64;
        let reads = self.reads_total();
        let new_zstd_reads = (reads - seen.reads) as i64;
        seen.reads = reads;
        let saved_read_ns = file_read_ns * self.saved_per_mille() / 1000;
        let saved = new_zstd_reads * (saved_read_ns - self.read_extra_ns);
        let instead_us = (new_zstd_reads * saved_read_ns / SPREAD_PART / 1000) as u64;
        self.has_turn.store(seen.look(new_us + instead_us, now), Ordering::Relaxed);
        let loan = if seen.has_begun { 0 } else { LOAN_NS };
        seen.has_begun = true;
        let earned = saved + new_us as i64 * 1000 / SHARE_OF_READS + loan;
        let after = self.balance_ns.fetch_add(earned, Ordering::Relaxed) + earned;
        let within = after.clamp(-BALANCE_MAX_NS, BALANCE_MAX_NS);
        self.balance_ns.fetch_add(within - after, Ordering::Relaxed);
    }
}

/// Whether what comes next is likely to compress: after many failures in a row only a few pages are tried.
#[derive(Default)]
struct Luck {
    /// Failures in a row, of late.
    failures: AtomicU64,
    skipped: AtomicU64,
}

impl Luck {
    /// This many failures in a row make it bad.
    const BAD: u64 = 64;
    /// One in so many is tried then.
    const TRIED: u64 = 32;

    fn is_good(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < Luck::BAD
    }

    fn tries(&self) -> bool {
        self.is_good() || self.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(Luck::TRIED)
    }

    fn note(&self, is_shorter: bool) {
        if !is_shorter {
            self.failures.fetch_add(1, Ordering::Relaxed);
        } else if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of `steps`, in which nothing else takes time than reads of the file.
    fn run(worth: &Worth, steps: u64, read_us: u64, back: u64) -> (i64, i64) {
        run_beside(worth, steps, read_us, back, 0)
    }

    fn run_beside(worth: &Worth, steps: u64, read_us: u64, back: u64, beside_us: u64) -> (i64, i64) {
        run_awaiting(worth, steps, (read_us, 100), back, beside_us)
    }

    /// A run of `steps`: in each, `reads` reads of the file that take `read_us` each, and as many pages as
    /// may be tried, up to 100, of 10 µs each, of which `back` in a hundred are read; what else the program
    /// does takes `beside_us`. It waits for `awaited` in a hundred reads. Returns what was spent, and what
    /// the file took, in ns.
    fn run_awaiting(
        worth: &Worth,
        steps: u64,
        (read_us, awaited): (u64, u64),
        back: u64,
        beside_us: u64,
    ) -> (i64, i64) {
        const ZSTD_NS: u64 = 20_000;
        const LONG: usize = 2000;
        const SHORT: usize = 1000;
        let (mut tried, mut file) = (0, lock(&worth.seen).file);
        let before_us = file.awaited_us;
        let mut now = lock(&worth.seen).look_since.unwrap_or_else(Instant::now);
        for _ in 0..steps {
            let pages = (0..100).take_while(|_| {
                worth.tries(false) && (worth.note_tried(false, ZSTD_NS, LONG, Some(SHORT)), true).1
            });
            let pages = pages.count() as u64;
            tried += pages;
            (0..pages * back / 100).for_each(|_| worth.note_read());
            let reads = 100 - pages * back / 100;
            let took_us = reads * read_us;
            file.all += reads;
            file.awaited += reads * awaited / 100;
            file.awaited_us += took_us;
            now += Duration::from_micros(took_us + beside_us);
            worth.settle(file, now);
        }
        ((tried * ZSTD_NS) as i64 / TRY_PART, (file.awaited_us - before_us) as i64 * 1000)
    }

    #[test]
    fn a_slow_disk_pays_for_it() {
        let worth = Worth::new(Recompress::Auto, false);
        assert!(!worth.pays(), "nothing was read from the file yet");
        let (spent, _) = run(&worth, 1000, 100, 80);
        assert!(spent > 850 * 100 * 10_000, "{spent}: all pages are tried, from the first look on");
        // Few come back, but each read is long.
        let worth = Worth::new(Recompress::Auto, false);
        let (spent, _) = run(&worth, 1000, 1000, 8);
        assert!(spent > 850 * 100 * 10_000, "{spent}");
    }

    #[test]
    fn a_fast_disk_costs_a_loan_and_a_sixteenth() {
        let worth = Worth::new(Recompress::Auto, false);
        let (spent, file) = run(&worth, 10_000, 10, 0);
        assert!(spent <= LOAN_NS + file / SHARE_OF_READS + 1_000_000, "{spent} of {file}");
        assert!(!worth.pays() || worth.balance_ns.load(Ordering::Relaxed) < 10_000_000);
        // Where they come back, but for less than they took, it is about as little.
        let worth = Worth::new(Recompress::Auto, false);
        let (spent, file) = run(&worth, 10_000, 10, 80);
        assert!(spent <= LOAN_NS + file / SHARE_OF_READS + 1_000_000, "{spent} of {file}: nothing is earned");
    }

    #[test]
    fn a_change_is_noticed_within_a_second() {
        let worth = Worth::new(Recompress::Auto, false);
        run(&worth, 20_000, 500, 90);
        let (spent, file) = run(&worth, 20_000, 500, 0);
        assert!(spent <= BALANCE_MAX_NS + file / SHARE_OF_READS + 1_000_000, "{spent} of {file}");
    }

    /// Whatever the account says: there is too little to be gained.
    #[test]
    fn a_file_that_is_seldom_waited_for_is_left_alone() {
        let worth = Worth::new(Recompress::Auto, false);
        assert_eq!(run_beside(&worth, 1000, 100, 80, 100 * 100 * 4).0, 0);
        run(&worth, 1000, 100, 80);
        assert!(worth.pays(), "it was waited for");
        let turns = TURN.as_micros() as u64 / (100 * 100 * 5);
        run_beside(&worth, 3 * turns, 100, 80, 100 * 100 * 4);
        assert!(!worth.pays(), "its turn is over");
    }

    #[test]
    fn it_can_be_set() {
        let (on, off) = (Worth::new(Recompress::On, false), Worth::new(Recompress::Off, false));
        assert!(on.pays() && !off.pays());
        assert_eq!(run(&off, 100, 1000, 0).0, 0);
        assert!(run(&on, 1000, 1, 0).0 > 950 * 100 * 10_000);
    }

    /// Noise is not compressed again and again; and what compresses is found again.
    #[test]
    fn luck_runs_out_and_returns() {
        let luck = Luck::default();
        let tried = |pays: bool| (0..1000).filter(|_| luck.tries() && (luck.note(pays), true).1).count();
        assert!(tried(false) < 100);
        assert!(tried(true) > 900);
    }

    #[test]
    fn reads_that_nobody_waits_for_are_no_reason() {
        let worth = Worth::new(Recompress::Auto, false);
        let (spent, _) = run_awaiting(&worth, 1000, (100, 40), 80, 0);
        assert_eq!(spent, 0);
        let (spent, _) = run_awaiting(&worth, 1000, (100, 60), 80, 0);
        assert!(spent > 0);
        // They end a turn.
        let (spent, _) = run_awaiting(&worth, 10_000, (100, 40), 80, 0);
        assert!(!worth.pays() && spent < 1000 * 100 * 10_000, "{spent}");
    }
}
