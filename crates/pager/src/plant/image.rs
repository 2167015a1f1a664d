//! What of the agent's file is mapped where.

use libc::c_int;
use object::LittleEndian;
use object::elf::{FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64};
use object::pod::{from_bytes, slice_from_bytes};

const PAGE: u64 = 4096;

/// What of a shared object is mapped where.
pub(super) struct Image<'a> {
    segments: &'a [ProgramHeader64<LittleEndian>],
    /// Where it begins, from its base.
    pub(super) entry: u64,
}

/// Whole pages; `start` from the base.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) offset: u64,
    pub(super) protection: c_int,
}

impl<'a> Image<'a> {
    pub(super) fn of(file: &'a [u8]) -> Image<'a> {
        let (header, _) = from_bytes::<FileHeader64<LittleEndian>>(file).expect("the agent is an ELF file");
        let table = &file[header.e_phoff.get(LittleEndian) as usize..];
        let count = header.e_phnum.get(LittleEndian).into();
        let (segments, _) = slice_from_bytes(table, count).expect("the agent has program headers");
        Image { segments, entry: header.e_entry.get(LittleEndian) }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let loaded = self.segments.iter().filter(|segment| segment.p_type.get(LittleEndian) == PT_LOAD);
        loaded.map(|segment| {
            let flags = segment.p_flags.get(LittleEndian);
            let protections = [(PF_R, libc::PROT_READ), (PF_W, libc::PROT_WRITE), (PF_X, libc::PROT_EXEC)];
            let vaddr = segment.p_vaddr.get(LittleEndian);
            let start = vaddr & !(PAGE - 1);
            Part {
                start,
                bytes: (vaddr + segment.p_memsz.get(LittleEndian)).next_multiple_of(PAGE) - start,
                offset: segment.p_offset.get(LittleEndian) & !(PAGE - 1),
                protection: protections
                    .into_iter()
                    .filter(|(flag, _)| flags.contains(*flag))
                    .fold(0, |all, (_, one)| all | one),
            }
        })
    }

    /// From the base to the end.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().map(|part| part.start + part.bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_agent::AGENT_SO;

    #[test]
    fn the_agent_is_all_in_its_file() {
        let image = Image::of(AGENT_SO);
        let parts: Vec<Part> = image.parts().collect();
        assert!(parts.windows(2).all(|pair| pair[0].start + pair[0].bytes <= pair[1].start), "{parts:?}");
        for (part, segment) in parts
            .iter()
            .zip(image.segments.iter().filter(|segment| segment.p_type.get(LittleEndian) == PT_LOAD))
        {
            // Nothing is anonymous memory (the agent's main.rs says why), nor needs zeros behind it.
            let in_file = (segment.p_vaddr.get(LittleEndian) + segment.p_filesz.get(LittleEndian))
                .next_multiple_of(PAGE)
                - part.start;
            assert_eq!(part.bytes, in_file);
            let shift = |value: u64| value & (PAGE - 1);
            assert_eq!(shift(segment.p_offset.get(LittleEndian)), shift(segment.p_vaddr.get(LittleEndian)));
        }
        let code = parts.iter().find(|part| (part.start..part.start + part.bytes).contains(&image.entry));
        assert_eq!(code.map(|part| part.protection), Some(libc::PROT_READ | libc::PROT_EXEC));
    }
}
