//! Numbers out of a flat JSON object: the line that workloads print, and memspill's statistics. Anything nested, or
//! anything that is not JSON, is somebody else's output: none.

/// Names and numbers, in their order; strings, true, false and null are left out.
pub fn numbers(text: &str) -> Option<Vec<(String, f64)>> {
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    let mut found = Vec::new();
    if rest == "}" {
        return Some(found);
    }
    loop {
        let (name, after) = string(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        if rest.starts_with('"') {
            rest = string(rest)?.1;
        } else {
            let end = rest.find([',', '}'])?;
            match rest[..end].trim() {
                "true" | "false" | "null" => {}
                number => found.push((name, number.parse().ok()?)),
            }
            rest = &rest[end..];
        }
        rest = rest.trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None => return (rest == "}").then_some(found),
        }
    }
}

/// A string without its quotes (escapes stay as they are), and what follows it.
fn string(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if !escaped => return Some((text[..at].to_string(), &text[at + 1..])),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

/// As a JSON string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if (letter as u32) < 0x20 => quoted.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_workload() {
        let line = r#"{"workload":"pm\"b","seconds":1.5, "ops":3,"ok":true,"x":-2e3}"#;
        let expected = [("seconds", 1.5), ("ops", 3.0), ("x", -2000.0)];
        assert_eq!(numbers(line), Some(expected.map(|(n, v)| (n.to_string(), v)).to_vec()));
        assert_eq!(numbers("{\n \"a\": 1\n}\n"), Some(vec![("a".to_string(), 1.0)]));
        assert_eq!(numbers("{}"), Some(vec![]));
        for other in [
            "",
            "27000000",
            "{",
            "{\"a\"",
            "{\"a\":}",
            "{\"a\":[1,2]}",
            "{\"a\":{\"b\":1}}",
            "{\"a\":1}x",
            "{\"a\":1,}",
        ] {
            assert_eq!(numbers(other), None, "{other}");
        }
    }

    #[test]
    fn quotes() {
        assert_eq!(quoted("a\"b\\\n"), r#""a\"b\\\u000a""#);
    }
}
