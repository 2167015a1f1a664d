//! Gate, words and windows of a process that pages itself, under schedules that are drawn: what
//! `windows_model.rs` goes through in all orders for one page, here with the sleeping and waking beneath it,
//! and with runs of pages.
//!
//! ```text
//!   a thread that faults             fault.rs: handle       who takes out               evict.rs: take_out
//!     inside; word SWAPPED:          fill::settle             inside; NONE, SWAPPED     mark
//!     FILLING, neighbours too        fill, claim                ▶ EVICTING, in a row
//!     NONE, guards away, bytes, RW   fill_by_window           in use: as before         first_kept
//!     NONE; who waits is woken       table::finish            READ, copied, NONE        evict
//!     EVICTING, FILLING: outside,    table::wait_for          guards, RW                install_guards
//!     waits                                                   SWAPPED; wakes            Chunk::end
//!     word NONE: its page is its     is_over                a thread that changes       mappings.rs: over
//!     hazard; would it work now?                              alone; the call; words    gate.rs
//!   a call: published; settled       hold.rs                  mprotect: away pages get the new protection
//! ```
//!
//! Each thread counts in bytes of its own; none may be lost. No call may meet a page that is out, nobody may
//! get SIGSEGV for memory that he may access, and nobody may wait for ever.
//!
//! Orders of memory are in `loom_in_use.rs`, forks in `fork_model.rs`. Not shown: bytes that cannot be kept,
//! mappings that end.
#![cfg(shuttle)]

mod models;

use memspill_common::words::{EVICTING, FILLING, NONE as EMPTY, SWAPPED, Word};
use models::windows::{self, Bytes, Gate, Kernel, NONE, PageWord, READ, READ_WRITE};
use models::{Lock, explore, hunt};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::ops::Range;

const PAGES: usize = 3;
const THREADS: usize = 2;

/// What a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Part(windows::Without),
    /// Pages have no protection while they are filled.
    FillUnderNone,
    /// ... and while they are zapped.
    ZapUnderNone,
    /// Pages do not change while they are copied.
    CopyUnderRead,
    /// A page that comes back has one owner.
    OneOwner,
    /// Neighbours come along only if they have the same protection.
    SameProt,
    /// A page that was away before it was EVICTING is away afterwards.
    AsBefore,
    /// What calls use stays.
    InUse,
    /// The page of a thread's hazard stays.
    Hazard,
    /// It is looked at inside the gate.
    LookInside,
    /// A change of protection is known of pages that are away.
    NewProt,
    /// Changes are made alone.
    Alone,
}

#[derive(Default)]
struct Thread {
    /// A page and one, in use by a call; and looked at after a fault.
    in_use: AtomicU32,
    hazard: AtomicU32,
}

struct Process {
    without: Without,
    kernel: Kernel<PAGES>,
    words: [PageWord; PAGES],
    gate: Gate,
    threads: [Thread; THREADS],
    slots: Mutex<[Bytes; PAGES]>,
}

impl Process {
    fn has(&self, rule: Without) -> bool {
        self.without != rule
    }

    // -- The program --

    fn access(&self, who: usize, page: usize, prot: u64, access: impl Fn(&mut Bytes) -> u8) -> u8 {
        loop {
            match self.kernel.access(page, prot, |bytes| access(bytes)) {
                Ok(result) => return result,
                Err(_) => assert!(self.settle(page) || self.is_over(who, page, prot), "wrong: SIGSEGV"),
            }
        }
    }

    fn count(&self, who: usize, pages: Range<usize>, times: u8) {
        for n in 0..times {
            for page in pages.clone() {
                assert_eq!(self.access(who, page, READ, |bytes| bytes[who]), n, "wrong: a count is lost");
                self.access(who, page, READ_WRITE, |bytes| {
                    bytes[who] += 1;
                    bytes[who]
                });
            }
        }
    }

    /// A call that writes to pages, and sleeps in between.
    fn call(&self, who: usize, page: usize, times: u8) {
        for n in 0..times {
            self.threads[who].in_use.store(page as u32 + 1, Ordering::SeqCst);
            self.settle(page);
            for value in [n, n + 1] {
                let written = self.kernel.access(page, READ_WRITE, |bytes| {
                    let before = bytes[who];
                    bytes[who] = value;
                    before
                });
                assert_eq!(written.expect("wrong: EFAULT"), n, "wrong: a count is lost");
            }
            self.threads[who].in_use.store(0, Ordering::SeqCst);
        }
    }

    /// mprotect to and fro; nobody else writes there.
    fn protect(&self, who: usize, page: usize, times: u8) {
        for n in 0..times {
            for prot in [READ, READ_WRITE] {
                let alone = self.has(Without::Alone).then(|| self.gate.enter_alone());
                self.kernel.protect(page..page + 1, prot);
                let seen = self.words[page].load();
                if seen.state() == SWAPPED && self.has(Without::NewProt) {
                    self.words[page].turn(seen, seen.with_prot(prot));
                }
                drop(alone);
                assert_eq!(self.access(who, page, READ, |bytes| bytes[who]), n, "wrong: a count is lost");
                // Nobody takes out what can be read only.
                assert!(prot != READ || self.kernel.prot(page) == READ, "wrong: another protection");
            }
            self.access(who, page, READ_WRITE, |bytes| {
                bytes[who] += 1;
                bytes[who]
            });
        }
    }

    /// mmap over it, where new memory is closed (`grow.rs`).
    fn renew(&self, who: usize, page: usize, times: u8) {
        for _ in 0..times {
            let alone = self.gate.enter_alone();
            self.kernel.map_anew(page, NONE);
            self.words[page].finish(Word::EMPTY);
            self.slots.held()[page] = Bytes::default();
            self.kernel.install_guards(page..page + 1);
            self.words[page].finish(Word::swapped(0, READ_WRITE));
            self.kernel.protect(page..page + 1, READ_WRITE);
            drop(alone);
            self.look(who, page, 1);
        }
    }

    fn look(&self, who: usize, page: usize, times: u8) {
        (0..times).for_each(|_| _ = self.access(who, page, READ, |_| 0));
    }

    /// Two that change the same thing: alone each.
    fn empty(&self, page: usize, times: u8) {
        for _ in 0..times {
            let alone = self.gate.enter_alone();
            self.kernel.drop_pages(page..page + 1);
            if self.words[page].load().state() == SWAPPED {
                self.kernel.remove_guards(page..page + 1);
                self.words[page].finish(Word::EMPTY);
            }
            assert!(self.kernel.read_through(page) == Some([0, 0]), "wrong: not empty");
            drop(alone);
        }
    }

    /// The same, and closed (`emptied.rs`): others may use it in calls, and see zeros.
    fn empty_closed(&self, page: usize, times: u8) {
        for _ in 0..times {
            let _alone = self.gate.enter_alone();
            let word = &self.words[page];
            let was_there = self.kernel.is_present(page);
            self.kernel.drop_pages(page..page + 1);
            self.slots.held()[page] = Bytes::default();
            let seen = word.load();
            if was_there && seen.state() == EMPTY && word.turn(seen, seen.evicting()) {
                if self.is_kept(page) {
                    word.finish(Word::EMPTY);
                } else {
                    self.kernel.install_guards(page..page + 1);
                    word.finish(Word::swapped(0, READ_WRITE));
                }
            }
        }
    }

    /// A call that uses what another thread empties.
    fn call_emptied(&self, who: usize, page: usize, times: u8) {
        for _ in 0..times {
            self.threads[who].in_use.store(page as u32 + 1, Ordering::SeqCst);
            self.settle(page);
            for _ in 0..2 {
                self.kernel.access(page, READ_WRITE, |bytes| bytes[who] = 1).expect("wrong: EFAULT");
            }
            self.threads[who].in_use.store(0, Ordering::SeqCst);
        }
    }

    // -- Faults --

    fn settle(&self, page: usize) -> bool {
        let mut has_waited = false;
        loop {
            let inside = self.gate.enter();
            let word = &self.words[page];
            let seen = word.load();
            match seen.state() {
                SWAPPED if self.turn(page, seen, seen.filling()) => {
                    self.fill(page, seen.prot());
                    return true;
                }
                SWAPPED => {}
                FILLING | EVICTING => {
                    drop(inside);
                    word.wait_for(seen);
                    has_waited = true;
                }
                _ => return has_waited,
            }
        }
    }

    fn turn(&self, page: usize, from: Word, to: Word) -> bool {
        if self.has(Without::OneOwner) {
            return self.words[page].turn(from, to);
        }
        let is_same = self.words[page].load() == from;
        if is_same {
            self.words[page].finish(to);
        }
        is_same
    }

    fn fill(&self, page: usize, prot: u64) {
        let mut pages = page..page + 1;
        while let Some(word) = self.words.get(pages.end) {
            let seen = word.load();
            let is_alike = seen.prot() == prot || !self.has(Without::SameProt);
            if seen.state() != SWAPPED || !is_alike || !word.turn(seen, seen.filling()) {
                break;
            }
            pages.end += 1;
        }
        let is_window = self.has(Without::FillUnderNone);
        if is_window {
            self.kernel.protect(pages.clone(), NONE);
        }
        self.kernel.remove_guards(pages.clone());
        let slots = *self.slots.held();
        pages.clone().for_each(|page| self.kernel.write_through(page, slots[page]));
        if is_window {
            self.kernel.protect(pages.clone(), prot);
        }
        pages.for_each(|page| self.words[page].finish(Word::EMPTY));
    }

    fn is_over(&self, who: usize, page: usize, prot: u64) -> bool {
        let hazard = &self.threads[who].hazard;
        hazard.store(page as u32 + 1, Ordering::SeqCst);
        let inside = self.has(Without::LookInside).then(|| self.gate.enter());
        let is_over =
            self.words[page].load().state() != EMPTY || self.kernel.access(page, prot, |_| ()).is_ok();
        drop(inside);
        hazard.store(0, Ordering::SeqCst);
        is_over
    }

    // -- Who takes out --

    fn take_all(&self, rounds: usize) {
        (0..rounds).for_each(|round| self.take_out(round % 2));
    }

    fn take_out(&self, first: usize) {
        let inside = self.gate.enter();
        let mut pages = first..first;
        while pages.end < PAGES {
            let word = &self.words[pages.end];
            let seen = word.load();
            if !matches!(seen.state(), EMPTY | SWAPPED) || !word.turn(seen, seen.evicting()) {
                break;
            }
            pages.end += 1;
        }
        let kept = pages.clone().find(|page| self.is_kept(*page)).unwrap_or(pages.end);
        // Pages that can only be read are not taken out.
        let kept = pages.clone().find(|page| self.kernel.prot(*page) != READ_WRITE).unwrap_or(kept).min(kept);
        (kept..pages.end).for_each(|page| self.end(page, false));
        pages.end = kept;
        let victims: Vec<usize> = pages.clone().filter(|page| !self.words[*page].load().was_away()).collect();
        if self.has(Without::CopyUnderRead) {
            self.kernel.protect(pages.clone(), READ);
        }
        for page in &victims {
            let bytes = self.kernel.read_through(*page).expect("wrong: a marker is taken out");
            self.slots.held()[*page] = bytes;
        }
        if self.has(Without::ZapUnderNone) {
            self.kernel.protect(pages.clone(), NONE);
        }
        victims.iter().for_each(|page| self.kernel.install_guards(*page..page + 1));
        self.kernel.protect(pages.clone(), READ_WRITE);
        pages.for_each(|page| self.end(page, victims.contains(&page)));
        drop(inside);
    }

    fn is_kept(&self, page: usize) -> bool {
        let names = |field: &AtomicU32| field.load(Ordering::SeqCst) == page as u32 + 1;
        self.threads.iter().any(|thread| {
            self.has(Without::InUse) && names(&thread.in_use)
                || self.has(Without::Hazard) && names(&thread.hazard)
        })
    }

    fn end(&self, page: usize, is_taken: bool) {
        let word = &self.words[page];
        let before = if self.has(Without::AsBefore) { word.load().as_before() } else { Word::EMPTY };
        word.finish(if is_taken { Word::swapped(0, READ_WRITE) } else { before });
    }
}

type Work = fn(&Process);

#[derive(Clone, Copy)]
struct Scene {
    program: [Work; 2],
    /// So often pages are taken out.
    rounds: usize,
}

const COUNTING: Scene =
    Scene { program: [|it| it.count(0, 0..PAGES, 2), |it| it.count(1, 0..PAGES, 2)], rounds: 4 };
const CALLING: Scene = Scene { program: [|it| it.count(0, 0..PAGES, 2), |it| it.call(1, 1, 3)], ..COUNTING };
const PROTECTING: Scene =
    Scene { program: [|it| it.protect(0, 1, 2), |it| it.count(1, 2..PAGES, 2)], ..COUNTING };
const EMPTYING: Scene = Scene { program: [|it| it.empty(0, 3), |it| it.empty(0, 3)], ..COUNTING };
const CHANGING: Scene = Scene { rounds: 0, ..EMPTYING };
const RENEWING: Scene = Scene { program: [|it| it.renew(0, 0, 3), |it| it.look(1, 0, 6)], ..CHANGING };
const CLOSING: Scene =
    Scene { program: [|it| it.empty_closed(1, 3), |it| it.call_emptied(1, 1, 3)], ..COUNTING };
const ONLY_CLOSING: Scene = Scene { rounds: 0, ..CLOSING };

fn play(without: Without, scene: Scene) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let part = match without {
            Without::Part(part) => part,
            _ => windows::Without::Nothing,
        };
        let process = Arc::new(Process {
            without,
            kernel: Kernel::default(),
            words: std::array::from_fn(|_| PageWord::new(part)),
            gate: Gate::new(part),
            threads: Default::default(),
            slots: Mutex::default(),
        });
        let evictor = process.clone();
        let evictor = thread::spawn(move || evictor.take_all(scene.rounds));
        let threads = scene.program.map(|work| {
            let process = process.clone();
            thread::spawn(move || work(&process))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        evictor.join().unwrap();
    }
}

#[test]
fn windows_no_count_is_lost_and_nobody_waits_for_ever() {
    for scene in [COUNTING, CALLING, PROTECTING, EMPTYING, CHANGING, RENEWING, CLOSING, ONLY_CLOSING] {
        explore(play(Without::Nothing, scene));
    }
}

macro_rules! controls {
    ($($name:ident: $without:expr, $scene:ident, $expected:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                hunt(play($without, $scene));
            }
        )*
    };
}

controls! {
    windows_control_fill_under_none: Without::FillUnderNone, COUNTING, "wrong";
    windows_control_zap_under_none: Without::ZapUnderNone, COUNTING, "wrong";
    windows_control_copy_under_read: Without::CopyUnderRead, COUNTING, "wrong";
    windows_control_one_owner: Without::OneOwner, COUNTING, "wrong";
    windows_control_same_prot: Without::SameProt, PROTECTING, "wrong";
    windows_control_as_before: Without::AsBefore, COUNTING, "wrong";
    windows_control_in_use: Without::InUse, CALLING, "wrong";
    windows_control_in_use_of_emptied: Without::InUse, ONLY_CLOSING, "wrong";
    windows_control_hazard: Without::Hazard, COUNTING, "wrong";
    windows_control_look_inside: Without::LookInside, RENEWING, "wrong";
    windows_control_new_prot: Without::NewProt, PROTECTING, "wrong";
    windows_control_alone: Without::Alone, PROTECTING, "wrong";
    windows_control_wake: Without::Part(windows::Without::Wake), COUNTING, "deadlock";
    windows_control_closed: Without::Part(windows::Without::Closed), EMPTYING, "wrong";
    windows_control_wait_for_inside: Without::Part(windows::Without::WaitForInside), EMPTYING, "wrong";
    windows_control_last_wakes: Without::Part(windows::Without::LastWakes), EMPTYING, "deadlock";
    windows_control_one_changer: Without::Part(windows::Without::OneChanger), CHANGING, "wrong";
}
