//! Objects of shared memory in a history: each is a space of its own, which several processes have mapped.
//!
//! ```text
//!   process ── touch, make a hole, unmap, fork ─┐
//!   process ── touch, …                        ─┼─▶ MockShared ◀── Space of the object ── engine
//!   pager   ── note the waiter, then fault     ─┘
//! ```
//!
//! The engine knows nothing of mappings. What it owes an object beyond what it owes any space:
//! * a fill wakes nobody, `filled` does, and not before the words are final: who sleeps since after the fill
//!   is woken too (`Late`);
//! * a read error is told to all who wait, and to each who comes later;
//! * a claim from before a hole was made, or from before the object ended, comes to nothing;
//! * a fork copies no words: the child has the same pages, and no slot gets another reference.
//!
//! The processes have private memory beside it, of which all other operations are.

use super::object_ops::OBJECTS_MAX;
use super::*;
use memspill_engine::testing::shared::MockShared;

/// The thread of a process that sleeps since after the page was looked for.
const LATE_THREAD: u32 = 1;

#[derive(Clone)]
pub(super) struct Object {
    pub memory: Arc<MockShared>,
    pub space: Arc<Space>,
}

impl Object {
    fn range(&self, page: u64, pages: u64) -> (u64, u64) {
        let from = page % self.memory.pages();
        (from, (from + pages).min(self.memory.pages()))
    }

    fn mapper(&self, by: Mapping) -> u32 {
        let mappers = self.memory.mappers();
        mappers[by.mapper % mappers.len()]
    }
}

impl World {
    fn object(&self, object: usize) -> Option<Object> {
        let at = object.checked_rem(self.objects.len())?;
        Some(self.objects[at].clone())
    }

    pub(super) fn object_step(&mut self, op: &ObjectOp) {
        use ObjectOp::*;
        let object = match op {
            Make { target, pages, present } => return self.make_object(*target, *pages, *present),
            PunchAgain => return self.punch_again(),
            Write { by, .. } | Scan { by, .. } | WriteRun { by, .. } | Touch { by, .. } => by.object,
            Late { by, .. } | Unmap { by } | ShrinkWanted { by, .. } => by.object,
            Adopt { object } | TouchByAll { object, .. } | Punch { object, .. } => *object,
            Shrink { object, .. } | Pageout { object, .. } | Ahead { object, .. } => *object,
            Cold { object, .. } | Tidy { object } | Refuse { object, .. } => *object,
            StopFill { object, .. } => *object,
        };
        let Some(object) = self.object(object) else { return };
        match op {
            Write { .. } | Scan { .. } | WriteRun { .. } | Touch { .. } | TouchByAll { .. } => {
                self.access_step(&object, op);
            }
            Adopt { .. } => self.adopt_object(&object),
            Late { by, woken } => self.be_late(&object, object.mapper(*by), *woken),
            Punch { page, pages, again, .. } => {
                let (from, to) = object.range(*page, *pages);
                self.punch(&object, from, to, *again);
            }
            Unmap { by } => self.unmap_object(&object, object.mapper(*by)),
            Shrink { pages, write, .. } => _ = self.shrink_object(&object, *pages, *write),
            ShrinkWanted { by, pages } => self.shrink_wanted_object(&object, object.mapper(*by), *pages),
            Pageout { page, pages, .. } => self.pageout_object(&object, *page, *pages),
            Ahead { page, pages, .. } => {
                let (from, to) = object.range(*page, *pages);
                self.bring_ahead(&object.space, from, to);
            }
            Cold { page, pages, .. } => {
                let (from, to) = object.range(*page, *pages);
                object.space.make_cold(Vpn(from), Vpn(to));
            }
            Tidy { .. } => object.space.tidy(),
            Refuse { page, pages, .. } => {
                let (from, to) = object.range(*page, *pages);
                (from..to).for_each(|page| object.memory.refuse(page));
            }
            StopFill { after, .. } => object.memory.stop_next_fill(*after, Stop::NoMemory),
            Make { .. } | PunchAgain => unreachable!("handled above"),
        }
    }

    fn access_step(&mut self, object: &Object, op: &ObjectOp) {
        match op {
            ObjectOp::Write { by, page, zero } => {
                let stamp = if *zero { 0 } else { self.stamp() };
                self.access_object(object, object.mapper(*by), object.range(*page, 1).0, Some(stamp));
            }
            ObjectOp::Scan { by, page, pages, down } => {
                let (from, to) = object.range(*page, *pages);
                for i in 0..to - from {
                    let page = if *down { to - 1 - i } else { from + i };
                    self.access_object(object, object.mapper(*by), page, None);
                }
            }
            ObjectOp::WriteRun { by, page, pages } => {
                let (from, to) = object.range(*page, *pages);
                for page in from..to {
                    let stamp = self.stamp();
                    self.access_object(object, object.mapper(*by), page, Some(stamp));
                }
            }
            ObjectOp::Touch { by, page, write } => {
                let (mapper, page) = (object.mapper(*by), object.range(*page, 1).0);
                let stamp = write.then(|| self.stamp());
                if object.memory.touch(mapper, 0, page, stamp) == Touch::Missing {
                    self.object_fault(object, mapper, page, *write);
                }
            }
            ObjectOp::TouchByAll { page, .. } => {
                let page = object.range(*page, 1).0;
                for mapper in object.memory.mappers() {
                    if object.memory.touch(mapper, 0, page, None) == Touch::Missing {
                        self.object_fault(object, mapper, page, false);
                    }
                }
            }
            _ => unreachable!("not an access"),
        }
    }

    // -- the processes --

    fn make_object(&mut self, target: usize, pages: u64, present: u64) {
        if self.objects.len() == OBJECTS_MAX {
            return;
        }
        self.spaces += 1;
        let memory = Arc::new(MockShared::new(pages, self.lost.clone()));
        memory.map(self.target(target).mapper);
        let stamps = &mut self.stamps;
        memory.make_present(0, present.min(pages), || {
            *stamps += 1;
            *stamps
        });
        let space = new_space(&self.engine, self.spaces, memory.clone());
        space.set_aside(true, &[]);
        self.engine.add_space(space.clone());
        self.objects.push(Object { memory, space });
    }

    /// As when all who have it mapped are registered, at a moment without a fill.
    fn adopt_object(&mut self, object: &Object) {
        let fill_guard = object.space.gate.enter_fill();
        for (from, to) in object.memory.present_ranges(0, object.memory.pages()) {
            object.space.adopt(self.engine.swap(), Vpn(from), Vpn(to));
        }
        drop(fill_guard);
        object.space.set_aside(false, &self.engine.spaces());
    }

    /// Access a page, and play pager and reclaimer until it is there. One fault for each sleep, as in a
    /// kernel: who is not woken sleeps for ever.
    pub(super) fn access_object(&mut self, object: &Object, mapper: u32, page: u64, write: Option<u64>) {
        for _ in 0..100 {
            if object.memory.touch(mapper, 0, page, write) != Touch::Missing {
                return;
            }
            self.object_fault(object, mapper, page, write.is_some());
            for _ in 0..100 {
                if !object.memory.sleeps(mapper, 0, page) {
                    break;
                }
                self.make_progress();
            }
            let word = object.space.word(Vpn(page));
            assert!(
                !object.memory.sleeps(mapper, 0, page),
                "nobody wakes who waits for page {page}: {word:?}"
            );
        }
        panic!("page {page} of an object never came: {:?}", object.space.word(Vpn(page)));
    }

    fn be_late(&mut self, object: &Object, mapper: u32, woken: bool) {
        let (engine, space, memory) = (self.engine.clone(), object.space.clone(), object.memory.clone());
        let hook = if woken { &object.memory.after_filled } else { &object.memory.after_put };
        *hook.lock().expect("hook") = Some(Box::new(move |vpn: Vpn, _| {
            if !memory.is_mapped_by(mapper) {
                return;
            }
            memory.sleep(mapper, LATE_THREAD, vpn.0);
            memory.note_waiter(vpn.0, mapper);
            let fault = Fault { vpn, write: false, urgent: false, favoured: false };
            let outcome = engine.fault(CPU, QUEUE, &space, fault, &mut Scratch::default());
            assert!(matches!(outcome, Outcome::Done), "the page is there, or somebody else's work");
            let sleeps = memory.sleeps(mapper, LATE_THREAD, vpn.0);
            assert!(!woken || !sleeps, "he came after the others were woken, and nobody wakes him");
        }));
    }

    fn punch(&mut self, object: &Object, from: u64, to: u64, again: bool) {
        let events_guard = object.space.gate.enter_events();
        let batch = object.memory.batch.lock().expect("batch");
        object.space.unmap(self.engine.swap(), CPU, Vpn(from), Vpn(to));
        object.memory.punch(from, to);
        drop((batch, events_guard));
        if again {
            self.holes.push((object.clone(), from, to));
        }
    }

    fn punch_again(&mut self) {
        for (object, from, to) in std::mem::take(&mut self.holes) {
            object.memory.punch_again(from, to);
        }
    }

    pub(super) fn unmap_object(&mut self, object: &Object, mapper: u32) {
        object.memory.unmap(mapper);
        if object.memory.mappers().is_empty() {
            self.end_object(object);
        }
    }

    /// Nobody has it mapped any more.
    fn end_object(&mut self, object: &Object) {
        let events_guard = object.space.gate.enter_events();
        let batch = object.memory.batch.lock().expect("batch");
        object.space.release(self.engine.swap(), CPU);
        drop((batch, events_guard));
        self.engine.remove_space(&object.space);
        self.objects.retain(|other| !Arc::ptr_eq(&other.space, &object.space));
    }

    /// Unmaps the objects of a process that ends.
    pub(super) fn unmap_all_objects(&mut self, mapper: u32) {
        for object in self.objects.clone() {
            self.unmap_object(&object, mapper);
        }
    }

    // -- the pager --

    fn object_fault(&mut self, object: &Object, mapper: u32, page: u64, write: bool) {
        object.memory.note_waiter(page, mapper);
        let fault = Fault { vpn: Vpn(page), write, urgent: false, favoured: false };
        self.fault_in(&object.space, fault);
    }

    // -- the reclaimer --

    pub(super) fn shrink_object(&mut self, object: &Object, pages: usize, write: bool) -> usize {
        if object.space.is_aside() {
            return 0;
        }
        let batch = object.memory.batch.lock().expect("batch");
        let (shrunk, write_out) = self.engine.shrink(CPU, &object.space, pages);
        drop(batch);
        self.unwritten.extend(write_out);
        if write {
            self.finish_writes();
        }
        self.serve_wanted(&object.space, &shrunk.wanted);
        shrunk.taken
    }

    fn shrink_wanted_object(&mut self, object: &Object, mapper: u32, pages: usize) {
        let (engine, space, memory) = (self.engine.clone(), object.space.clone(), object.memory.clone());
        *object.memory.after_take.lock().expect("hook") = Some(Box::new(move |runs| {
            for run in runs {
                if memory.touch(mapper, 0, run.vpn.0, None) == Touch::Missing {
                    memory.note_waiter(run.vpn.0, mapper);
                    let fault = Fault { vpn: run.vpn, write: false, urgent: false, favoured: false };
                    let outcome = engine.fault(CPU, QUEUE, &space, fault, &mut Scratch::default());
                    assert!(matches!(outcome, Outcome::Done), "a page in transit is somebody else's work");
                }
            }
        }));
        self.shrink_object(object, pages, false);
        *object.memory.after_take.lock().expect("hook") = None;
    }

    fn pageout_object(&mut self, object: &Object, page: u64, pages: u64) {
        if object.space.is_aside() {
            return;
        }
        let (from, to) = object.range(page, pages);
        let mut at = Vpn(from);
        while at < Vpn(to) {
            let batch = object.memory.batch.lock().expect("batch");
            let (shrunk, write_out, next) = self.engine.pageout(CPU, &object.space, at, Vpn(to));
            drop(batch);
            assert!(next > at, "a batch brings it further");
            at = next;
            self.unwritten.extend(write_out);
            self.serve_wanted(&object.space, &shrunk.wanted);
        }
    }

    // -- quiet points --

    pub(super) fn check_objects_quiet(&self) {
        for object in &self.objects {
            assert_eq!(object.memory.asleep(), [], "waiters of an object that nobody will wake");
            assert!(!object.memory.is_breached(), "nobody but the pager makes pages here");
        }
    }

    /// Every page of every object, through every mapping.
    pub(super) fn check_objects_contents(&mut self) {
        for object in self.objects.clone() {
            for mapper in object.memory.mappers() {
                (0..object.memory.pages()).for_each(|page| self.access_object(&object, mapper, page, None));
            }
        }
    }
}
