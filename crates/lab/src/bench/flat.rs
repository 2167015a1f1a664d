//! Numbers out of a JSON object: the line that workloads print, and memspill's statistics. Nested values are
//! left out; anything that is not JSON is somebody else's output: none.

use serde_json::Value;

/// Names and numbers; strings, lists, objects, true, false and null are left out.
pub fn numbers(text: &str) -> Option<Vec<(String, f64)>> {
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return None };
    Some(fields.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_workload() {
        let line = r#"{"workload":"pm\"b","seconds":1.5, "ops":3,"ok":true,"x":-2e3}"#;
        let mut found = numbers(line).unwrap();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [("ops", 3.0), ("seconds", 1.5), ("x", -2000.0)];
        assert_eq!(found, expected.map(|(n, v)| (n.to_string(), v)));
        assert_eq!(numbers("{\n \"a\": 1\n}\n"), Some(vec![("a".to_string(), 1.0)]));
        assert_eq!(numbers("{}"), Some(vec![]));
        let nested = r#"{"a": {"b": 1}, "c": 2, "d": [{"e": 3}]}"#;
        assert_eq!(numbers(nested), Some(vec![("c".to_string(), 2.0)]));
        for other in ["", "27000000", "{", "{\"a\"", "{\"a\":}", "{\"a\":1}x", "{\"a\":1,}"] {
            assert_eq!(numbers(other), None, "{other}");
        }
    }
}
