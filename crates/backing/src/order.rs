//! What a pool with a file behind it keeps beside its pages: the order in which they leave, and whether zstd
//! is to make them shorter first (recompress.rs, which tells of it; ram.rs, for a page that LZ4 does not
//! compress).

use std::sync::Mutex;
use std::time::Instant;

use crate::worth::Recompress;
use memspill_engine::units::Page;

use crate::compress::{Algorithm, COMPRESSED_BYTES_MAX, Codec};
use crate::dense::Dense;
use crate::fifo::Fifo;
use crate::worth::Worth;

/// What zstd makes of a page.
pub(crate) enum Second<'a> {
    /// It does not pay, or has not of late.
    NotTried,
    Longer,
    Block(&'a [u8]),
}

/// Which pages are to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// Pages that do not compress.
    Raw,
    /// Those first, then the oldest.
    All,
}

/// The order in which the pages of a pool leave it.
pub(crate) struct Order {
    pub(crate) young: Mutex<Fifo>,
    /// Leave before those.
    pub(crate) old: Mutex<Fifo>,
    /// Do not compress, and leave before all others.
    pub(crate) raw: Mutex<Fifo>,
    pub(crate) worth: Worth,
    pub(crate) dense: Dense,
}

impl Order {
    /// `is_shared`: programs read the pool by themselves.
    pub(crate) fn new(setting: Recompress, is_shared: bool) -> Order {
        let dense = Dense::new(setting != Recompress::Off, !is_shared);
        let [young, old, raw] = Default::default();
        Order { young, old, raw, worth: Worth::new(setting, is_shared), dense }
    }

    /// Compresses by zstd a page that the pool's algorithm does not compress.
    pub(crate) fn as_zstd<'a>(&self, page: &Page, codec: &'a mut Codec) -> Second<'a> {
        if !self.worth.tries(false) {
            return Second::NotTried;
        }
        // Without it, all of the page goes to the file.
        let block = self.compress_again(page, (0, false), COMPRESSED_BYTES_MAX, codec);
        block.map_or(Second::Longer, Second::Block)
    }

    /// The page as a block of zstd of `bytes_max` at most, instead of one of so many bytes, which came in
    /// densely (dense.rs), or not.
    pub(crate) fn compress_again<'a>(
        &self,
        page: &Page,
        (len_bytes, is_dense): (usize, bool),
        bytes_max: usize,
        codec: &'a mut Codec,
    ) -> Option<&'a [u8]> {
        let start = Instant::now();
        let block = codec.encode_shorter(Algorithm::Zstd, page, bytes_max);
        let took_ns = start.elapsed().as_nanos() as u64;
        self.worth.note_tried(is_dense, took_ns, len_bytes, block.map(<[u8]>::len));
        block
    }
}
