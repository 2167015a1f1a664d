//! The contents of a page: a function of seed, page number and version. So a page that is old, torn, zero, or
//! another one is told from the right one, and the report can say which it is.
//!
//! Word 0 names the page, word 1 its version; the rest is noise that LZ4 cannot compress (`random`), or half
//! noise and half one repeated word (`half`, about 2:1). `zero` pages are all zeros and carry no stamp.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::os::{Page, WORDS};
use crate::rng::mix;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    Zero,
    Half,
    Random,
}

/// How much of a page is compared on each read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    None,
    Sparse,
    Full,
}

const MAGIC: u64 = 0x4d53 << 48;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Contents {
    pub fn parse(text: &str) -> Option<Contents> {
        match text {
            "zero" => Some(Contents::Zero),
            "half" => Some(Contents::Half),
            "random" => Some(Contents::Random),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Contents::Zero => "zero",
            Contents::Half => "half",
            Contents::Random => "random",
        }
    }
}

impl Check {
    pub fn name(self) -> &'static str {
        match self {
            Check::None => "none",
            Check::Sparse => "sparse",
            Check::Full => "full",
        }
    }

    pub fn parse(text: &str) -> Option<Check> {
        match text {
            "none" => Some(Check::None),
            "sparse" => Some(Check::Sparse),
            "full" => Some(Check::Full),
            _ => None,
        }
    }
}

/// The whole content of one page at one version.
#[derive(Clone, Copy)]
pub struct Stamp {
    kind: Contents,
    base: u64,
    page: u64,
    version: u32,
}

impl Stamp {
    pub fn new(kind: Contents, seed: u64, page: u64, version: u32) -> Stamp {
        Stamp { kind, base: mix(seed ^ mix(page ^ (u64::from(version) << 40))), page, version }
    }

    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        match (self.kind, index) {
            (Contents::Zero, _) => 0,
            (_, 0) => MAGIC | self.page,
            (_, 1) => u64::from(self.version) << 32 | (self.base & 0xffff_ffff),
            (Contents::Half, _) if index >= WORDS / 2 => self.base | 1,
            _ => {
                let x = self.base.wrapping_add((index as u64).wrapping_mul(STEP));
                x ^ (x >> 29)
            }
        }
    }

    pub fn fill(&self, page: &Page) {
        for (index, word) in page.iter().enumerate() {
            word.store(self.word(index), Relaxed);
        }
    }

    /// Compares words `from..` with this stamp.
    pub fn check_from(&self, page: &Page, from: usize) -> Result<(), Mismatch> {
        for (index, word) in page.iter().enumerate().skip(from) {
            let found = word.load(Relaxed);
            if found != self.word(index) {
                return Err(self.mismatch(page, index, found));
            }
        }
        Ok(())
    }

    /// As much as `check` says, leaving out words 0 and 1 where `from` is 2 (they may just have been
    /// overwritten).
    pub fn check(&self, page: &Page, check: Check, from: usize) -> Result<(), Mismatch> {
        match check {
            Check::None => Ok(()),
            Check::Full => self.check_from(page, from),
            Check::Sparse => {
                for index in [from, 2 + (self.base as usize) % (WORDS - 3), WORDS - 1] {
                    let found = page[index].load(Relaxed);
                    if found != self.word(index) {
                        return Err(self.mismatch(page, index, found));
                    }
                }
                Ok(())
            }
        }
    }

    pub fn mismatch(&self, page: &Page, index: usize, found: u64) -> Mismatch {
        let wrong = page.iter().enumerate().filter(|(i, w)| w.load(Relaxed) != self.word(*i)).count();
        let zeros = page.iter().filter(|w| w.load(Relaxed) == 0).count();
        Mismatch {
            address: page.as_ptr() as usize,
            page: self.page,
            version: self.version,
            word: index,
            expected: self.word(index),
            found,
            wrong,
            zeros,
            header: [page[0].load(Relaxed), page[1].load(Relaxed)],
        }
    }
}

/// True where every word is zero.
pub fn is_zero(page: &Page) -> bool {
    page.iter().all(|word| word.load(Relaxed) == 0)
}

#[derive(Clone, Copy, Debug)]
pub struct Mismatch {
    pub address: usize,
    pub page: u64,
    pub version: u32,
    pub word: usize,
    pub expected: u64,
    pub found: u64,
    pub wrong: usize,
    pub zeros: usize,
    pub header: [u64; 2],
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "BAD PAGE at {:#x} (page {} version {}): word {} expected {:#018x} found {:#018x}; {} of {WORDS} \
             words wrong, {} are zero; ",
            self.address,
            self.page,
            self.version,
            self.word,
            self.expected,
            self.found,
            self.wrong,
            self.zeros
        )?;
        if self.zeros == WORDS {
            write!(f, "the page is all zero")
        } else if self.header[0] >> 48 == MAGIC >> 48 {
            write!(f, "it holds page {} version {}", self.header[0] & !(0xffff << 48), self.header[1] >> 32)
        } else {
            write!(f, "it starts with {:#018x} {:#018x}", self.header[0], self.header[1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Huge, Mapping};

    #[test]
    fn wrong_pages_are_found_and_named() {
        let map = Mapping::new(1, Huge::Never).unwrap();
        let page = map.page(0);
        for kind in [Contents::Half, Contents::Random] {
            let now = Stamp::new(kind, 1, 7, 3);
            now.fill(page);
            assert!(now.check_from(page, 0).is_ok());
            let old = Stamp::new(kind, 1, 7, 2).check_from(page, 0).unwrap_err();
            assert!(old.to_string().contains("it holds page 7 version 3"), "{old}");
            for check in [Check::Sparse, Check::Full] {
                assert!(Stamp::new(kind, 1, 8, 3).check(page, check, 0).is_err());
                assert!(Stamp::new(kind, 1, 7, 4).check(page, check, 2).is_err());
                assert!(Stamp::new(kind, 2, 7, 3).check(page, check, 2).is_err());
            }
            page[400].store(0, Relaxed);
            assert_eq!(now.check_from(page, 0).unwrap_err().word, 400);
        }
        Stamp::new(Contents::Zero, 1, 7, 3).fill(page);
        assert!(is_zero(page));
        let lost = Stamp::new(Contents::Half, 1, 7, 3).check_from(page, 0).unwrap_err();
        assert!(lost.to_string().contains("all zero"), "{lost}");
    }
}
