//! `memspill ctl`: the messages between the command and a run (words.rs), and how a run carries out what it
//! is asked for (operator.rs).

pub mod operator;
pub mod words;
