//! Requests and replies of the NBD protocol, as bytes.
//!
//! ```text
//!   request   25609513 | flags 2 | type 2 | cookie 8 | offset 8 | length 4 | data of a write
//!   simple    67446698 | errno 4 | cookie 8 | data of a read, as long as was asked for
//!   chunk     668e33ef | flags 2 | type 2 | cookie 8 | length 4 | as its type says
//! ```
//!
//! A server that speaks of structured replies still answers writes by simple ones, so both kinds are taken at
//! any time. The parser is a function over bytes: it knows no socket, keeps no bytes, and asks its caller
//! what a cookie stands for. It hands payload on as it comes, so that no reply has to fit anywhere.
//!
//! *Everything that a server says is checked*: magic, type, flags, cookie, and that each length lies within
//! the request. All else is an error, and ends the connection: after it nothing can be believed.
//!
//! What it does not do: negotiate (`handshake.rs`), or say whether a page is the right one.

use std::ops::Range;

pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_MAGIC: u32 = 0x6744_6698;
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;

const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
/// Types with this bit are errors, whether their number is known or not.
const CHUNK_IS_ERROR: u16 = 1 << 15;

const SIMPLE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 20;
/// Errno and the length of a text.
const ERROR_BYTES: usize = 6;
/// The most that a server may say about an error.
const ERROR_BYTES_MAX: u32 = 1 << 16;
/// The longest head: of a chunk that is a hole.
#[cfg(test)]
const HEAD_BYTES_MAX: usize = CHUNK_BYTES + 12;

pub(super) const REQUEST_BYTES: usize = 28;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Trim = 4,
}

/// The bytes of a request, without the data of a write.
pub(super) fn request(
    command: Command,
    cookie: u64,
    offset_bytes: u64,
    len_bytes: u32,
) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes[24..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// A request in flight, as far as a reply to it has to fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    pub offset_bytes: u64,
    /// Bytes to be read; 0 of a request that brings none.
    pub read_bytes: u32,
}

/// A part of a reply. `at` counts bytes from the start of the request's range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Bytes that were read: these of the input.
    Data { cookie: u64, at: u32, input: Range<usize> },
    /// The bytes there are zeros.
    Zeros { cookie: u64, at: u32, bytes: u32 },
    /// The request has failed: an errno of the protocol.
    Failed { cookie: u64, errno: u32 },
    /// Nothing more comes for the request.
    Done { cookie: u64 },
}

/// A server that does not keep to the protocol: what it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bad(pub &'static str);

/// Where in a reply the next byte stands.
#[derive(Clone, Copy, Default, Debug)]
enum State {
    #[default]
    Head,
    /// Payload for a request; `ends` it.
    Data {
        cookie: u64,
        at: u32,
        left: u32,
        ends: bool,
    },
    /// Words about an error.
    Words {
        left: u32,
        ends: Option<u64>,
    },
    End {
        cookie: u64,
    },
}

/// See the module's header.
#[derive(Default, Debug)]
pub struct Parser {
    state: State,
}

impl Parser {
    /// Take what comes next from the start of `input`: how many bytes of it, and what they say. None with 0
    /// bytes: the rest of a head is missing. `expect` says what was asked for by a cookie.
    pub fn next(
        &mut self,
        input: &[u8],
        expect: impl Fn(u64) -> Option<Expected>,
    ) -> Result<(usize, Option<Event>), Bad> {
        match self.state {
            State::Head => self.head(input, expect),
            State::Data { cookie, at, left, ends } => {
                let bytes = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                if bytes == 0 {
                    return Ok((0, None));
                }
                self.state = match left - bytes {
                    0 => State::after(cookie, ends),
                    left => State::Data { cookie, at: at + bytes, left, ends },
                };
                let input = 0..bytes as usize;
                Ok((input.end, Some(Event::Data { cookie, at, input })))
            }
            State::Words { left, ends } => {
                let bytes = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                self.state = match (left - bytes, ends) {
                    (0, Some(cookie)) => State::End { cookie },
                    (0, None) => State::Head,
                    (left, ends) => State::Words { left, ends },
                };
                if bytes == 0 && left > 0 { Ok((0, None)) } else { self.go_on(bytes as usize, input, expect) }
            }
            State::End { cookie } => {
                self.state = State::Head;
                Ok((0, Some(Event::Done { cookie })))
            }
        }
    }

    /// As `next`, with so many bytes taken before.
    fn go_on(
        &mut self,
        taken: usize,
        input: &[u8],
        expect: impl Fn(u64) -> Option<Expected>,
    ) -> Result<(usize, Option<Event>), Bad> {
        match self.state {
            State::End { cookie } => {
                self.state = State::Head;
                Ok((taken, Some(Event::Done { cookie })))
            }
            State::Head => {
                let (more, event) = self.head(&input[taken..], expect)?;
                Ok((taken + more, moved(event, taken)))
            }
            State::Data { .. } | State::Words { .. } => Ok((taken, None)),
        }
    }

    fn head(
        &mut self,
        input: &[u8],
        expect: impl Fn(u64) -> Option<Expected>,
    ) -> Result<(usize, Option<Event>), Bad> {
        let Some(magic) = be32(input, 0) else { return Ok((0, None)) };
        match magic {
            SIMPLE_MAGIC if input.len() >= SIMPLE_BYTES => self.simple(input, expect),
            CHUNK_MAGIC if input.len() >= CHUNK_BYTES => self.chunk(input, expect),
            SIMPLE_MAGIC | CHUNK_MAGIC => Ok((0, None)),
            _ => Err(Bad("a reply that begins with no magic number of replies")),
        }
    }

    fn simple(
        &mut self,
        input: &[u8],
        expect: impl Fn(u64) -> Option<Expected>,
    ) -> Result<(usize, Option<Event>), Bad> {
        let (errno, cookie) = (be32(input, 4).ok_or(CUT)?, be64(input, 8).ok_or(CUT)?);
        let Expected { read_bytes, .. } = expect(cookie).ok_or(UNKNOWN)?;
        if errno != 0 {
            self.state = State::End { cookie };
            return Ok((SIMPLE_BYTES, Some(Event::Failed { cookie, errno })));
        }
        if read_bytes == 0 {
            return Ok((SIMPLE_BYTES, Some(Event::Done { cookie })));
        }
        self.state = State::Data { cookie, at: 0, left: read_bytes, ends: true };
        let (bytes, event) = self.next(&input[SIMPLE_BYTES..], expect)?;
        Ok((SIMPLE_BYTES + bytes, moved(event, SIMPLE_BYTES)))
    }

    fn chunk(
        &mut self,
        input: &[u8],
        expect: impl Fn(u64) -> Option<Expected>,
    ) -> Result<(usize, Option<Event>), Bad> {
        let (flags, kind) = (be16(input, 4).ok_or(CUT)?, be16(input, 6).ok_or(CUT)?);
        let (cookie, len) = (be64(input, 8).ok_or(CUT)?, be32(input, 16).ok_or(CUT)?);
        let expected = expect(cookie).ok_or(UNKNOWN)?;
        let ends = flags & CHUNK_DONE != 0;
        // The place in the request that the chunk is for: it lies inside.
        let place = |bytes: u32| {
            let from = be64(input, CHUNK_BYTES).ok_or(CUT)?.checked_sub(expected.offset_bytes);
            let from = from.and_then(|from| u32::try_from(from).ok());
            let fits =
                from.filter(|from| from.checked_add(bytes).is_some_and(|to| to <= expected.read_bytes));
            fits.ok_or(Bad("data for a place that was not asked for"))
        };
        match kind {
            CHUNK_NONE if len != 0 || !ends => Err(Bad("a chunk of nothing that holds something")),
            CHUNK_NONE => Ok((CHUNK_BYTES, Some(Event::Done { cookie }))),
            CHUNK_DATA => {
                let bytes = len.checked_sub(8).filter(|bytes| *bytes > 0).ok_or(LENGTH)?;
                if bytes > expected.read_bytes {
                    return Err(LENGTH);
                }
                if input.len() < CHUNK_BYTES + 8 {
                    return Ok((0, None));
                }
                self.state = State::Data { cookie, at: place(bytes)?, left: bytes, ends };
                let (more, event) = self.next(&input[CHUNK_BYTES + 8..], expect)?;
                Ok((CHUNK_BYTES + 8 + more, moved(event, CHUNK_BYTES + 8)))
            }
            CHUNK_HOLE if len != 12 => Err(LENGTH),
            CHUNK_HOLE => {
                let Some(bytes) = be32(input, CHUNK_BYTES + 8) else { return Ok((0, None)) };
                let at = place(bytes)?;
                if bytes == 0 {
                    return Err(LENGTH);
                }
                self.state = State::after(cookie, ends);
                Ok((CHUNK_BYTES + 12, Some(Event::Zeros { cookie, at, bytes })))
            }
            _ if kind & CHUNK_IS_ERROR != 0 => {
                if len < ERROR_BYTES as u32 || len > ERROR_BYTES_MAX {
                    return Err(LENGTH);
                }
                if input.len() < CHUNK_BYTES + ERROR_BYTES {
                    return Ok((0, None));
                }
                let errno = be32(input, CHUNK_BYTES).ok_or(CUT)?;
                let words = be16(input, CHUNK_BYTES + 4).ok_or(CUT)?;
                if errno == 0 || u32::from(words) > len - ERROR_BYTES as u32 {
                    return Err(Bad("an error that is none"));
                }
                let left = len - ERROR_BYTES as u32;
                self.state = match left {
                    0 => State::after(cookie, ends),
                    left => State::Words { left, ends: ends.then_some(cookie) },
                };
                Ok((CHUNK_BYTES + ERROR_BYTES, Some(Event::Failed { cookie, errno })))
            }
            _ => Err(Bad("a chunk of an unknown type")),
        }
    }
}

impl State {
    fn after(cookie: u64, ends: bool) -> State {
        if ends { State::End { cookie } } else { State::Head }
    }
}

const CUT: Bad = Bad("a reply that is cut off");
const UNKNOWN: Bad = Bad("a reply to no request");
const LENGTH: Bad = Bad("a chunk of a length that cannot be");

/// The event, of input that begins so much earlier.
fn moved(event: Option<Event>, by: usize) -> Option<Event> {
    event.map(|event| match event {
        Event::Data { cookie, at, input } => {
            Event::Data { cookie, at, input: input.start + by..input.end + by }
        }
        other => other,
    })
}

pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|bytes| u16::from_be_bytes(bytes.try_into().expect("two")))
}

pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four")))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Expected = Expected { offset_bytes: 8192, read_bytes: 4096 };
    const WRITE: Expected = Expected { offset_bytes: 0, read_bytes: 0 };

    fn expect(cookie: u64) -> Option<Expected> {
        match cookie {
            1 => Some(READ),
            2 => Some(WRITE),
            _ => None,
        }
    }

    fn simple(errno: u32, cookie: u64) -> Vec<u8> {
        [&SIMPLE_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes()].concat()
    }

    fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
        let len = payload.len() as u32;
        let head = [&CHUNK_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head[..], &cookie.to_be_bytes(), &len.to_be_bytes(), payload].concat()
    }

    fn data(flags: u16, offset: u64, bytes: &[u8]) -> Vec<u8> {
        chunk(flags, CHUNK_DATA, 1, &[&offset.to_be_bytes()[..], bytes].concat())
    }

    /// All events, with data as bytes, if `input` comes in pieces of this size.
    fn parse(input: &[u8], piece: usize) -> Result<Vec<String>, Bad> {
        let (mut parser, mut events, mut held) = (Parser::default(), Vec::new(), Vec::new());
        let mut got = Vec::new();
        for part in input.chunks(piece) {
            held.extend_from_slice(part);
            loop {
                let (bytes, event) = parser.next(&held, expect)?;
                if let Some(Event::Data { at, input, .. }) = &event {
                    assert_eq!(*at as usize, got.len());
                    got.extend_from_slice(&held[input.clone()]);
                } else if let Some(event) = &event {
                    events.push(format!("{event:?}"));
                }
                held.drain(..bytes);
                if bytes == 0 && event.is_none() {
                    break;
                }
            }
            assert!(held.len() < HEAD_BYTES_MAX);
        }
        if !got.is_empty() {
            let sum = got.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            events.push(format!("{} bytes, {sum}", got.len()));
        }
        Ok(events)
    }

    #[test]
    fn both_kinds_of_replies_come_in_pieces_of_any_size() {
        let page: Vec<u8> = (0..4096).map(|at| (at % 251) as u8).collect();
        let sum = page.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let whole = format!("4096 bytes, {sum}");
        let words = [&5u32.to_be_bytes()[..], &3u16.to_be_bytes(), b"why"].concat();
        let done = |cookie| format!("Done {{ cookie: {cookie} }}");
        let cases = [
            ([simple(0, 1), page.clone()].concat(), vec![done(1), whole.clone()]),
            (simple(0, 2), vec![done(2)]),
            (simple(28, 2), vec!["Failed { cookie: 2, errno: 28 }".into(), done(2)]),
            (data(1, 8192, &page), vec![done(1), whole.clone()]),
            (
                [
                    data(0, 8192, &page[..1000]),
                    data(0, 9192, &page[1000..]),
                    chunk(1, 0, 1, &[]),
                    simple(0, 2),
                ]
                .concat(),
                vec![done(1), done(2), whole.clone()],
            ),
            (
                [chunk(0, 0x8001, 1, &words), chunk(1, 0, 1, &[])].concat(),
                vec!["Failed { cookie: 1, errno: 5 }".into(), done(1)],
            ),
            (
                [chunk(0, 0x8001, 2, &words), data(1, 8192, &page), chunk(1, 0, 2, &[])].concat(),
                vec!["Failed { cookie: 2, errno: 5 }".into(), done(1), done(2), whole.clone()],
            ),
            (chunk(1, 0x8fff, 1, &words), vec!["Failed { cookie: 1, errno: 5 }".into(), done(1)]),
            (
                chunk(1, CHUNK_HOLE, 1, &[&8192u64.to_be_bytes()[..], &4096u32.to_be_bytes()].concat()),
                vec!["Zeros { cookie: 1, at: 0, bytes: 4096 }".into(), done(1)],
            ),
        ];
        for (input, wanted) in cases {
            for piece in [1, 2, 3, 7, 16, 20, 21, 27, 28, 29, 100, 4096, usize::MAX >> 1] {
                assert_eq!(parse(&input, piece), Ok(wanted.clone()), "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_the_request_is_an_error() {
        let hole = |offset: u64, bytes: u32| {
            chunk(1, CHUNK_HOLE, 1, &[&offset.to_be_bytes()[..], &bytes.to_be_bytes()].concat())
        };
        let mut long = chunk(1, CHUNK_DATA, 1, &8192u64.to_be_bytes());
        long[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut words = chunk(1, 0x8001, 1, &[0; 6]);
        words[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        for (input, what) in [
            (vec![0; 16], "no magic"),
            (REQUEST_MAGIC.to_be_bytes().to_vec(), "a request's magic"),
            (simple(0, 3), "an unknown cookie"),
            (chunk(1, 0, 3, &[]), "an unknown cookie in a chunk"),
            (data(1, 8191, &[1; 4096]), "before its place"),
            (data(1, 8193, &[1; 4096]), "beyond its place"),
            (data(1, u64::MAX, &[1; 4096]), "at the end of all numbers"),
            (data(1, 8192, &[1; 4097]), "too long"),
            (data(1, 8192, &[]), "no data"),
            (chunk(1, CHUNK_DATA, 1, &[0; 7]), "no offset"),
            (chunk(1, CHUNK_DATA, 2, &[0; 9]), "data for a write"),
            (long, "a chunk of all numbers"),
            (hole(8192, 0), "a hole of nothing"),
            (hole(8192, 4097), "a hole too long"),
            (hole(12288, 1), "a hole beyond"),
            (chunk(1, CHUNK_HOLE, 1, &[0; 11]), "a hole too short"),
            (chunk(0, 0, 1, &[]), "nothing that does not end"),
            (chunk(1, 0, 1, &[1]), "nothing with a byte"),
            (chunk(1, 5, 1, &[0; 12]), "a status of blocks"),
            (chunk(1, 0x8001, 1, &[0; 5]), "an error too short"),
            (chunk(1, 0x8001, 1, &[0; 6]), "an error of 0"),
            (chunk(1, 0x8001, 1, &[0, 0, 0, 5, 0, 1]), "words that are not there"),
            (words, "an error too long"),
        ] {
            for piece in [1, 16, 1 << 20] {
                assert!(parse(&input, piece).is_err(), "{what}, in pieces of {piece}");
            }
        }
    }
}
