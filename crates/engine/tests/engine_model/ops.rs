//! What may happen in a history, and how it is drawn.

use super::*;

/// `page` is counted from FIRST; `target` is taken modulo the spaces that there are.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Store (a zero now and then), whatever it takes.
    Write {
        target: usize,
        page: u64,
        zero: bool,
    },
    Read {
        target: usize,
        page: u64,
    },
    /// Read pages one after the other: what proves a stream.
    Scan {
        target: usize,
        page: u64,
        pages: u64,
        down: bool,
    },
    WriteRun {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// Access a page and do not wait for it.
    Touch {
        target: usize,
        page: u64,
        write: bool,
    },
    Shrink {
        target: usize,
        pages: usize,
        write: bool,
    },
    /// MADV_PAGEOUT and MADV_COLD.
    Pageout {
        target: usize,
        page: u64,
        pages: u64,
    },
    Ahead {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// These pages are expected to be touched soon, ...
    Predict {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// ... and so many of such are brought.
    BringPredicted {
        pages: usize,
    },
    Cold {
        target: usize,
        page: u64,
        pages: u64,
    },
    /// As `Shrink`, and victims are faulted on while they are in transit.
    ShrinkWanted {
        target: usize,
        pages: usize,
    },
    FinishWrites,
    WriteAgain,
    /// Between two batches.
    Maintain,
    Map {
        target: usize,
        page: u64,
        pages: u64,
    },
    MapPresent {
        target: usize,
        page: u64,
        pages: u64,
    },
    Adopt {
        target: usize,
    },
    Unmap {
        target: usize,
        page: u64,
        pages: u64,
    },
    Remove {
        target: usize,
        page: u64,
        pages: u64,
    },
    Remap {
        target: usize,
        from: u64,
        to: u64,
        pages: u64,
        early: bool,
        late: bool,
    },
    Fork {
        target: usize,
    },
    Exit {
        target: usize,
    },
    Events {
        target: usize,
    },
    Reap {
        reads: usize,
    },
    Retry,
    Vanish {
        target: usize,
        page: u64,
    },
    Refuse {
        target: usize,
        page: u64,
        pages: u64,
        take: Take,
    },
    StopFill {
        target: usize,
        after: usize,
        stop: Stop,
    },
    FailReads {
        pages: usize,
    },
    ShortReads {
        pages: usize,
    },
    FailWrites {
        error: BackingError,
        pages: usize,
    },
    Pending(bool),
    Tidy {
        target: usize,
    },
    Swapon {
        slots: u32,
        priority: i16,
    },
    /// `device` is taken modulo the devices that there are.
    Swapoff {
        device: usize,
    },
    SwapoffSteps {
        steps: usize,
    },
    SwapoffStop,
    Quiet,
    Object(ObjectOp),
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..200)
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![6 => access(), 4 => change(), 3 => reclaim(), 3 => pager(), 2 => trouble(), 3 => operator()]
}

pub(super) fn run() -> impl Strategy<Value = (usize, u64, u64)> {
    (0..SPACES_MAX, 0..PAGES, prop_oneof![3 => 1..40u64, 1 => 40..200u64])
}

fn access() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..SPACES_MAX, 0..PAGES, prop::bool::weighted(0.1))
            .prop_map(|(target, page, zero)| Op::Write { target, page, zero }),
        2 => (0..SPACES_MAX, 0..PAGES).prop_map(|(target, page)| Op::Read { target, page }),
        3 => (run(), any::<bool>())
            .prop_map(|((target, page, pages), down)| Op::Scan { target, page, pages, down }),
        4 => run().prop_map(|(target, page, pages)| Op::WriteRun { target, page, pages }),
        6 => (0..SPACES_MAX, 0..PAGES, any::<bool>())
            .prop_map(|(target, page, write)| Op::Touch { target, page, write }),
    ]
}

fn change() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => run().prop_map(|(target, page, pages)| Op::Map { target, page, pages }),
        1 => run().prop_map(|(target, page, pages)| Op::MapPresent { target, page, pages }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Adopt { target }),
        2 => run().prop_map(|(target, page, pages)| Op::Unmap { target, page, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Remove { target, page, pages }),
        4 => (run(), 0..PAGES, any::<bool>(), any::<bool>()).prop_map(|(run, to, early, late)| {
            let (target, from, pages) = run;
            Op::Remap { target, from, to, pages, early, late }
        }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Fork { target }),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Exit { target }),
    ]
}

fn reclaim() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..SPACES_MAX, 1..128usize, any::<bool>())
            .prop_map(|(target, pages, write)| Op::Shrink { target, pages, write }),
        2 => (0..SPACES_MAX, 1..64usize).prop_map(|(target, pages)| Op::ShrinkWanted { target, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Pageout { target, page, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Ahead { target, page, pages }),
        2 => run().prop_map(|(target, page, pages)| Op::Predict { target, page, pages }),
        2 => (1..64usize).prop_map(|pages| Op::BringPredicted { pages }),
        1 => run().prop_map(|(target, page, pages)| Op::Cold { target, page, pages }),
        2 => Just(Op::FinishWrites),
        1 => Just(Op::WriteAgain),
        1 => Just(Op::Maintain),
        1 => (0..SPACES_MAX).prop_map(|target| Op::Tidy { target }),
    ]
}

fn operator() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (prop_oneof![Just(150u32), Just(4096)], 0..3i16)
            .prop_map(|(slots, priority)| Op::Swapon { slots, priority }),
        3 => (0..4usize).prop_map(|device| Op::Swapoff { device }),
        6 => (1..12usize).prop_map(|steps| Op::SwapoffSteps { steps }),
        1 => Just(Op::SwapoffStop),
    ]
}

fn pager() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..SPACES_MAX).prop_map(|target| Op::Events { target }),
        3 => (1..4usize).prop_map(|reads| Op::Reap { reads }),
        3 => Just(Op::Retry),
        2 => prop::bool::weighted(0.7).prop_map(Op::Pending),
        1 => Just(Op::Quiet),
    ]
}

fn trouble() -> impl Strategy<Value = Op> {
    let refusal = prop_oneof![Just(Take::Busy), Just(Take::Retry), Just(Take::Unevictable)];
    let stop = prop_oneof![Just(Stop::Again), Just(Stop::NoMemory), Just(Stop::NotMapped)];
    let error =
        prop_oneof![Just(BackingError::Full), Just(BackingError::Io(5)), Just(BackingError::Short(12))];
    prop_oneof![
        2 => (0..SPACES_MAX, 0..PAGES).prop_map(|(target, page)| Op::Vanish { target, page }),
        2 => (run(), refusal)
            .prop_map(|((target, page, pages), take)| Op::Refuse { target, page, pages, take }),
        2 => (0..SPACES_MAX, 0..8usize, stop)
            .prop_map(|(target, after, stop)| Op::StopFill { target, after, stop }),
        1 => (1..4usize).prop_map(|pages| Op::FailReads { pages }),
        1 => (1..40usize).prop_map(|pages| Op::ShortReads { pages }),
        1 => (error, 1..100usize).prop_map(|(error, pages)| Op::FailWrites { error, pages }),
    ]
}
