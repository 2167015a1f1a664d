//! The engine: what a front end (the pager, the simulator, a test) calls.
//!
//! ```text
//!   calls          engine.rs                                                          check.rs reads all
//!   paths          swap_in.rs  neighbours.rs  install.rs  cow.rs   swap_out.rs  write_out.rs   swapoff.rs
//!                  └─────────── fill.rs ─────────┘           └────────── kept.rs ─────────────────┘
//!   reclaim        spaces.rs: which space, reclaim/victim.rs: which pages, reclaim/folio.rs: their slots
//!   page tables    space/: words, changes   reclaim/lru.rs   reclaim/turn.rs   gate.rs
//!   swap           swap.rs: what a page table may ask
//!   below it       devices.rs (slots/, backing.rs)   frames.rs   ahead.rs   unwritten.rs   reads.rs
//!                  group.rs  readahead.rs  memory.rs  errors.rs  stats.rs  tuning.rs  word.rs  units.rs
//!                  sync.rs
//! ```
//!
//! Each file uses only what is below it. This one only passes calls on: the work is in the files of the
//! paths.

use crate::backing::{QueueId, ReadDone};
use crate::cow;
use crate::devices::{Device, Devices, TooManyDevices};
use crate::fill::{Brought, Fault, FillJob, Outcome, Scratch, SwapIn};
use crate::group::{Group, GroupConfig, Groups};
use crate::kept::Kept;
use crate::reads::Reads;
use crate::space::{Space, least_pass};
use crate::spaces::Spaces;
use crate::stats::Stats;
use crate::swap::Swap;
use crate::swap_out::{Shrunk, SwapOut};
use crate::swapoff::{Step, Swapoff, SwapoffError, SwapoffStep};
use crate::sync::Arc;
use crate::tuning::{FolioSize, Insertion, Tuning};
use crate::units::{CpuId, PAGE_SIZE, Vpn};
use crate::word::State;
use crate::write_out::{WriteOut, Writer};

/// Bytes of what is kept for each page beside its own bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct TableBytes {
    pub page_tables: u64,
    /// The queues of the pages in memory.
    pub queues: u64,
    pub slots: u64,
    /// Within what they say that they hold.
    pub backings: u64,
}

impl TableBytes {
    pub fn sum(&self) -> u64 {
        self.page_tables + self.queues + self.slots + self.backings
    }
}

/// Who waits for pages of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitForDevice {
    /// Address spaces with such faults.
    pub programs: usize,
    pub faults: usize,
}

pub struct Engine {
    pub(crate) swap: Swap,
    pub(crate) reads: Reads<FillJob>,
    pub(crate) spaces: Spaces,
    kept: Kept,
    pub(crate) swapoff: Swapoff,
}

impl Engine {
    /// With one group, the root.
    pub fn new(devices: Vec<Device>, limit_bytes: u64, tuning: Tuning) -> Engine {
        Engine::with_groups(devices, &[GroupConfig::root(limit_bytes)], tuning)
    }

    /// With a tree of groups, the root first.
    pub fn with_groups(devices: Vec<Device>, groups: &[GroupConfig], tuning: Tuning) -> Engine {
        Engine {
            swap: Swap::new(devices, Groups::new(groups), tuning),
            reads: Reads::default(),
            spaces: Spaces::new(),
            kept: Kept::default(),
            swapoff: Swapoff::default(),
        }
    }

    // ---- what it is made of -------------------------------------------------------------------------------

    /// The argument of the functions that process changes of an address space (space/changes.rs).
    pub fn swap(&self) -> &Swap {
        &self.swap
    }
    pub fn devices(&self) -> &Devices {
        &self.swap.devices
    }
    pub fn groups(&self) -> &Groups {
        &self.swap.groups
    }
    /// The root of the groups, whose maximum is the budget.
    pub fn root(&self) -> &Arc<Group> {
        self.swap.root()
    }
    pub fn stats(&self) -> &Stats {
        &self.swap.stats
    }
    pub fn tuning(&self) -> &Tuning {
        &self.swap.tuning
    }

    /// The bytes of everything that is kept for each page beside its content.
    pub fn tables(&self) -> TableBytes {
        let (page_tables, queues) = self.spaces.table_bytes();
        TableBytes {
            page_tables,
            queues,
            slots: self.devices().ever_added().map(|d| d.slots.table_bytes()).sum(),
            backings: self.devices().ever_added().map(|d| d.backing.usage().table_bytes).sum(),
        }
    }
    pub fn frame_bytes(&self) -> u64 {
        self.swap.frames.bytes()
    }
    /// Pages that were read ahead and are in no address space. They are charged as pages are.
    pub fn read_ahead_bytes(&self) -> u64 {
        (self.swap.ahead.len() * PAGE_SIZE) as u64
    }
    pub fn used_slots(&self) -> u64 {
        self.swap.used_slots()
    }

    // ---- address spaces -----------------------------------------------------------------------------------

    pub fn add_space(&self, space: Arc<Space>) {
        let tuning = &self.swap.tuning;
        // A folio of a set size is one position for all of it: it has pages of several roles.
        if tuning.insertion == Insertion::Duel && tuning.folio == FolioSize::Auto {
            space.let_duel(space.group(&self.swap).budget_bytes());
        }
        self.spaces.add(space);
    }
    pub fn remove_space(&self, space: &Arc<Space>) {
        self.spaces.remove(space);
    }
    pub fn spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.to_vec()
    }
    /// The space that gives the next batch.
    pub fn pick_space(&self) -> Option<Arc<Space>> {
        self.spaces.pick(&self.swap)
    }
    /// Spaces that gave nothing when they were asked last are asked again: to be called now and then, and
    /// where no other one is left. Returns how many there are.
    pub fn end_rests(&self) -> usize {
        let all = self.spaces.list();
        let resting: Vec<&Arc<Space>> = all.iter().filter(|space| space.rests()).collect();
        if !resting.is_empty() {
            let least = least_pass(all.iter());
            resting.iter().for_each(|space| space.end_rest(least));
        }
        resting.len()
    }

    // ---- pages come in ------------------------------------------------------------------------------------

    fn swap_in<'a>(&'a self, cpu: CpuId, scratch: &'a mut Scratch) -> SwapIn<'a> {
        SwapIn { swap: &self.swap, kept: &self.kept, reads: &self.reads, cpu, scratch }
    }

    /// A fault: the one entry for every front end.
    pub fn fault(
        &self,
        cpu: CpuId,
        queue: QueueId,
        space: &Arc<Space>,
        fault: Fault,
        scratch: &mut Scratch,
    ) -> Outcome {
        self.swap_in(cpu, scratch).fault(queue, space, fault)
    }

    /// The page's owner has put it into its place by himself, by what `Memory::stored` has told him: it is
    /// resident from now on, and nothing is read. False: somebody else has it in work, ask again.
    ///
    /// `comes_along`: with another one, before it is touched.
    ///
    /// Only of a page that its owner keeps there until this has said true, and by a caller who is inside the
    /// space's gate, as fills are, and has found no change under way there.
    pub fn note_there(&self, cpu: CpuId, space: &Space, vpn: Vpn, comes_along: bool) -> bool {
        // It brings nothing, and needs no buffers.
        self.swap_in(cpu, &mut Scratch::default()).note_there(space, vpn, comes_along)
    }

    /// The owner has brought a page of a row by himself, and left this one out of a window of so many pages,
    /// to see whether it faults by itself. One that has come meanwhile tells nothing.
    pub fn leave_out(&self, cpu: CpuId, space: &Space, vpn: Vpn, pages: usize) {
        if space.word(vpn).state() == State::Swapped {
            self.swap_in(cpu, &mut Scratch::default()).leave_out(space, vpn, pages);
        }
    }

    /// MADV_WILLNEED: the first pages of [from, to) that are swapped out come in, a window of them, as far as
    /// there is room beyond what faults need.
    pub fn bring_ahead(
        &self,
        cpu: CpuId,
        queue: QueueId,
        space: &Arc<Space>,
        (from, to): (Vpn, Vpn),
        scratch: &mut Scratch,
    ) -> Brought {
        self.swap_in(cpu, scratch).bring_ahead(queue, space, from, to)
    }

    /// The next of the pages that are expected to be touched soon, as pages say that have come, is brought.
    /// None: there is none.
    pub fn bring_predicted(&self, cpu: CpuId, queue: QueueId, scratch: &mut Scratch) -> Option<Outcome> {
        self.swap_in(cpu, scratch).bring_predicted(queue)
    }

    /// A write to a page that was protected because a fork has left it shared. Returns for how many pages,
    /// from that one on, the protection may be taken away: no more than are wanted; `urgent`: one, even over
    /// the limit. 0: there is no room, ask again when reclaim has made some.
    pub fn may_write(&self, cpu: CpuId, space: &Space, wanted_pages: u64, urgent: bool) -> u64 {
        cow::may_write(&self.swap, &self.spaces, cpu, space, wanted_pages, urgent)
    }

    /// `pages` pages of the space that were shared since a fork have been copied, and are its own.
    pub fn note_own(&self, space: &Space, pages: u64) {
        cow::note_own(&self.swap, &self.spaces, space, pages);
    }

    /// A space that had this discount has been released, and removed.
    pub fn note_gone(&self, discount_pages: u64) {
        cow::note_gone(&self.swap, &self.spaces, discount_pages);
    }

    /// Is a read under way on this queue?
    pub fn reads(&self, queue: QueueId) -> bool {
        self.reads.has_some(queue)
    }

    /// Who waits for reads of this device?
    pub fn who_waits_for(&self, device: &Device) -> WaitForDevice {
        let place = self.devices().iter().position(|other| std::ptr::eq(other, device));
        let (mut spaces, mut faults) = (Vec::new(), 0);
        self.reads.each(|job| {
            if job.cause.is_awaited() && Some(usize::from(job.pages[0].device())) == place {
                spaces.push(job.space.id);
                faults += 1;
            }
        });
        spaces.sort_unstable();
        spaces.dedup();
        WaitForDevice { programs: spaces.len(), faults }
    }

    /// A read has finished that was `Outcome::Pending`.
    pub fn read_done(&self, cpu: CpuId, done: ReadDone, scratch: &mut Scratch) -> Outcome {
        self.swap_in(cpu, scratch).read_done(done)
    }

    /// A fill that was `Outcome::Again`, after the events of its space were read.
    pub fn install(&self, cpu: CpuId, job: FillJob, scratch: &mut Scratch) -> Outcome {
        self.swap_in(cpu, scratch).install(job)
    }

    // ---- pages go out -------------------------------------------------------------------------------------

    fn swap_out(&self, cpu: CpuId) -> SwapOut<'_> {
        SwapOut { swap: &self.swap, kept: &self.kept, spaces: &self.spaces, cpu }
    }

    fn writer(&self, cpu: CpuId, queue: QueueId) -> Writer<'_> {
        Writer { swap: &self.swap, kept: &self.kept, cpu, queue }
    }

    /// Drop up to `n` pages that were read ahead and are in no address space, the oldest first: for who could
    /// take nothing else. Returns how many.
    pub fn drop_read_ahead(&self, cpu: CpuId, n: usize) -> usize {
        self.swap.drop_oldest_ahead(cpu, n)
    }

    /// First half of a batch, under the space's batch lock: take about `n` pages out (more where they leave
    /// together) and make them swap-cache pages.
    pub fn shrink(&self, cpu: CpuId, space: &Arc<Space>, n: usize) -> (Shrunk, Option<WriteOut>) {
        self.swap_out(cpu).shrink(space, n)
    }

    /// MADV_PAGEOUT: as `shrink`, of the pages of [from, to) that are in memory, hot ones too, as many as a
    /// batch holds. Also returns where to go on.
    pub fn pageout(
        &self,
        cpu: CpuId,
        space: &Arc<Space>,
        from: Vpn,
        to: Vpn,
    ) -> (Shrunk, Option<WriteOut>, Vpn) {
        self.swap_out(cpu).pageout(space, from, to)
    }

    /// Second half of a batch, which needs no lock: write it. Returns the pages whose write failed.
    pub fn write_out(&self, cpu: CpuId, queue: QueueId, batch: WriteOut) -> usize {
        self.writer(cpu, queue).write(batch)
    }

    /// Try again to write what could not be written. Returns how many are still unwritten.
    pub fn write_again(&self, cpu: CpuId, queue: QueueId) -> usize {
        self.writer(cpu, queue).write_again()
    }

    // ---- devices come and go ------------------------------------------------------------------------------

    /// Another device to take pages, while the run goes on. Returns its place (`Devices`).
    pub fn swapon(&self, device: Device) -> Result<usize, TooManyDevices> {
        self.swap.devices.add(device)
    }

    /// Begin a swapoff: the device takes no pages from now on. The caller must then call `swapoff_step` until
    /// it returns `Step::End`.
    pub fn swapoff_begin(&self, place: usize) -> Result<(), SwapoffError> {
        self.swapoff.begin(&self.swap, place)
    }

    /// Make the swapoff that is under way end at its next step.
    pub fn swapoff_stop(&self) {
        self.swapoff.stop();
    }

    /// Move one batch of the swapoff's pages. `queue`: used by nobody else.
    pub fn swapoff_step(&self, cpu: CpuId, queue: QueueId) -> Step {
        let step = SwapoffStep { swap: &self.swap, spaces: &self.spaces, kept: &self.kept, cpu, queue };
        step.run(&self.swapoff)
    }
}
