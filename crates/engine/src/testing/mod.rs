//! Doubles of the memory and the devices that the engine is given, for its tests and examples and for the
//! simulator.
//!
//! ```text
//!   address_space.rs   pages, what each must read as, events   ─┬─▶ memory.rs   a `Memory` with a lock
//!                                                               └─▶ the simulator's, with costs
//!   object.rs          the same of shared memory, by its mappers ┬─▶ shared.rs   a `Memory` with a lock
//!                                                               └─▶ the simulator's, with costs
//!   store.rs           slots that hold stamps, reads under way ─┬─▶ device.rs   a `Backing` with a lock
//!                                                               └─▶ the simulator's, with costs
//!   blank.rs           a `Memory` and a `Backing` without bytes, for what counts and times
//!   stamp.rs           pages that hold one number
//!   random.rs          numbers that are the same on every run
//! ```
//!
//! They are compiled as the engine is, so that they serve under std, loom, shuttle and virtual CPUs alike.
//! Nothing that is shipped calls them.

pub mod address_space;
pub mod blank;
pub mod device;
pub mod memory;
pub mod object;
pub mod random;
pub mod shared;
pub mod stamp;
pub mod store;
