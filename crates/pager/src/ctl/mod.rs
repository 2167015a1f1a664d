//! `memspill ctl`: how a run carries out what it is asked for (operator.rs, host.rs). The messages are those
//! of the crate `ctl`. What changes the budget by itself is here too (budget.rs, thrash.rs).

pub mod budget;
pub mod host;
pub mod operator;
pub mod thrash;
