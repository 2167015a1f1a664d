//! What may happen to objects of shared memory, and how it is drawn.

use super::*;

pub(super) const OBJECTS_MAX: usize = 3;
/// `object` is taken modulo the objects that there are, `mapper` modulo those that have it mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub object: usize,
    pub mapper: usize,
}

/// `page` and `pages` are cut off at the object's end.
#[derive(Clone, Debug)]
pub(super) enum ObjectOp {
    /// A process maps a new one, and touches some of it before anybody manages it.
    Make {
        target: usize,
        pages: u64,
        present: u64,
    },
    /// All who have it mapped are registered: it may give pages from here on.
    Adopt {
        object: usize,
    },
    Write {
        by: Mapping,
        page: u64,
        zero: bool,
    },
    Scan {
        by: Mapping,
        page: u64,
        pages: u64,
        down: bool,
    },
    WriteRun {
        by: Mapping,
        page: u64,
        pages: u64,
    },
    /// Access a page and do not wait for it.
    Touch {
        by: Mapping,
        page: u64,
        write: bool,
    },
    /// Every mapping faults on the page, and none waits.
    TouchByAll {
        object: usize,
        page: u64,
    },
    /// A thread that has looked for the page before the next fill goes to sleep after it: before the words
    /// say so, or when the others have been woken.
    Late {
        by: Mapping,
        woken: bool,
    },
    /// MADV_REMOVE. `again`: the kernel makes the same hole a while later.
    Punch {
        object: usize,
        page: u64,
        pages: u64,
        again: bool,
    },
    PunchAgain,
    Unmap {
        by: Mapping,
    },
    Shrink {
        object: usize,
        pages: usize,
        write: bool,
    },
    /// The same, and victims are faulted on while they are in transit.
    ShrinkWanted {
        by: Mapping,
        pages: usize,
    },
    Pageout {
        object: usize,
        page: u64,
        pages: u64,
    },
    Ahead {
        object: usize,
        page: u64,
        pages: u64,
    },
    Cold {
        object: usize,
        page: u64,
        pages: u64,
    },
    Tidy {
        object: usize,
    },
    Refuse {
        object: usize,
        page: u64,
        pages: u64,
    },
    StopFill {
        object: usize,
        after: usize,
    },
}

/// A history of objects, with all else that may happen.
pub(super) fn ops_with_objects() -> impl Strategy<Value = Vec<Op>> {
    let object_op = prop_oneof![6 => object_access(), 3 => object_change(), 4 => object_reclaim()];
    prop::collection::vec(prop_oneof![3 => object_op.prop_map(Op::Object), 2 => op()], 1..200)
}

fn mapping() -> impl Strategy<Value = Mapping> {
    (0..OBJECTS_MAX, 0..SPACES_MAX).prop_map(|(object, mapper)| Mapping { object, mapper })
}

/// The object's number, and a range of its pages.
fn object_run() -> impl Strategy<Value = (usize, u64, u64)> {
    (0..OBJECTS_MAX, 0..PAGES, prop_oneof![3 => 1..40u64, 1 => 40..200u64])
}

fn object_access() -> impl Strategy<Value = ObjectOp> {
    let run = || (0..PAGES, prop_oneof![3 => 1..40u64, 1 => 40..200u64]);
    prop_oneof![
        3 => (mapping(), 0..PAGES, prop::bool::weighted(0.1))
            .prop_map(|(by, page, zero)| ObjectOp::Write { by, page, zero }),
        3 => (mapping(), run(), any::<bool>())
            .prop_map(|(by, (page, pages), down)| ObjectOp::Scan { by, page, pages, down }),
        4 => (mapping(), run()).prop_map(|(by, (page, pages))| ObjectOp::WriteRun { by, page, pages }),
        6 => (mapping(), 0..PAGES, any::<bool>())
            .prop_map(|(by, page, write)| ObjectOp::Touch { by, page, write }),
        3 => (0..OBJECTS_MAX, 0..PAGES).prop_map(|(object, page)| ObjectOp::TouchByAll { object, page }),
        3 => (mapping(), any::<bool>()).prop_map(|(by, woken)| ObjectOp::Late { by, woken }),
    ]
}

fn object_change() -> impl Strategy<Value = ObjectOp> {
    let pages = prop_oneof![1 => 1..100u64, 2 => 500..PAGES];
    prop_oneof![
        3 => (0..SPACES_MAX, pages, prop_oneof![Just(0), 0..200u64])
            .prop_map(|(target, pages, present)| ObjectOp::Make { target, pages, present }),
        3 => (0..OBJECTS_MAX).prop_map(|object| ObjectOp::Adopt { object }),
        4 => (object_run(), any::<bool>()).prop_map(|((object, page, pages), again)| {
            ObjectOp::Punch { object, page, pages, again }
        }),
        2 => Just(ObjectOp::PunchAgain),
        1 => mapping().prop_map(|by| ObjectOp::Unmap { by }),
    ]
}

fn object_reclaim() -> impl Strategy<Value = ObjectOp> {
    prop_oneof![
        6 => (0..OBJECTS_MAX, 1..128usize, any::<bool>())
            .prop_map(|(object, pages, write)| ObjectOp::Shrink { object, pages, write }),
        2 => (mapping(), 1..64usize).prop_map(|(by, pages)| ObjectOp::ShrinkWanted { by, pages }),
        2 => object_run().prop_map(|(object, page, pages)| ObjectOp::Pageout { object, page, pages }),
        2 => object_run().prop_map(|(object, page, pages)| ObjectOp::Ahead { object, page, pages }),
        1 => object_run().prop_map(|(object, page, pages)| ObjectOp::Cold { object, page, pages }),
        1 => (0..OBJECTS_MAX).prop_map(|object| ObjectOp::Tidy { object }),
        1 => object_run().prop_map(|(object, page, pages)| ObjectOp::Refuse { object, page, pages }),
        1 => (0..OBJECTS_MAX, 0..8usize).prop_map(|(object, after)| ObjectOp::StopFill { object, after }),
    ]
}
