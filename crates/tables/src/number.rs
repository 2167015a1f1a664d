//! Units, and numbers as people read them: three significant digits, and a unit.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    PerSecond,
    /// The count for each page that went in or out.
    PerPage,
    /// The count for a thousand such pages.
    PerThousandPages,
    Nanoseconds,
    Seconds,
    /// A part of a whole, 1 is all of it.
    Share,
    /// More or less than something else, 0 is the same.
    Change,
    Count,
    /// In powers of 1024.
    Bytes,
    Words,
}

pub fn shown(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    match unit {
        Unit::Nanoseconds => time(value),
        Unit::Seconds => time(value * 1e9),
        Unit::Share => format!("{:.1} %", value * 100.0),
        Unit::Change => format!("{:+.1} %", value * 100.0),
        Unit::Bytes => bytes(value),
        _ => scaled(value),
    }
}

/// What stands under a column's name.
pub fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::PerSecond => "/s",
        Unit::PerPage => "/page",
        Unit::PerThousandPages => "/1000 pages",
        Unit::Nanoseconds | Unit::Seconds | Unit::Share | Unit::Change => "",
        Unit::Count | Unit::Bytes | Unit::Words => "",
    }
}

/// The unit's name for programs.
pub fn unit_key(unit: Unit) -> &'static str {
    match unit {
        Unit::PerSecond => "1/s",
        Unit::PerPage => "1/page",
        Unit::PerThousandPages => "1/1000 pages",
        Unit::Nanoseconds => "ns",
        Unit::Seconds => "s",
        Unit::Share => "share",
        Unit::Change => "change",
        Unit::Count => "count",
        Unit::Bytes => "bytes",
        Unit::Words => "words",
    }
}

/// `2.61 M`, `913 k`, `78`, `0.104`.
pub fn scaled(value: f64) -> String {
    match value.abs() {
        v if v >= 999.5e6 => format!("{} G", digits(value / 1e9)),
        v if v >= 999.5e3 => format!("{} M", digits(value / 1e6)),
        v if v >= 999.5 => format!("{} k", digits(value / 1e3)),
        _ => plain(value),
    }
}

fn time(ns: f64) -> String {
    match ns.abs() {
        v if v >= 999.5e6 => format!("{} s", digits(ns / 1e9)),
        v if v >= 999.5e3 => format!("{} ms", digits(ns / 1e6)),
        v if v >= 999.5 => format!("{} µs", digits(ns / 1e3)),
        _ => format!("{} ns", plain(ns)),
    }
}

/// `96.0 MiB`, `1.50 GiB`.
fn bytes(value: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value.abs() < 1024.0 {
        return format!("{} B", plain(value));
    }
    // A value that would be printed as 1024 is 1 of the next.
    let mut scaled = value / 1024.0;
    let mut unit = 0;
    while scaled.abs() >= 1023.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(scaled), UNITS[unit])
}

/// Counts without places.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { digits(value) }
}

/// Three significant digits, but no more than four places.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.0995 => 3,
        _ => 4,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let cases = [
            (1_234_567.0, Unit::PerSecond, "1.23 M"),
            (999_600.0, Unit::PerSecond, "1.00 M"),
            (45_600.0, Unit::Count, "45.6 k"),
            (80_000.0, Unit::Count, "80.0 k"),
            (913_400.0, Unit::Count, "913 k"),
            (7.0, Unit::Count, "7"),
            (0.0, Unit::PerPage, "0"),
            (0.104, Unit::PerPage, "0.104"),
            (0.00004, Unit::PerPage, "0.0000"),
            (2.107, Unit::PerPage, "2.11"),
            (3_512.0, Unit::Nanoseconds, "3.51 µs"),
            (850.0, Unit::Nanoseconds, "850 ns"),
            (1.5, Unit::Seconds, "1.50 s"),
            (0.8125, Unit::Share, "81.2 %"),
            (0.159, Unit::Change, "+15.9 %"),
            (-0.622, Unit::Change, "-62.2 %"),
            (f64::NAN, Unit::Change, "-"),
            (0.0, Unit::Bytes, "0 B"),
            (1023.0, Unit::Bytes, "1023 B"),
            (1536.0, Unit::Bytes, "1.50 KiB"),
            (1_048_575.0, Unit::Bytes, "1.00 MiB"),
            (100.7 * 1048576.0, Unit::Bytes, "101 MiB"),
            (1e30, Unit::Bytes, "867361737988 EiB"),
        ];
        for (value, unit, expected) in cases {
            assert_eq!(shown(value, unit), expected, "{value} {unit:?}");
        }
    }
}
