//! The freestanding library that LD_PRELOAD puts into a target, and the protocol it speaks.

pub mod protocol;
