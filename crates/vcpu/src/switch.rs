//! Stackful coroutines: a task may stop in the middle of the engine, at any lock or atomic, and go on later.
//!
//! The one place of the simulator with unsafe code. What it does not do: decide who runs (`world.rs`).

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;

/// The engine's deepest frames hold a few pages of bytes; unoptimised builds need more. Only what is touched
/// is memory.
const STACK_BYTES: usize = 512 << 10;

thread_local! {
    /// The way back from the fiber that runs now, to whoever resumed it; null outside of fibers.
    static WAY_BACK: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

pub struct Fiber(Option<Coroutine<(), (), ()>>);

impl Fiber {
    pub fn new(body: impl FnOnce() + 'static) -> Fiber {
        let stack = DefaultStack::new(STACK_BYTES).expect("address space for a fiber's stack");
        Fiber(Some(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            WAY_BACK.set(yielder);
            body();
        })))
    }

    /// Run until it suspends or ends. True if it has ended.
    pub fn resume(&mut self) -> bool {
        let before = WAY_BACK.get();
        let coroutine = self.0.as_mut().expect("a fiber that was not dropped");
        let ended = matches!(coroutine.resume(()), CoroutineResult::Return(()));
        WAY_BACK.set(before);
        ended
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // Dropped in the middle, a coroutine unwinds its stack; during a panic that would be a second one.
        // Its stack is left behind instead: the process is about to end.
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

/// Give control back to whoever resumed this fiber; returns when it is resumed again.
#[allow(unsafe_code, reason = "a yielder can be reached from deep inside the engine only by a pointer")]
pub fn suspend() {
    let way_back = WAY_BACK.get();
    assert!(!way_back.is_null(), "only a fiber can be suspended");
    // SAFETY: WAY_BACK is set by the running fiber itself, when it starts and after each suspension, and put
    // back by `resume` when it stops running. So it points to the yielder of the fiber that executes this
    // line, and that lives on the fiber's own stack for as long as its body runs.
    unsafe { (*way_back).suspend(()) };
    WAY_BACK.set(way_back);
}
