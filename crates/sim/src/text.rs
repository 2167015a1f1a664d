//! Numbers for people, strings for JSON.

/// `12.3 M`, `456 k`, `78`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.0} k", r / 1e3),
        r => format!("{r:.0}"),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Names here have no control characters.
pub fn json_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_strings_are_quoted() {
        assert_eq!(
            (rate(1_234_567.0), rate(45_600.0), rate(7.0)),
            ("1.23 M".into(), "46 k".into(), "7".into())
        );
        assert_eq!(percent(0.8125), "81.2 %");
        assert_eq!(json_string("a\"b\\c"), r#""a\"b\\c""#);
    }
}
