//! One request on a connection that is nobody's yet, and its answer: before the first page, and after each
//! reconnect.

use std::io::{Read, Write};
use std::time::Instant;

use super::error::NbdError;
use super::line::errno_of;
use super::stream::{Stream, Timed};
use super::wire::{self, Command, Event, Expected, Parser};

/// Read `bytes` from there, or write them, by the deadline.
pub(super) fn exchange(
    stream: Stream,
    deadline: Instant,
    command: Command,
    offset_bytes: u64,
    bytes: &mut [u8],
) -> Result<Stream, NbdError> {
    const COOKIE: u64 = 1;
    let mut timed = stream.timed(deadline);
    let len_bytes = bytes.len() as u32;
    let head = wire::request(command, COOKIE, offset_bytes, len_bytes);
    timed.write_all(&head)?;
    let read_bytes = if command == Command::Write { 0 } else { len_bytes };
    if command == Command::Write {
        timed.write_all(bytes)?;
    }
    timed.flush()?;
    let expected = Expected { offset_bytes, read_bytes };
    answer(&mut timed, bytes, |cookie| (cookie == COOKIE).then_some(expected), read_bytes)?;
    Ok(timed.stream)
}

fn answer(
    timed: &mut Timed,
    bytes: &mut [u8],
    expect: impl Fn(u64) -> Option<Expected>,
    wanted_bytes: u32,
) -> Result<(), NbdError> {
    let mut parser = Parser::default();
    let mut held: Vec<u8> = Vec::new();
    let (mut got_bytes, mut failed) = (0, 0);
    loop {
        let (taken, event) = parser.next(&held, &expect).map_err(|bad| NbdError::Protocol(bad.0))?;
        match event {
            Some(Event::Data { at, ref input, .. }) => {
                got_bytes += input.len() as u32;
                bytes[at as usize..at as usize + input.len()].copy_from_slice(&held[input.clone()]);
            }
            Some(Event::Zeros { at, bytes: zeros, .. }) => {
                got_bytes += zeros;
                bytes[at as usize..(at + zeros) as usize].fill(0);
            }
            Some(Event::Failed { errno, .. }) => failed = errno,
            Some(Event::Done { .. }) if failed != 0 => {
                return Err(NbdError::Io(errno_of(failed).into()));
            }
            Some(Event::Done { .. }) if got_bytes < wanted_bytes => {
                return Err(NbdError::Protocol("less data than was asked for"));
            }
            Some(Event::Done { .. }) => return Ok(()),
            None => {}
        }
        held.drain(..taken);
        if taken == 0 && event.is_none() {
            // Never more than this answer has: what follows is for others. Nothing follows.
            let mut more = [0; 4096];
            let got = timed.read(&mut more)?;
            if got == 0 {
                return Err(NbdError::Closed);
            }
            held.extend_from_slice(&more[..got]);
        }
    }
}
