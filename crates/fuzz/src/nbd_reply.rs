//! An NBD server's replies (`crates/backing/src/nbd/wire.rs`).
//!
//! The first byte is a number of bytes. The rest is parsed twice, as if all of it came at once, and as if so
//! many bytes came at a time: that makes no difference. All that is said lies within what was asked for.

use memspill_backing::nbd::untrusted::{Bad, Event, Expected, Parser};

/// Under way: a read of a page by cookie 1, of 64 KiB by 2; a write by 3.
fn expected(cookie: u64) -> Option<Expected> {
    match cookie {
        1 => Some(Expected { offset_bytes: 8192, read_bytes: 4096 }),
        2 => Some(Expected { offset_bytes: 1 << 40, read_bytes: 65536 }),
        3 => Some(Expected { offset_bytes: 0, read_bytes: 0 }),
        _ => None,
    }
}

/// An answer of the parser, byte by byte where it is data.
#[derive(PartialEq, Eq, Debug)]
enum Said {
    Byte(u64, u32, u8),
    Zeros(u64, u32, u32),
    Failed(u64, u32),
    Done(u64),
}

pub fn check(input: &[u8]) {
    let Some((step, words)) = input.split_first() else { return };
    let (at_once, end) = parsed(words, words.len());
    let (in_pieces, end_of_pieces) = parsed(words, usize::from(*step).max(1));
    assert_eq!(at_once, in_pieces);
    assert_eq!(end, end_of_pieces);
}

/// All that is said, and how it ended: an error, or so many bytes that wait for more.
fn parsed(words: &[u8], step: usize) -> (Vec<Said>, Result<usize, Bad>) {
    let (mut parser, mut said) = (Parser::default(), Vec::new());
    let (mut from, mut to) = (0, step.min(words.len()));
    loop {
        let (taken, event) = match parser.next(&words[from..to], expected) {
            Ok(found) => found,
            Err(bad) => return (said, Err(bad)),
        };
        assert!(taken <= to - from, "more than there is");
        match event {
            None if taken == 0 && to == words.len() => return (said, Ok(to - from)),
            // It waits for more.
            None if taken == 0 => to = (to + step).min(words.len()),
            None => {}
            Some(event) => note(event, &words[from..from + taken], &mut said),
        }
        from += taken;
    }
}

fn note(event: Event, taken: &[u8], said: &mut Vec<Said>) {
    let fits = |cookie: u64, at: u32, bytes: u32| {
        let expected = expected(cookie).expect("a cookie of ours");
        assert!(u64::from(at) + u64::from(bytes) <= u64::from(expected.read_bytes), "beyond the request");
    };
    match event {
        Event::Data { cookie, at, input } => {
            fits(cookie, at, input.len() as u32);
            let bytes = taken[input].iter();
            said.extend((at..).zip(bytes).map(|(at, byte)| Said::Byte(cookie, at, *byte)));
        }
        Event::Zeros { cookie, at, bytes } => {
            fits(cookie, at, bytes);
            said.push(Said::Zeros(cookie, at, bytes));
        }
        Event::Failed { cookie, errno } => {
            assert!(expected(cookie).is_some() && errno != 0);
            said.push(Said::Failed(cookie, errno));
        }
        Event::Done { cookie } => {
            assert!(expected(cookie).is_some());
            said.push(Said::Done(cookie));
        }
    }
}
