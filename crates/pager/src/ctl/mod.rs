//! `memspill ctl`: the messages between the command and a run (words.rs), and how a run carries out what it
//! is asked for (operator.rs, host.rs). What changes the budget by itself is here too (budget.rs, thrash.rs).

pub mod budget;
pub mod host;
pub mod operator;
pub mod thrash;
pub mod words;
