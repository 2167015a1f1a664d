//! Threads on an object of shared memory that each of them has mapped.

use super::*;
use memspill_engine::testing::shared::MockShared;

pub(super) const OBJECT_PAGES: u64 = 600;
/// A process that has the object mapped for a while.
const CHILD_MAPPER: u32 = 100;

impl Pager<'_> {
    /// The same through a mapping of the object. A fill may come between the look and the sleep.
    pub(super) fn access_object(&mut self, object: &Object, mapper: u32, page: u64, write: Option<u64>) {
        let start = Instant::now();
        while object.memory.look(mapper, page, write) == Touch::Missing {
            if self.random.one_in(4) {
                self.duties();
                std::thread::yield_now();
            }
            object.memory.sleep(mapper, self.id, page);
            object.memory.note_waiter(page, mapper);
            let mut served = self.fault(&object.space, Vpn(page));
            while object.memory.sleeps(mapper, self.id, page) {
                self.duties();
                served = served || !object.memory.sleeps(mapper, self.id, page) || {
                    object.memory.note_waiter(page, mapper);
                    self.fault(&object.space, Vpn(page))
                };
                let word = object.space.word(Vpn(page));
                assert!(start.elapsed() < PATIENCE, "page {page} of the object never came: {word:?}");
                std::thread::yield_now();
            }
        }
    }

    pub(super) fn run_on_object(&mut self, object: &Object) {
        let page = self.random.below(OBJECT_PAGES);
        let pages = if self.random.one_in(8) { 30 } else { 1 };
        for page in page..(page + pages).min(OBJECT_PAGES) {
            let stamp = if self.random.one_in(10) { 0 } else { self.stress.stamp() };
            let write = self.random.one_in(2).then_some(stamp);
            self.access_object(object, self.id, page, write);
            self.duties();
        }
    }

    /// MADV_REMOVE, by the agent's call and then the kernel's own; and a child that has the object mapped,
    /// looks at some of it, stores to some, and goes.
    pub(super) fn change_object(&mut self, object: &Object) {
        let page = self.random.below(OBJECT_PAGES);
        let to = (page + 1 + self.random.below(60)).min(OBJECT_PAGES);
        if self.random.one_in(2) {
            let events_guard = object.space.gate.enter_events();
            let batch = object.memory.batch.lock().expect("batch");
            object.space.unmap(self.stress.engine.swap(), self.cpu(), Vpn(page), Vpn(to));
            object.memory.punch(page, to);
            drop((batch, events_guard));
            (0..self.random.below(3)).for_each(|_| std::thread::yield_now());
            object.memory.punch_again(page, to);
            return;
        }
        object.memory.fork(self.random.below(PAGERS.into()) as u32, CHILD_MAPPER);
        for page in page..to {
            let write = self.random.one_in(4).then(|| self.stress.stamp());
            self.access_object(object, CHILD_MAPPER, page, write);
        }
        object.memory.unmap(CHILD_MAPPER);
    }
}

impl Stress {
    pub(super) fn check_object(&self, pager: &mut Pager<'_>, object: &Object) {
        object.memory.stop_failing();
        assert_eq!(object.memory.asleep(), [], "waiters of the object that nobody will wake");
        assert!(!object.memory.is_breached(), "nobody but the pagers makes pages here");
        for mapper in object.memory.mappers() {
            (0..OBJECT_PAGES).for_each(|page| pager.access_object(object, mapper, page, None));
        }
        self.engine.check();
        let events_guard = object.space.gate.enter_events();
        let batch = object.memory.batch.lock().expect("batch");
        object.space.release(self.engine.swap(), CPU);
        drop((batch, events_guard));
        self.engine.remove_space(&object.space);
    }
}

/// Mapped by each pager, and managed from the start.
pub(super) fn make_object(engine: &Engine, lost: &Arc<Lost>) -> Object {
    let memory = Arc::new(MockShared::new(OBJECT_PAGES, lost.clone()));
    (0..PAGERS).for_each(|mapper| memory.map(mapper));
    let space = new_space(engine, 1 << 20, memory.clone());
    engine.add_space(space.clone());
    Object { memory, space }
}
