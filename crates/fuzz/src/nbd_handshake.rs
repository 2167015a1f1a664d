//! What an NBD server says before the first request (`crates/backing/src/nbd/handshake.rs`).

use std::io::{self, Read, Write};

use crate::assert_one_line;
use memspill_backing::nbd::untrusted::{go, greet, start_tls};

/// The most of an answer that is kept, and how many answers there are for one question.
const READ_BYTES_MAX: usize = (64 * ((1 << 16) + 20)) * 2;

/// A server that says this, whatever it is told.
struct Says<'a> {
    words: &'a [u8],
    told_bytes: usize,
}

impl Read for Says<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.words.read(bytes)
    }
}

impl Write for Says<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.told_bytes += bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first byte says whether TLS is asked for.
pub fn check(input: &[u8]) {
    let Some((first, words)) = input.split_first() else { return };
    let mut server = Says { words, told_bytes: 0 };
    let started = greet(&mut server).and_then(|()| match first & 1 {
        0 => Ok(()),
        _ => start_tls(&mut server),
    });
    let answer = started.and_then(|()| go(&mut server, "export"));
    assert!(server.told_bytes < 256, "told it {} bytes", server.told_bytes);
    assert!(words.len() - server.words.len() <= READ_BYTES_MAX, "it is listened to without end");
    match answer {
        Ok(export) => {
            assert!(export.block_bytes_min.is_power_of_two(), "{export:?}");
            assert!(export.block_bytes_min <= export.request_bytes_max, "{export:?}");
            assert!(export.request_bytes_max <= 32 << 20, "{export:?}");
        }
        Err(error) => assert_one_line(&error.to_string()),
    }
}
