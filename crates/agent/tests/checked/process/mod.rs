//! The supervisor's side of a process: its own code, as far as that shares memory with the agent, and in the
//! places of the rest what is needed for it.

#[path = "../../../../pager/src/process/control.rs"]
pub mod control;
pub mod evictor;
pub mod port;

pub mod agent {
    use super::evictor::Evictor;
    use std::sync::atomic::AtomicU32;

    pub struct Agent {
        pub evictor: Evictor,
        pub half: AtomicU32,
    }
}

pub mod ranges {
    #[derive(Default)]
    pub struct Ranges;
}

pub mod peer {
    pub struct Pidfd;

    impl Pidfd {
        pub fn has_ended(&self) -> bool {
            false
        }
    }
}

/// Through the kernel of the model.
pub mod futex {
    use crate::kernel;
    use memspill_common::sync::AtomicU32;
    use std::time::Duration;

    pub fn wait(_word: &AtomicU32, _value: u32, _limit: Duration) {
        shuttle::thread::yield_now();
    }

    pub fn wake(word: &AtomicU32, _count: i32) {
        kernel::step();
        kernel::wake_all(word.as_ptr() as usize);
    }
}

/// Where a control page is.
pub fn address_of(control: &control::ControlPage) -> usize {
    control.file() as usize
}
