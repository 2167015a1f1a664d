//! What the text of /proc/PID/maps says of mappings (`src/agent/pages/maps_text.rs`).

#[path = "../src/agent/pages/maps_text.rs"]
mod maps_text;
use maps_text::{Line, Mapping};

fn read(text: &str) -> Vec<Mapping> {
    let mut line = Line::new();
    text.bytes().filter_map(|byte| line.read(byte)).collect()
}

#[test]
fn a_line_says_what_its_mapping_is() {
    let plain = |start, end, prot, is_plain| Mapping { start, end, prot, is_plain };
    for (text, mapping) in [
        ("7f00-7f80 rw-p 00000000 00:00 0 ", plain(0x7f00, 0x7f80, 3, true)),
        ("7f00-7f80 rwxp 00000000 00:00 0    [heap]", plain(0x7f00, 0x7f80, 7, true)),
        ("7f00-7f80 ---p 00000000 00:00 0    [anon: of a program]", plain(0x7f00, 0x7f80, 0, true)),
        ("7f00-7f80 rw-p 00000000 00:00 0    [stack]", plain(0x7f00, 0x7f80, 3, false)),
        ("7f00-7f80 r-xp 00000000 00:00 0    [vdso]", plain(0x7f00, 0x7f80, 5, false)),
        ("7f00-7f80 rw-s 00000000 00:00 0 ", plain(0x7f00, 0x7f80, 3, false)),
        ("7f00-7f80 rw-p 00001000 fe:01 0    /a b", plain(0x7f00, 0x7f80, 3, false)),
        ("7f00-7f80 rw-p 00000000 00:0f 17   /anon_hugepage (deleted)", plain(0x7f00, 0x7f80, 3, false)),
    ] {
        assert_eq!(read(&format!("{text}\n{text}")), [mapping], "{text}");
        assert_eq!(read(&format!("{text}\n{text}\n")), [mapping; 2], "{text}");
    }
}

#[test]
fn our_own_mappings_are_as_they_stand_there() {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let ends = text.lines().map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        (number(start), number(rest.split_once(' ').unwrap().0))
    });
    let read: Vec<_> = read(&text).iter().map(|mapping| (mapping.start, mapping.end)).collect();
    assert_eq!(read, ends.collect::<Vec<_>>());
}
