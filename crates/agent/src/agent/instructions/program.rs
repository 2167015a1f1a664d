//! What the file of a static program tells of its code (ELF64).

use core::ops::ControlFlow;

use crate::sys::{self, Fd, PAGE, nr};

/// What the program's file tells of it.
pub struct Program {
    file: Fd,
    /// Where it begins in memory.
    pub lowest: usize,
    /// How far that is from where the file says.
    bias: usize,
    /// It has memory for each thread as the C library lays it out, so there may be one in it.
    pub has_c_library: bool,
    segments: Headers,
    sections: Headers,
}

/// A table in the file: of so many, each of so many bytes.
#[derive(Clone, Copy)]
struct Headers {
    at: u64,
    count: u64,
    bytes: u64,
}

impl Program {
    /// None: its file does not say, or cannot be read.
    pub fn of(entry: usize) -> Option<Program> {
        const PT_TLS: u32 = 7;
        let file = open_program()?;
        // The last word is e_phnum, e_shentsize, e_shnum, e_shstrndx.
        let [_, _, _, entry_in_file, segments_at, sections_at, _, counts] = read(&file, 0)?;
        let half = |index: u32| counts >> (16 * index) & 0xffff;
        let segments = Headers { at: segments_at, count: half(0), bytes: 56 };
        let sections = Headers { at: sections_at, count: half(2), bytes: 64 };
        if half(1) != sections.bytes {
            return None;
        }
        let bias = entry.wrapping_sub(entry_in_file as usize);
        let mut program = Program { file, lowest: 0, bias, has_c_library: false, segments, sections };
        let has_c_library = program.each_segment().any(|[kind, ..]| kind as u32 == PT_TLS);
        program.has_c_library = has_c_library;
        let lowest = program.loaded().map(|[_, _, vaddr, ..]| vaddr as usize & !(PAGE - 1)).min()?;
        program.lowest = bias.wrapping_add(lowest);
        Some(program)
    }

    fn header<const WORDS: usize>(&self, table: Headers, index: u64) -> Option<[u64; WORDS]> {
        read(&self.file, table.at.checked_add(index * table.bytes)?)
    }

    /// Each p_type and p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    fn each_segment(&self) -> impl Iterator<Item = [u64; 7]> {
        (0..self.segments.count).filter_map(|index| self.header(self.segments, index))
    }

    fn loaded(&self) -> impl Iterator<Item = [u64; 7]> {
        const PT_LOAD: u32 = 1;
        self.each_segment().filter(|[kind, ..]| *kind as u32 == PT_LOAD)
    }

    /// Calls `each` with the address and the bytes of each section of its code, until it says that it is all.
    pub fn each_code(&self, mut each: impl FnMut(usize, &'static [u8]) -> ControlFlow<()>) {
        const SHT_PROGBITS: u32 = 1;
        const SHF_ALLOC_EXEC: u64 = 6;
        /// PF_R and PF_X: not what may be written.
        const RX: u32 = 5;
        for index in 0..self.sections.count {
            // sh_name and sh_type, sh_flags, sh_addr, sh_offset, sh_size, and more.
            let Some([kind, flags, start, _, len]) = self.header(self.sections, index) else { return };
            let Some(end) = start.checked_add(len) else { continue };
            let is_code = (kind >> 32) as u32 == SHT_PROGBITS && flags & SHF_ALLOC_EXEC == SHF_ALLOC_EXEC;
            let is_there = |[kind, _, vaddr, _, bytes, ..]: [u64; 7]| {
                (kind >> 32) as u32 == RX && vaddr <= start && end <= vaddr.saturating_add(bytes)
            };
            if !is_code || !self.loaded().any(is_there) {
                continue;
            }
            let start = self.bias.wrapping_add(start as usize);
            // SAFETY: the kernel has mapped this part of the segment from the file, and nobody has changed
            // that, for the program has not begun.
            let code = unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) };
            if each(start, code).is_break() {
                return;
            }
        }
    }
}

fn open_program() -> Option<Fd> {
    let args = [0, c"/proc/self/exe".as_ptr() as usize, sys::O_CLOEXEC, 0, 0, 0];
    // SAFETY: the kernel reads the path.
    unsafe { sys::syscall(nr::OPENAT, args) }.ok().map(|fd| Fd(fd as i32))
}

fn read<const WORDS: usize>(file: &Fd, offset: u64) -> Option<[u64; WORDS]> {
    let mut words = [0u64; WORDS];
    let bytes = size_of_val(&words);
    let args = [file.0 as usize, words.as_mut_ptr() as usize, bytes, offset as usize, 0, 0];
    // SAFETY: the kernel writes so many bytes at most.
    (unsafe { sys::syscall(nr::PREAD64, args) } == Ok(bytes)).then_some(words)
}
