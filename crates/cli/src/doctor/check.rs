//! One line of the doctor's answer, and how it is made.

use std::io;

use crate::message::words;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

/// One line of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    /// A command, or what to do where no command can.
    pub fix: Option<String>,
}

pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, level: Level::Ok, found: found.into(), fix: None }
}

pub(super) fn warn(name: &'static str, found: impl Into<String>, fix: Option<String>) -> Check {
    Check { name, level: Level::Warn, found: found.into(), fix }
}

pub(super) fn fail(name: &'static str, found: impl Into<String>, fix: Option<String>) -> Check {
    Check { name, level: Level::Fail, found: found.into(), fix }
}

/// What an errno means, in strerror's words without its number.
pub(super) fn reason(errno: i32) -> String {
    words(&io::Error::from_raw_os_error(errno))
}
