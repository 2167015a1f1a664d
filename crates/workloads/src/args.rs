//! `--name value` and `--flag` options; a value that was never asked for is an error.

use std::str::FromStr;

use crate::contents::{Check, Contents};
use crate::os::{Huge, PAGE};
use crate::report::Failure;

pub struct Args {
    options: Vec<(String, Option<String>)>,
    /// The words with which this program starts a workload: none, or the subcommand of a larger one.
    pub prefix: &'static [&'static str],
}

/// What every workload takes.
#[derive(Clone, Copy)]
pub struct Common {
    pub seed: u64,
    pub contents: Contents,
    pub check: Check,
    pub huge: Huge,
}

impl Common {
    /// Every process of a workload has contents of its own.
    pub fn of_process(self, number: usize) -> Common {
        Common { seed: self.seed.wrapping_add(number as u64 * 1_000_003), ..self }
    }
}

/// The name in `--name` or `-n`; a negative number is none.
fn option_name(word: &str) -> Option<&str> {
    let short = || {
        word.strip_prefix('-')
            .filter(|name| name.len() == 1 && !name.starts_with(|c: char| !c.is_alphabetic()))
    };
    word.strip_prefix("--").or_else(short)
}

impl Args {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut options: Vec<(String, Option<String>)> = Vec::new();
        for word in words {
            if let Some(name) = option_name(&word) {
                match name.split_once('=') {
                    Some((name, value)) => options.push((name.to_string(), Some(value.to_string()))),
                    None => options.push((name.to_string(), None)),
                }
            } else {
                match options.last_mut() {
                    Some((_, value @ None)) => *value = Some(word),
                    _ => return Err(format!("what is '{word}'?")),
                }
            }
        }
        Ok(Args { options, prefix: &[] })
    }

    fn take_option(&mut self, name: &str) -> Option<Option<String>> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    pub fn flag(&mut self, name: &str) -> bool {
        self.take_option(name).is_some()
    }

    pub fn text(&mut self, name: &str, default: &str) -> String {
        self.take_option(name).flatten().unwrap_or_else(|| default.to_string())
    }

    pub fn number<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, Failure> {
        match self.take_option(name) {
            None => Ok(default),
            Some(Some(text)) => {
                text.parse().map_err(|_| Failure::Usage(format!("--{name}: '{text}' is not a number")))
            }
            Some(None) => Err(Failure::Usage(format!("--{name} needs a value"))),
        }
    }

    pub fn at_least_one(&mut self, name: &str, default: usize) -> Result<usize, Failure> {
        match self.number(name, default)? {
            0 => Err(Failure::Usage(format!("--{name} needs 1 or more"))),
            count => Ok(count),
        }
    }

    pub fn percent(&mut self, name: &str, default: usize) -> Result<usize, Failure> {
        match self.number(name, default)? {
            share @ 0..=100 => Ok(share),
            share => Err(Failure::Usage(format!("--{name}: {share} is not from 0 to 100"))),
        }
    }

    /// Seconds, up to a year.
    pub fn seconds(&mut self, name: &str, default: f64) -> Result<f64, Failure> {
        match self.number(name, default)? {
            seconds if (0.0..=31_536_000.0).contains(&seconds) => Ok(seconds),
            seconds => Err(Failure::Usage(format!("--{name}: {seconds} is no number of seconds"))),
        }
    }

    pub fn pages_or(&mut self, name: &str, default_pages: usize) -> Result<usize, Failure> {
        self.pages(name, &(default_pages * PAGE).to_string())
    }

    /// Whole pages of a size such as 512M.
    pub fn pages(&mut self, name: &str, default: &str) -> Result<usize, Failure> {
        let text = self.text(name, default);
        let bytes =
            parse_size(&text).ok_or_else(|| Failure::Usage(format!("--{name}: '{text}' is not a size")))?;
        let pages = bytes / PAGE;
        if pages == 0 { Err(Failure::Usage(format!("--{name}: less than a page"))) } else { Ok(pages) }
    }

    pub fn common(&mut self) -> Result<Common, Failure> {
        let contents = self.text("contents", "half");
        let check = self.text("check", "full");
        Ok(Common {
            seed: self.number("seed", 1)?,
            contents: Contents::parse(&contents).ok_or_else(|| {
                Failure::Usage(format!("--contents: '{contents}' is not zero, half or random"))
            })?,
            check: Check::parse(&check)
                .ok_or_else(|| Failure::Usage(format!("--check: '{check}' is not none, sparse or full")))?,
            huge: match (self.flag("thp"), self.flag("hugepages")) {
                (_, true) => Huge::Always,
                (true, false) => Huge::Default,
                (false, false) => Huge::Never,
            },
        })
    }

    /// Call when all options have been read.
    pub fn finish(&self) -> Result<(), Failure> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(Failure::Usage(format!("unknown option --{name}"))),
        }
    }
}

pub fn parse_size(text: &str) -> Option<usize> {
    let shift = match text.as_bytes().last()? {
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_options() {
        assert_eq!(parse_size("512M"), Some(512 << 20));
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("M"), None);
        assert_eq!(parse_size(""), None);
        let words = ["--size", "8K", "--thp", "--seed=7", "--odd"].map(String::from);
        let mut args = Args::parse(words.into_iter()).ok().unwrap();
        assert_eq!(args.pages("size", "1M").ok(), Some(2));
        assert_eq!(args.common().ok().map(|c| c.seed), Some(7));
        assert!(args.finish().is_err());
        assert!(args.flag("odd"));
        assert!(args.finish().is_ok());
    }

    #[test]
    fn one_letter_and_numbers_out_of_range() {
        let args = |words: &str| Args::parse(words.split(' ').map(String::from)).ok().unwrap();
        assert_eq!(args("-j 8").at_least_one("j", 1).ok(), Some(8));
        assert!(args("-j 0").at_least_one("j", 1).is_err());
        assert!(args("--seconds -1").seconds("seconds", 1.0).is_err());
        assert!(args("--seconds NaN").seconds("seconds", 1.0).is_err());
        assert!(args("--read-percent 101").percent("read-percent", 80).is_err());
    }
}
