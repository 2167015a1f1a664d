//! What the file of a static program tells of its code (ELF64).

use core::ops::ControlFlow;

use crate::machine::sys::{self, Fd, PAGE, nr};

/// More than any program has that is not made to do harm.
const SEGMENTS_MAX: usize = 16;
const SECTIONS_MAX: u64 = 1024;

/// What the program's file tells of it.
pub struct Program {
    file: Fd,
    /// Where it begins in memory.
    pub lowest: usize,
    /// How far that is from where the file says.
    bias: usize,
    /// It has memory for each thread as the C library lays it out, so there may be one in it.
    pub has_c_library: bool,
    /// What is mapped of the file.
    loaded: [Loaded; SEGMENTS_MAX],
    sections_at: u64,
    sections: u64,
}

#[derive(Clone, Copy)]
struct Loaded {
    /// PF_R, PF_W, PF_X.
    flags: u32,
    offset: u64,
    start: u64,
    /// The bytes of these that are of the file.
    bytes: u64,
    file_bytes: u64,
}

const NONE: Loaded = Loaded { flags: 0, offset: 0, start: 0, bytes: 0, file_bytes: 0 };

impl Loaded {
    /// Are these bytes of it, which lie so in the file? They may be read, and not written.
    fn has_code(&self, start: u64, offset: u64, len: u64) -> bool {
        const PF_RX: u32 = 5;
        let within = start.checked_sub(self.start);
        self.flags == PF_RX
            && within.is_some_and(|within| {
                self.offset.checked_add(within) == Some(offset)
                    && within.checked_add(len).is_some_and(|end| end <= self.file_bytes)
            })
    }

    /// In whole pages.
    fn overlaps(&self, start: u64, len: u64) -> bool {
        let page = PAGE as u64;
        let first = self.start & !(page - 1);
        let end = self.start.saturating_add(self.bytes).checked_next_multiple_of(page).unwrap_or(u64::MAX);
        self.bytes > 0 && first < start.saturating_add(len) && start < end
    }
}

impl Program {
    /// None: its file does not say, or cannot be read.
    pub fn of(entry: usize) -> Option<Program> {
        const PT_LOAD: u32 = 1;
        const PT_TLS: u32 = 7;
        const SEGMENT_BYTES: u64 = 56;
        const SECTION_BYTES: u64 = 64;
        let file = open_program()?;
        // The last word is e_phnum, e_shentsize, e_shnum, e_shstrndx.
        let [_, _, _, entry_in_file, segments_at, sections_at, _, counts] = read(&file, 0)?;
        let half = |index: u32| counts >> (16 * index) & 0xffff;
        let (segments, sections) = (half(0), half(2));
        if half(1) != SECTION_BYTES || sections > SECTIONS_MAX {
            return None;
        }
        let bias = entry.wrapping_sub(entry_in_file as usize);
        let loaded = [NONE; SEGMENTS_MAX];
        let mut program =
            Program { file, lowest: usize::MAX, bias, has_c_library: false, loaded, sections_at, sections };
        let mut places = program.loaded.iter_mut();
        for index in 0..segments {
            // p_type and p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz.
            let [kind, offset, start, _, file_bytes, bytes] =
                read(&program.file, segments_at.checked_add(index * SEGMENT_BYTES)?)?;
            match kind as u32 {
                PT_TLS => program.has_c_library = true,
                PT_LOAD => {
                    let flags = (kind >> 32) as u32;
                    *places.next()? = Loaded { flags, offset, start, bytes, file_bytes };
                    let at = bias.wrapping_add(start as usize) & !(PAGE - 1);
                    program.lowest = program.lowest.min(at);
                }
                _ => {}
            }
        }
        Some(program)
    }

    /// Calls `each` with the address and the bytes of each section of its code, until it says that it is all.
    pub fn each_code(&self, mut each: impl FnMut(usize, &'static [u8]) -> ControlFlow<()>) {
        const SECTION_BYTES: u64 = 64;
        const SHT_PROGBITS: u32 = 1;
        const SHF_ALLOC_EXEC: u64 = 6;
        let file_bytes = bytes_of(&self.file);
        for index in 0..self.sections {
            // sh_name and sh_type, sh_flags, sh_addr, sh_offset, sh_size.
            let at = self.sections_at.checked_add(index * SECTION_BYTES);
            let Some([kind, flags, start, offset, len]) = at.and_then(|at| read(&self.file, at)) else {
                return;
            };
            let is_code = (kind >> 32) as u32 == SHT_PROGBITS && flags & SHF_ALLOC_EXEC == SHF_ALLOC_EXEC;
            let is_in_file = offset.checked_add(len).is_some_and(|end| end <= file_bytes);
            let is_there = || {
                let mut of = self.loaded.iter().filter(|one| one.overlaps(start, len));
                of.next().is_some_and(|one| one.has_code(start, offset, len)) && of.next().is_none()
            };
            if !is_code || !is_in_file || !is_there() {
                continue;
            }
            let start = self.bias.wrapping_add(start as usize);
            // SAFETY: the kernel has mapped this part of the segment from the file, which is long enough, and
            // nothing over it. Nobody has changed that, for the program has not begun.
            let code = unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) };
            if each(start, code).is_break() {
                return;
            }
        }
    }
}

/// 0: it does not say.
fn bytes_of(file: &Fd) -> u64 {
    const FSTAT: usize = 5;
    /// `st_size` among the 64-bit words of `struct stat`.
    const SIZE: usize = 6;
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes a struct stat, of 144 bytes.
    let known = unsafe { sys::syscall(FSTAT, [file.0 as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    known.map_or(0, |_| stat[SIZE])
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
