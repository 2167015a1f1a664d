//! A process that is paged by its agent, with its threads, its evictor and its supervisor.

#[path = "../../../engine/tests/shuttle/explore.rs"]
mod explore;

use crate::bursts::Bursts;
use crate::calls::{in_use, mappings};
use crate::join::evictor;
use crate::kernel::{self, Bytes, PAGES, PROGRAM, READ_WRITE, Signal};
use crate::machine::context::{Context, Info};
use crate::machine::region::EvictorBlock;
use crate::machine::sys::{self, PAGE, PROT_READ, nr};
use crate::pages::{self, kernel::DESCRIPTORS};
use crate::process::address_of;
use crate::process::control::ControlPage;
use crate::supervisor_double::{State, Supervisor};
use crate::thread::block::{self, Block};
use memspill_common::protocol::OP_PROTECT;
use memspill_common::rules::{Rule, leave_out};
use memspill_common::streams::Streams;
use memspill_common::sync::Ordering;
use memspill_common::words::{SWAPPED, Word};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, thread};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What a thread of the program does.
pub type Work = fn(&Thread);

#[derive(Clone, Copy)]
pub struct Scene {
    pub program: [Work; 2],
    /// So often pages are taken out at most, while the program runs.
    pub rounds: u32,
    /// All pages are away at first, with these bytes.
    pub away: Option<Bytes>,
    /// Pages are away in memory that is registered with a userfaultfd of the process's own.
    pub is_registered: bool,
    /// New memory is closed.
    pub closes: bool,
    /// Threads read their pages from the pool.
    pub has_pool: bool,
    pub guards_fail: bool,
    pub brings_unasked: bool,
    /// Pages are protected, as if a fork had left them shared.
    pub protects: bool,
    pub pagers: usize,
    pub reclaimers: usize,
    pub others: fn(&Supervisor),
}

/// Both threads count in pages that are there.
pub const COUNTING: Scene = Scene {
    program: [|it| it.count(0..PAGES, 6), |it| it.count(0..PAGES, 6)],
    rounds: 40,
    away: Some([0, 0]),
    is_registered: false,
    closes: false,
    has_pool: false,
    guards_fail: false,
    brings_unasked: false,
    protects: false,
    pagers: 1,
    reclaimers: 1,
    others: |_| (),
};

/// A thread of the program.
pub struct Thread {
    supervisor: Arc<Supervisor>,
    /// The byte of each page that is its own.
    who: usize,
    block: *mut Block,
}

// SAFETY: the threads of an execution are one.
unsafe impl Send for Thread {}

fn address(page: usize) -> usize {
    PROGRAM + page * PAGE
}

impl Thread {
    fn new(supervisor: &Arc<Supervisor>, who: usize) -> Thread {
        let block = block::take().expect("there is room for one");
        // SAFETY: the block is this thread's.
        unsafe { (*block).streams = Streams::empty() };
        Thread { supervisor: supervisor.clone(), who, block }
    }

    fn own_block(&self) -> &mut Block {
        // SAFETY: the block is this thread's, and each function uses it for a moment.
        unsafe { &mut *self.block }
    }

    /// Accesses a page; what the fault's handler does is the agent's.
    pub fn access<T>(&self, page: usize, writes: bool, access: impl Fn(&mut Bytes) -> T) -> T {
        loop {
            match kernel::access(page, writes, |bytes| access(bytes)) {
                Ok(result) => return result,
                Err(signal) => assert!(handle(page, writes, signal), "wrong: SIGSEGV"),
            }
        }
    }

    fn read(&self, page: usize) -> u8 {
        self.access(page, false, |bytes| bytes[self.who])
    }

    fn write(&self, page: usize, value: u8) {
        self.access(page, true, |bytes| bytes[self.who] = value);
    }

    /// Adds one to its byte of each of these pages, so many times.
    pub fn count(&self, pages: Range<usize>, times: u8) {
        for n in 0..times {
            for page in pages.clone() {
                assert_eq!(self.read(page), n, "wrong: a count is lost");
                self.access(page, true, |bytes| bytes[self.who] += 1);
            }
        }
    }

    pub fn look(&self, page: usize, times: u8) {
        (0..times).for_each(|_| _ = self.access(page, false, |_| 0));
    }

    /// A call that writes to a page, twice, and holds on in between.
    pub fn call(&self, page: usize, values: [u8; 3]) {
        self.used(page, |thread| {
            for pair in values.windows(2) {
                let write = |bytes: &mut Bytes| std::mem::replace(&mut bytes[thread.who], pair[1]);
                let before = kernel::access(page, true, write).expect("wrong: EFAULT");
                assert_eq!(before, pair[0], "wrong: a count is lost");
            }
        });
    }

    pub fn calls(&self, page: usize, times: u8) {
        (0..times).for_each(|n| self.call(page, [n, n, n + 1]));
    }

    /// Calls that write to a page which another thread empties.
    pub fn calls_on_emptied(&self, page: usize, times: u8) {
        for _ in 0..times {
            self.used(page, |thread| {
                for _ in 0..2 {
                    kernel::access(page, true, |bytes| bytes[thread.who] = 1).expect("wrong: EFAULT");
                }
            });
        }
    }

    /// `hold.rs`, and the call.
    fn used(&self, page: usize, call: impl FnOnce(&Thread)) {
        let used = in_use::Use { start: address(page), end: address(page) + 1, writes: true };
        in_use::publish_list(self.own_block(), &[used]);
        in_use::bring(&used);
        call(self);
        in_use::withdraw(self.own_block());
    }

    // -- Calls that change mappings --

    fn change(&self, number: usize, args: [usize; 6]) {
        mappings::answer(number, args).expect("one that changes mappings").expect("it succeeds");
    }

    pub fn discard(&self, page: usize) {
        self.change(nr::MADVISE, [address(page), PAGE, sys::MADV_DONTNEED, 0, 0, 0]);
    }

    pub fn discards(&self, page: usize, times: u8) {
        (0..times).for_each(|_| self.discard(page));
    }

    /// mmap over it.
    pub fn renew(&self, page: usize) {
        let kind = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_FIXED;
        self.change(nr::MMAP, [address(page), PAGE, READ_WRITE, kind, usize::MAX, 0]);
    }

    pub fn protect(&self, page: usize, prot: usize) {
        self.change(nr::MPROTECT, [address(page), PAGE, prot, 0, 0, 0]);
    }

    /// mremap; something new is where it was.
    pub fn move_onto(&self, from: usize, to: usize) {
        const MAYMOVE_FIXED_DONTUNMAP: usize = 7;
        self.change(nr::MREMAP, [address(from), PAGE, PAGE, MAYMOVE_FIXED_DONTUNMAP, address(to), 0]);
    }

    /// Empties a page by turns in both ways, and counts in it from the beginning.
    pub fn empty_and_count(&self, page: usize, times: usize) {
        for change in [Thread::renew, Thread::discard, Thread::renew, Thread::renew].into_iter().take(times) {
            change(self, page);
            self.count(page..page + 1, 2);
        }
    }

    pub fn renew_and_count(&self, page: usize, times: u8) {
        for _ in 0..times {
            self.renew(page);
            self.count(page..page + 1, 2);
        }
    }

    pub fn renew_and_call(&self, page: usize, times: u8) {
        for _ in 0..times {
            self.renew(page);
            self.call(page, [0, 1, 2]);
        }
    }

    /// Empties a page that it uses in calls.
    pub fn empty_and_call(&self, page: usize, times: u8) {
        for _ in 0..times {
            self.discard(page);
            self.call(page, [0, 1, 2]);
        }
    }

    /// To and fro; nobody else writes there.
    pub fn protect_and_count(&self, page: usize, times: u8) {
        for n in 0..times {
            for prot in [PROT_READ, READ_WRITE] {
                self.protect(page, prot);
                assert_eq!(self.read(page), n, "wrong: a count is lost");
                let is_written = kernel::access(page, true, |_| ()).is_ok();
                assert!(prot == READ_WRITE || !is_written, "wrong: what the program has forbidden");
            }
            self.write(page, n + 1);
        }
    }

    /// Writes into a page, gives it at most so many steps to leave in, and moves it onto another one.
    pub fn move_and_count(&self, times: u8, steps: u32) {
        for n in 1..=times {
            self.write(0, n);
            let is_here = || word(0).state() != SWAPPED;
            (0..steps).take_while(|_| is_here()).for_each(|_| thread::yield_now());
            self.move_onto(0, 1);
            assert_eq!(self.read(1), n, "wrong: what was moved is lost");
            assert_eq!(self.read(0), 0, "wrong: what was moved away came back");
        }
    }
}

fn word(page: usize) -> Word {
    pages::table::find(address(page)).map_or(Word::EMPTY, pages::table::load)
}

/// The agent's handler.
fn handle(page: usize, writes: bool, (signal, code): Signal) -> bool {
    // SAFETY: plain numbers.
    let (mut info, mut context) = unsafe {
        (MaybeUninit::<Info>::zeroed().assume_init(), MaybeUninit::<Context>::zeroed().assume_init())
    };
    info.signal = signal as i32;
    info.code = code;
    info.call_address = address(page);
    context.regs.error = if writes { 2 } else { 0 };
    pages::fault(&info, &mut context)
}

fn evict(supervisor: &Supervisor) {
    // SAFETY: numbers, pointers and atomics.
    let mut block = unsafe { MaybeUninit::<EvictorBlock>::zeroed().assume_init() };
    block.uffd = -1;
    block.control = pages::channel::control();
    let mut last = 0;
    while let Some(command) = supervisor.evictor().next(last) {
        last = command.seq;
        match command.op {
            OP_PROTECT => evictor::protect_runs(&block, command),
            _ => evictor::take_runs(&block, command),
        }
    }
}

/// A process joins: with new memory, and as its agent does it.
fn join(scene: &Scene) -> Arc<Supervisor> {
    const BELL: i32 = 907;
    kernel::begin();
    let (control, _file) = ControlPage::with_link().expect("memory");
    let control = Arc::new(control);
    let mut supervisor =
        Supervisor::new(control.clone(), scene.has_pool, if scene.closes { 4096 } else { 0 });
    supervisor.brings_unasked = scene.brings_unasked;
    supervisor.protects = scene.protects;
    let supervisor = Arc::new(supervisor);
    let [rings, answers] = [supervisor.clone(), supervisor.clone()].map(|it| Arc::downgrade(&it));
    kernel::with(|kernel| {
        kernel.control = address_of(&control);
        kernel.pool = supervisor.pool.address();
        kernel.bell = Some(Arc::new(move || rings.upgrade().expect("it runs").ring()));
        kernel.socket = Some(Arc::new(move |seq| answers.upgrade().expect("it runs").evictor().answer(seq)));
    });
    // As in the child of a fork.
    pages::gate::reset();
    pages::evict::reset();
    pages::notes::reset();
    pages::rules::switch_off();
    DESCRIPTORS.uffd.store(-1, Ordering::Relaxed);
    DESCRIPTORS.pool.store(-1, Ordering::Relaxed);
    block::forget_others(std::ptr::null_mut());
    block::reserve().expect("there is room");
    let pool = scene.has_pool.then_some(kernel::POOL);
    pages::connect(kernel::CONTROL, BELL, pool, scene.is_registered).expect("it can page itself");
    supervisor
}

impl Scene {
    fn play(&self) {
        let supervisor = join(self);
        let main = Thread::new(&supervisor, 0);
        kernel::set_block(main.block);
        if let Some(bytes) = self.away {
            supervisor.have_all_away(bytes);
            for page in 0..PAGES {
                pages::holes::make_ready(address(page)).expect("it can be registered");
                kernel::take_away(page);
                let word = pages::table::obtain(address(page)).expect("memory");
                pages::table::finish(word, Word::swapped(0, READ_WRITE as u64));
            }
        }
        kernel::with(|kernel| kernel.guards_fail = self.guards_fail);
        let spawn = |work: fn(&Supervisor)| {
            let supervisor = supervisor.clone();
            thread::spawn(move || work(&supervisor))
        };
        let mut servers = vec![spawn(evict)];
        servers.extend((0..self.pagers).map(|_| spawn(Supervisor::serve_all)));
        let others = spawn(self.others);
        let mut workers = Vec::new();
        let rounds = self.rounds;
        let reclaim = |_| {
            let supervisor = supervisor.clone();
            thread::spawn(move || supervisor.reclaim(rounds))
        };
        let reclaimers: Vec<_> = (0..self.reclaimers).map(reclaim).collect();
        for (who, work) in self.program.into_iter().enumerate() {
            let thread = Thread::new(&supervisor, who);
            workers.push(thread::spawn(move || {
                kernel::set_block(thread.block);
                work(&thread);
            }));
        }
        workers.into_iter().for_each(|thread| thread.join().unwrap());
        supervisor.end_reclaim();
        reclaimers.into_iter().chain([others]).for_each(|thread| thread.join().unwrap());
        main.agree();
        supervisor.end();
        servers.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl Thread {
    /// When nobody is at work but pagers, and all pages have come back, both sides say the same.
    fn agree(&self) {
        let supervisor = &self.supervisor;
        (0..PAGES).for_each(|page| self.look(page, 1));
        pages::supervisor::install_all(&pages::gate::enter, false);
        while !supervisor.is_quiet() {
            supervisor.ring();
            thread::yield_now();
        }
        for page in 0..PAGES {
            let (word, state) = (word(page), supervisor.state(page));
            let is_away = word.state() == SWAPPED;
            let is_swapped = matches!(state, State::Swapped(_));
            assert!(!is_away && !is_swapped, "wrong: page {page}, {state:?}, away: {is_away}");
            assert!(kernel::is_there(page), "wrong: page {page} is missing, and its word does not say so");
        }
        assert!(supervisor.pool.is_whole(), "wrong: slots are lost");
    }
}

/// The agent's words, and what is its own, are there once in a process of the system.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.silence_warnings = true;
    config
}

/// Nothing is found.
pub fn holds(scenes: &[Scene]) {
    let _turn = turn();
    leave_out(None);
    let drawn = std::env::var("DRAWN").map_or(1000, |n| n.parse().expect("DRAWN is a number"));
    for scene in scenes.iter().copied() {
        explore::explore(move || scene.play());
        Runner::new(Bursts::new(drawn), config()).run(move || scene.play());
    }
}

/// Draws schedules without a rule until one fails, by turns from three schedulers: so many that it is found
/// whatever is drawn. A schedule without an end counts as found, too.
pub fn finds(rule: Rule, scene: Scene) {
    const ROUNDS: usize = 200;
    const DRAWN: usize = 100;
    const DEPTH: usize = 4;
    let _turn = turn();
    leave_out(Some(rule));
    let mut config = config();
    config.failure_persistence = FailurePersistence::None;
    let found = std::panic::catch_unwind(|| {
        for _ in 0..ROUNDS {
            Runner::new(Bursts::new(DRAWN), config.clone()).run(move || scene.play());
            Runner::new(RandomScheduler::new(DRAWN), config.clone()).run(move || scene.play());
            Runner::new(PctScheduler::new(DEPTH, DRAWN), config.clone()).run(move || scene.play());
        }
    });
    let Err(found) = found else { panic!("nothing is found without {rule:?}") };
    let message = found.downcast_ref::<String>().cloned();
    let message = message.or(found.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
    println!("{rule:?}: {message}");
    let is_known =
        ["wrong", "deadlock", "true numbers", "max_steps"].iter().any(|text| message.contains(text));
    assert!(is_known, "{message}");
}
