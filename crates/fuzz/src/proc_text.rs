//! /proc/PID/statm, maps, smaps, smaps_rollup and syscall (`crates/pager/src/proc.rs`); what is mapped at an
//! address (`crates/cli/src/reporting/places.rs`).
//!
//! An input is read as each of these files, and as numbers of which well-formed ones are made.

use crate::Bytes;
use memspill_cli::untrusted::find_places;
use memspill_pager::proc::{
    Mapping, MappingKind, inherited_in, locked_and_pinned_in, manageable_in, pss_anon_bytes_in,
    shared_maps_in, statm_in,
};
use memspill_pager::process::ranges::Ranges;
use std::fmt::Write;

/// Beyond all addresses of a process.
const USER_END: u64 = 1 << 56;

pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _ = statm_in(&text);
    let _ = pss_anon_bytes_in(&text);
    let _ = locked_and_pinned_in(&text);
    let wanted = [0, 0x1000, 0x2_0000, USER_END, u64::MAX];
    let places = find_places(input, &wanted).expect("bytes can be read");
    assert!(places.iter().all(|place| wanted.iter().any(|addr| place.holds(*addr))), "{places:x?}");
    assert!(places.iter().all(|place| !place.name.contains(char::is_control)), "{places:?}");
    let shared = shared_maps_in(input).mappings;
    assert!(shared.iter().all(|m| m.start < m.end), "{shared:x?}");
    let ranges_of = |mappings: Vec<Mapping>| mappings.iter().map(|m| (m.start, m.end)).collect::<Vec<_>>();
    for ranges in [ranges_of(manageable_in(input)), inherited_in(&text)] {
        // They become a start and a length.
        assert!(ranges.iter().all(|(from, to)| from < to), "{ranges:x?}");
        let rest = ranges.iter().copied().collect::<Ranges>().missing_of(&[(0, USER_END)]);
        assert!(rest.iter().all(|(from, to)| from < to && *to <= USER_END), "{rest:x?}");
        assert!(
            rest.iter().all(|a| !ranges.iter().any(|b| a.0 < b.1 && b.0 < a.1)),
            "{rest:x?} of {ranges:x?}"
        );
    }
    well_formed(&mut Bytes(input));
}

/// Text that the kernel would write is read as what it means.
fn well_formed(bytes: &mut Bytes) {
    let (size, resident, shared, data) = (bytes.u32(), bytes.u32(), bytes.u32(), bytes.u32());
    let statm = statm_in(&format!("{size} {resident} {shared} 7 0 {data} 0\n")).expect("seven fields");
    let pages = |pages: u32| u64::from(pages) * 4096;
    assert_eq!((statm.size_bytes, statm.data_bytes), (pages(size), pages(data)));
    assert_eq!(statm.anon_bytes, pages(resident.saturating_sub(shared)));

    let (mut maps, mut smaps) = (String::new(), String::new());
    let (mut manageable, mut inherited, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at, mut below_end, mut data_end) = (0x1000, 0, 0);
    for _ in 0..8 {
        let kind = bytes.u8();
        let from = at + u64::from(bytes.u32()) * 4096;
        let to = from + (u64::from(bytes.u8()) + 1) * 4096;
        at = to;
        let (perms, inode) = (["rw-p", "rw-s", "---p", "rwxp"][usize::from(kind & 3)], u32::from(kind & 4));
        let name = ["", "[heap]", "[anon: a b]", "[stack]"][usize::from(kind >> 3 & 3)];
        let (missing, wiped) = (kind & 32 != 0, kind & 64 != 0);
        let line = format!("{from:012x}-{to:012x} {perms} 00000000 00:00 {inode:<26} {name}\n");
        maps += &line;
        if kind & 128 != 0 {
            // Right behind it.
            let end = to + 4096;
            at = end;
            let _ = writeln!(maps, "{to:012x}-{end:012x} rw-s {to:08x} 00:01 {at}   /dev/zero (deleted)");
            shared.push((to, end, to));
        }
        let flags = format!("{}{}", if missing { " um" } else { "" }, if wiped { " wf" } else { "" });
        let _ = write!(smaps, "{line}Size:  4 kB\nPss_Anon:  4 kB\nVmFlags: rd wr mr mw me ac{flags} \n");
        if perms.starts_with("rw") && perms.ends_with('p') && inode == 0 {
            let kind = match (name, perms) {
                ("[stack]", _) => MappingKind::Stack,
                (_, "rwxp") => MappingKind::Code,
                ("[heap]", _) => MappingKind::Heap,
                _ => MappingKind::Data,
            };
            manageable.push(Mapping { start: from, end: to, below_end, kind });
            data_end = if kind == MappingKind::Data { to } else { data_end };
        } else if perms == "---p" && inode == 0 && name != "[stack]" && to - from >= 64 << 10 {
            let kind = if from == data_end { MappingKind::Reserve } else { MappingKind::Closed };
            manageable.push(Mapping { start: from, end: to, below_end, kind });
        }
        below_end = at;
        if missing && !wiped {
            inherited.push((from, to));
        }
    }
    assert_eq!(manageable_in(maps.as_bytes()), manageable, "{maps}");
    assert_eq!(inherited_in(&smaps), inherited, "{smaps}");
    let found = shared_maps_in(maps.as_bytes()).mappings;
    let found: Vec<(u64, u64, u64)> = found.iter().map(|m| (m.start, m.end, m.offset)).collect();
    assert_eq!(found, shared, "{maps}");
}
