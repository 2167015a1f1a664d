//! Sizes as people type them, and as memspill prints them.
//!
//! Read: `512M`, `2GiB`, `1.5G`, `50%`, `4096`, `10GB`, `max`. Rules, as in zramctl, swapon and systemd:
//!
//! ```text
//! K M G T P        powers of 1024; a following iB is optional; case does not matter
//! KB MB GB TB PB   powers of 1000
//! no unit, B       bytes
//! %                a share of this machine's memory (see machine.rs), found out when the size is resolved
//! max, infinity    no limit
//! ```
//!
//! Our own, because no crate has these rules: those for sizes take K and KB for the same, and read no
//! percentages.
//!
//! All arithmetic is on integers: `0.1G` is the same number of bytes on every machine, rounded down.
//! Printed: one decimal and the largest binary unit that keeps the number at one or more (`1.5 GiB`).

use std::fmt;
use std::str::FromStr;

/// Parts per million in one whole: the resolution of a percentage.
const PPM: u128 = 1_000_000;
/// Digits after the point that are used; further ones are checked to be digits, and dropped.
const FRACTION_DIGITS_MAX: usize = 12;

/// Least budget with which a program gets anywhere: our own tables, the frames of two batches, and some pages
/// to work with.
pub const MEMORY_MAX_LEAST_BYTES: u64 = 8 << 20;

/// The accepted forms, as every error says them.
pub const FORMS: &str = "a size is a number with an optional unit, such as 512M, 2GiB, 1.5G, 10GB (powers of \
    1000), 50% (of RAM), or max";

/// A size as typed. A percentage stays one until the machine's memory is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    Bytes(u64),
    /// A share of the machine's memory, in parts per million.
    RamPpm(u64),
    /// No limit.
    Max,
}

impl Size {
    /// The size in bytes, where `ram_bytes` is what 100% means. None: no limit.
    pub fn resolve(self, ram_bytes: u64) -> Option<u64> {
        match self {
            Size::Bytes(bytes) => Some(bytes),
            Size::RamPpm(ppm) => {
                let bytes = u128::from(ram_bytes) * u128::from(ppm) / PPM;
                Some(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            Size::Max => None,
        }
    }

    /// Whether this is zero on every machine.
    pub fn is_zero(self) -> bool {
        matches!(self, Size::Bytes(0) | Size::RamPpm(0))
    }
}

/// Why a text is not a size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SizeError {
    Empty,
    Negative,
    Zero,
    /// It does not begin with a number.
    Number,
    Unit(String),
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::Empty => write!(out, "empty size: {FORMS}"),
            SizeError::Negative => write!(out, "a size cannot be negative: {FORMS}"),
            SizeError::Zero => write!(out, "must be more than zero: {FORMS}"),
            SizeError::Number => write!(out, "no number in it: {FORMS}"),
            SizeError::Unit(unit) => write!(out, "unknown unit {unit:?}: {FORMS}"),
            SizeError::TooLarge => write!(out, "more than 16 EiB: {FORMS}"),
        }
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        if text.is_empty() {
            return Err(SizeError::Empty);
        }
        if text.eq_ignore_ascii_case("max") || text.eq_ignore_ascii_case("infinity") {
            return Ok(Size::Max);
        }
        // `-1G` is a negative size, `--stats` an option that came where a size was due.
        if text
            .strip_prefix('-')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        {
            return Err(SizeError::Negative);
        }
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let number = Decimal::parse(number)?;
        if unit == "%" {
            return number.times(PPM / 100).map(Size::RamPpm);
        }
        let unit_bytes = unit_bytes(unit).ok_or_else(|| SizeError::Unit(unit.to_owned()))?;
        number.times(unit_bytes).map(Size::Bytes)
    }
}

/// For options where nothing is not an answer.
pub fn parse_nonzero(text: &str) -> Result<Size, SizeError> {
    let size: Size = text.parse()?;
    if size.is_zero() { Err(SizeError::Zero) } else { Ok(size) }
}

/// An unsigned decimal number: digits / 10^scale.
struct Decimal {
    digits: u128,
    divisor: u128,
}

impl Decimal {
    fn parse(text: &str) -> Result<Decimal, SizeError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        // `.5G` and `2.G` are as clear as `0.5G`; `.` and `1.2.3` are not numbers.
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(SizeError::Number);
        }
        let mut decimal = Decimal { digits: 0, divisor: 1 };
        for digit in whole.bytes() {
            decimal.push(digit)?;
        }
        for digit in fraction.bytes().take(FRACTION_DIGITS_MAX) {
            decimal.push(digit)?;
            decimal.divisor *= 10;
        }
        Ok(decimal)
    }

    fn push(&mut self, digit: u8) -> Result<(), SizeError> {
        let shifted = self.digits.checked_mul(10).ok_or(SizeError::TooLarge)?;
        self.digits = shifted.checked_add(u128::from(digit - b'0')).ok_or(SizeError::TooLarge)?;
        Ok(())
    }

    fn times(&self, unit: u128) -> Result<u64, SizeError> {
        let product = self.digits.checked_mul(unit).ok_or(SizeError::TooLarge)? / self.divisor;
        u64::try_from(product).map_err(|_| SizeError::TooLarge)
    }
}

/// Bytes in one `unit`, or None where it is not one.
fn unit_bytes(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let mut letters = unit.chars();
    let power = match letters.next()? {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        'p' => 5,
        _ => return None,
    };
    match letters.as_str() {
        "" | "i" | "ib" => Some(1024_u128.pow(power)),
        "b" => Some(1000_u128.pow(power)),
        _ => None,
    }
}

/// `bytes` for people: `0 B`, `4.0 KiB`, `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit_bytes: u128 = 1024;
    for unit in UNITS {
        // Tenths, rounded to nearest: 1023.96 KiB must come out as 1.0 MiB, so the test is on what would be
        // printed.
        let tenths = (u128::from(bytes) * 10 + unit_bytes / 2) / unit_bytes;
        if tenths < 10_240 || unit == "EiB" {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        unit_bytes *= 1024;
    }
    unreachable!("the last unit takes every number")
}

/// As it can be given back to an option: `410M`, rounded up.
pub fn short(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Size::Bytes(bytes) => out.write_str(&human(bytes)),
            Size::RamPpm(ppm) => {
                let percent = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
                write!(out, "{}% of RAM", percent.trim_end_matches('0').trim_end_matches('.'))
            }
            Size::Max => out.write_str("max"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match text.parse() {
            Ok(Size::Bytes(bytes)) => bytes,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn units() {
        assert_eq!(bytes("0"), 0);
        assert_eq!(bytes("4096"), 4096);
        assert_eq!(bytes("4096B"), 4096);
        for same in ["512M", "512m", "512MiB", "512mib", "512Mi", "524288K", "0.5G", ".5G"] {
            assert_eq!(bytes(same), 512 << 20, "{same}");
        }
        assert_eq!(bytes("1.5G"), 3 << 29);
        assert_eq!(bytes("2.G"), 2 << 30);
        assert_eq!(bytes("1KB"), 1_000);
        assert_eq!(bytes("10GB"), 10_000_000_000);
        assert_eq!(bytes("1T"), 1 << 40);
        assert_eq!(bytes("18446744073709551615"), u64::MAX);
        assert_eq!(bytes("1.00000000000000000000000000000000000000000000001K"), 1024);
    }

    #[test]
    fn shares_of_ram() {
        assert_eq!("50%".parse(), Ok(Size::RamPpm(500_000)));
        assert_eq!("12.5%".parse::<Size>().unwrap().resolve(8 << 30), Some(1 << 30));
        assert_eq!("100%".parse::<Size>().unwrap().resolve(u64::MAX), Some(u64::MAX));
        assert_eq!("200%".parse::<Size>().unwrap().resolve(u64::MAX), Some(u64::MAX));
        assert_eq!("max".parse::<Size>().unwrap().resolve(1), None);
        assert_eq!("Infinity".parse(), Ok(Size::Max));
    }

    #[test]
    fn errors_name_the_forms() {
        let error = |text: &str| text.parse::<Size>().unwrap_err();
        assert_eq!(error(""), SizeError::Empty);
        assert_eq!(error("-1G"), SizeError::Negative);
        for text in ["G", "x", ".", "1.2.3", " 1", "%", "+1", "maximum", "-", "--stats"] {
            assert_eq!(error(text), SizeError::Number, "{text}");
        }
        assert_eq!(error("5X"), SizeError::Unit("X".into()));
        assert_eq!(error("5 M"), SizeError::Unit(" M".into()));
        assert_eq!(error("1,5G"), SizeError::Unit(",5G".into()));
        assert_eq!(error("5MM"), SizeError::Unit("MM".into()));
        for text in ["18446744073709551616", "16777217P", &"9".repeat(60)] {
            assert_eq!(error(text), SizeError::TooLarge, "{text}");
        }
        assert_eq!(parse_nonzero("0M"), Err(SizeError::Zero));
        assert_eq!(parse_nonzero("0.0%"), Err(SizeError::Zero));
        let all = [
            SizeError::Empty,
            SizeError::Negative,
            SizeError::Zero,
            SizeError::Number,
            SizeError::Unit("X".into()),
            SizeError::TooLarge,
        ];
        for kind in all {
            let text = kind.to_string();
            assert!(text.contains("512M") && text.contains("50%") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn printed() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4096, "4.0 KiB"),
            (1536 << 20, "1.5 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (number, text) in cases {
            assert_eq!(human(number), text);
        }
    }

    /// Text from a small alphabet that is nearly a size: nothing panics, and what is read prints.
    #[test]
    fn never_panics() {
        const ALPHABET: &[char] = &[
            '0', '1', '9', '5', '.', '-', '%', 'K', 'M', 'g', 't', 'P', 'i', 'B', 'm', 'a', 'x', ' ', 'é',
            '\0', '٣',
        ];
        let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut read = 0;
        for _ in 0..200_000 {
            let length = next() % 12;
            let text: String =
                (0..length).map(|_| ALPHABET[(next() % ALPHABET.len() as u64) as usize]).collect();
            match text.parse::<Size>() {
                Ok(size) => {
                    read += 1;
                    let _ = (size.to_string(), size.resolve(next()));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(read > 1000, "the alphabet no longer makes sizes: {read}");
    }
}
