//! Lines on stderr: whole, without control characters, and no panic where they cannot be written.

/// As std's, which panic where stderr cannot be written (a full disk, a reader that is gone, the limit on
/// file sizes): a line that nobody can read is no reason to end a run. Declared before the other modules, so
/// that all of them use these.
macro_rules! eprintln {
    () => { eprint!("\n") };
    ($($arg:tt)*) => {{
        eprint!("{}\n", format_args!($($arg)*));
    }};
}
macro_rules! eprint {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($arg)*));
    }};
}

/// What the system says of an error, in lower case and without its number.
pub fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// A line as it can be shown: characters that would end it, or move a terminal's cursor, are written out.
pub fn plain(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}
