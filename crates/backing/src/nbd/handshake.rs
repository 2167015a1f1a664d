//! The fixed newstyle handshake: what is said before the first request.
//!
//! ```text
//!   server: NBDMAGIC IHAVEOPT flags      client: flags
//!   [STARTTLS]     before anything else, where TLS is asked for: all that follows is encrypted
//!   STRUCTURED_REPLY    if the server knows them; refused, replies are simple
//!   GO export           sizes, what the server can do, and the sizes of requests that it takes
//! ```
//!
//! It works on anything that reads and writes, and every length that the server says has a limit.
//!
//! What it does not do: open sockets or wait (`stream.rs`), or judge what an export is good for (`mod.rs`).

use std::io::{Read, Write};

use super::error::NbdError;
use super::wire::{be16, be32, be64};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// What servers of before 2011 say in its place.
const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const STARTTLS: u32 = 5;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;

const ACK: u32 = 1;
const INFO: u32 = 3;
const IS_ERROR: u32 = 1 << 31;
const UNSUPPORTED: u32 = IS_ERROR | 1;
const POLICY: u32 = IS_ERROR | 2;
const TLS_REQUIRED: u32 = IS_ERROR | 5;
const UNKNOWN: u32 = IS_ERROR | 6;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const READ_ONLY: u16 = 1 << 1;
const ROTATIONAL: u16 = 1 << 4;
const CAN_TRIM: u16 = 1 << 5;
const CAN_MULTI_CONN: u16 = 1 << 8;

/// The most that an answer to an option may hold, and how many of them are listened to.
const ANSWER_BYTES_MAX: u32 = 1 << 16;
const ANSWERS_MAX: u32 = 64;
/// The most of a name, as the protocol has it.
pub const NAME_BYTES_MAX: usize = 4096;

/// Requests of any server, if it does not say: larger ones are not understood everywhere.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// What the server says of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    pub size_bytes: u64,
    pub is_read_only: bool,
    pub is_rotational: bool,
    pub can_trim: bool,
    /// Several connections see each other's writes.
    pub can_multi_conn: bool,
    /// A request is a multiple of this, and lies at one.
    pub block_bytes_min: u32,
    pub request_bytes_max: u32,
}

/// Greet the server. An error: it is none, or too old.
pub fn greet(stream: &mut (impl Read + Write)) -> Result<(), NbdError> {
    let mut hello = [0; 16];
    read(stream, &mut hello).map_err(|error| match error {
        NbdError::Closed => NbdError::NotNbd,
        other => other,
    })?;
    match (be64(&hello, 0), be64(&hello, 8)) {
        (Some(NBD_MAGIC), Some(OPTION_MAGIC)) => {}
        (Some(NBD_MAGIC), Some(OLD_MAGIC)) => return Err(NbdError::OldStyle),
        _ => return Err(NbdError::NotNbd),
    }
    let mut flags = [0; 2];
    read(stream, &mut flags)?;
    let flags = u16::from_be_bytes(flags);
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(NbdError::OldStyle);
    }
    stream.write_all(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())?;
    Ok(())
}

/// Ask that what follows is encrypted.
pub fn start_tls(stream: &mut (impl Read + Write)) -> Result<(), NbdError> {
    ask(stream, STARTTLS, &[])?;
    let (kind, words) = answer(stream, STARTTLS)?;
    match kind {
        ACK if words.is_empty() => Ok(()),
        UNSUPPORTED | POLICY => Err(NbdError::HasNoTls),
        _ if kind & IS_ERROR != 0 => Err(refused(kind, &words)),
        _ => Err(NbdError::Protocol("an answer to STARTTLS that is none")),
    }
}

/// Choose the export, and come to the end of the handshake.
pub fn go(stream: &mut (impl Read + Write), name: &str) -> Result<Export, NbdError> {
    ask(stream, STRUCTURED_REPLY, &[])?;
    let (kind, _) = answer(stream, STRUCTURED_REPLY)?;
    match kind {
        TLS_REQUIRED => return Err(NbdError::WantsTls),
        _ if kind == ACK || kind & IS_ERROR != 0 => {}
        _ => return Err(NbdError::Protocol("an answer to STRUCTURED_REPLY that is none")),
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NbdError::NoSuchExport(name.to_owned()));
    }
    let length = (name.len() as u32).to_be_bytes();
    let wanted = [1u16.to_be_bytes(), INFO_BLOCK_SIZE.to_be_bytes()].concat();
    ask(stream, GO, &[&length[..], name.as_bytes(), &wanted].concat())?;
    let mut export: Option<Export> = None;
    let mut blocks = (1, REQUEST_BYTES_MAX);
    for _ in 0..ANSWERS_MAX {
        let (kind, words) = answer(stream, GO)?;
        match kind {
            INFO => match be16(&words, 0) {
                Some(INFO_EXPORT) => export = Some(export_of(&words)?),
                Some(INFO_BLOCK_SIZE) => blocks = blocks_of(&words)?,
                Some(_) => {}
                None => return Err(NbdError::Protocol("an info without a type")),
            },
            ACK => {
                let export = export.ok_or(NbdError::Protocol("an export without a size"))?;
                return Ok(Export { block_bytes_min: blocks.0, request_bytes_max: blocks.1, ..export });
            }
            TLS_REQUIRED => return Err(NbdError::WantsTls),
            UNKNOWN => return Err(NbdError::NoSuchExport(name.to_owned())),
            UNSUPPORTED => return Err(NbdError::OldStyle),
            _ if kind & IS_ERROR != 0 => return Err(refused(kind, &words)),
            _ => return Err(NbdError::Protocol("an answer to GO that is none")),
        }
    }
    Err(NbdError::Protocol("answers to GO without an end"))
}

fn export_of(words: &[u8]) -> Result<Export, NbdError> {
    let (Some(size_bytes), Some(flags), 12) = (be64(words, 2), be16(words, 10), words.len()) else {
        return Err(NbdError::Protocol("an export of a wrong length"));
    };
    Ok(Export {
        size_bytes,
        is_read_only: flags & READ_ONLY != 0,
        is_rotational: flags & ROTATIONAL != 0,
        can_trim: flags & CAN_TRIM != 0,
        can_multi_conn: flags & CAN_MULTI_CONN != 0,
        block_bytes_min: 1,
        request_bytes_max: REQUEST_BYTES_MAX,
    })
}

/// The smallest block, and the largest request.
fn blocks_of(words: &[u8]) -> Result<(u32, u32), NbdError> {
    let (Some(min), Some(max), 14) = (be32(words, 2), be32(words, 10), words.len()) else {
        return Err(NbdError::Protocol("block sizes of a wrong length"));
    };
    if !min.is_power_of_two() || max < min {
        return Err(NbdError::Protocol("block sizes that cannot be"));
    }
    Ok((min, max.min(REQUEST_BYTES_MAX)))
}

fn ask(stream: &mut impl Write, option: u32, data: &[u8]) -> Result<(), NbdError> {
    let length = data.len() as u32;
    let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()].concat();
    stream.write_all(&[&head[..], data].concat())?;
    stream.flush()?;
    Ok(())
}

/// The kind of the next answer, and what it holds.
fn answer(stream: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>), NbdError> {
    let mut head = [0; 20];
    read(stream, &mut head)?;
    if be64(&head, 0) != Some(REPLY_MAGIC) || be32(&head, 8) != Some(option) {
        return Err(NbdError::Protocol("an answer to no question"));
    }
    let (Some(kind), Some(length)) = (be32(&head, 12), be32(&head, 16)) else { unreachable!("20 bytes") };
    if length > ANSWER_BYTES_MAX {
        return Err(NbdError::Protocol("an answer that is too long"));
    }
    let mut words = vec![0; length as usize];
    read(stream, &mut words)?;
    Ok((kind, words))
}

fn read(stream: &mut impl Read, bytes: &mut [u8]) -> Result<(), NbdError> {
    Ok(stream.read_exact(bytes)?)
}

/// The server's no, in its own words if they can be printed.
fn refused(kind: u32, words: &[u8]) -> NbdError {
    let text: String = String::from_utf8_lossy(words).chars().filter(|c| !c.is_control()).take(200).collect();
    let number = kind & !IS_ERROR;
    NbdError::Refused(if text.is_empty() { format!("error {number} of the protocol") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A server that says this, whatever it is told.
    struct Says(io::Cursor<Vec<u8>>);

    impl Read for Says {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }
    impl Write for Says {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn says(bytes: &[u8]) -> Says {
        Says(io::Cursor::new(bytes.to_vec()))
    }

    fn reply(option: u32, kind: u32, words: &[u8]) -> Vec<u8> {
        let head = [&REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head[..], &(words.len() as u32).to_be_bytes(), words].concat()
    }

    fn export(size: u64, flags: u16) -> Vec<u8> {
        reply(GO, INFO, &[&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
    }

    fn blocks(min: u32, max: u32) -> Vec<u8> {
        let sizes = [min, 4096, max].map(u32::to_be_bytes).concat();
        reply(GO, INFO, &[&[0, 3][..], &sizes].concat())
    }

    #[test]
    fn an_export_is_what_the_server_says() {
        let structured = reply(STRUCTURED_REPLY, ACK, &[]);
        let all = [structured, export(1 << 30, 0x121), blocks(512, 1 << 20), reply(GO, ACK, &[])].concat();
        let wanted = Export {
            size_bytes: 1 << 30,
            is_read_only: false,
            is_rotational: false,
            can_trim: true,
            can_multi_conn: true,
            block_bytes_min: 512,
            request_bytes_max: 1 << 20,
        };
        assert_eq!(go(&mut says(&all), "x").unwrap(), wanted);
        // Cut anywhere it is an error, and nothing worse.
        for end in 0..all.len() {
            assert!(go(&mut says(&all[..end]), "x").is_err(), "cut at {end}");
        }
    }

    #[test]
    fn each_refusal_is_told_apart() {
        let no = |kind: u32, words: &str| {
            let all = [reply(STRUCTURED_REPLY, UNSUPPORTED, &[]), reply(GO, kind, words.as_bytes())].concat();
            go(&mut says(&all), "x").unwrap_err()
        };
        assert!(matches!(no(UNKNOWN, ""), NbdError::NoSuchExport(_)));
        assert!(matches!(no(TLS_REQUIRED, ""), NbdError::WantsTls));
        assert!(matches!(no(POLICY, "go away"), NbdError::Refused(words) if words == "go away"));
        assert!(matches!(no(77, ""), NbdError::Protocol(_)));
        let tls = |kind| start_tls(&mut says(&reply(STARTTLS, kind, &[])));
        assert!(tls(ACK).is_ok() && matches!(tls(POLICY), Err(NbdError::HasNoTls)));
        let hello = |magic: u64, flags: u16| {
            let all = [&NBD_MAGIC.to_be_bytes()[..], &magic.to_be_bytes(), &flags.to_be_bytes()].concat();
            greet(&mut says(&all))
        };
        assert!(hello(OPTION_MAGIC, 3).is_ok());
        assert!(matches!(hello(OPTION_MAGIC, 0), Err(NbdError::OldStyle)));
        assert!(matches!(hello(OLD_MAGIC, 0), Err(NbdError::OldStyle)));
        assert!(matches!(greet(&mut says(b"HTTP/1.1 400 Bad Request")), Err(NbdError::NotNbd)));
        assert!(matches!(greet(&mut says(b"")), Err(NbdError::NotNbd)));
    }

    #[test]
    fn answers_that_cannot_be_are_errors() {
        let start = reply(STRUCTURED_REPLY, ACK, &[]);
        let mut long = reply(GO, ACK, &[]);
        long[16..].copy_from_slice(&u32::MAX.to_be_bytes());
        for wrong in [
            reply(GO, ACK, &[]),
            reply(STARTTLS, ACK, &[]),
            reply(GO, INFO, &[0]),
            reply(GO, INFO, &[0, 0, 1]),
            [export(1 << 30, 1), blocks(3, 1 << 20)].concat(),
            [export(1 << 30, 1), blocks(4096, 512)].concat(),
            export(1 << 30, 1).repeat(100),
            long,
        ] {
            assert!(matches!(
                go(&mut says(&[start.clone(), wrong].concat()), "x"),
                Err(NbdError::Protocol(_))
            ));
        }
    }
}
