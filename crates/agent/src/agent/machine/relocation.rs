//! This library relocates itself, in a program in which no loader has done so. Nothing that holds an address
//! may be used before.

use super::region;

const PT_DYNAMIC: u32 = 2;
const DT_NULL: usize = 0;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const R_X86_64_RELATIVE: usize = 8;

#[repr(C)]
struct Rela {
    offset: usize,
    info: usize,
    addend: usize,
}

/// The image is linked at 0, so a virtual address is an offset from the base.
///
/// # Safety
/// `base` is the ELF header of this library, all of which is mapped as its program headers say.
pub unsafe fn relocate(base: usize) {
    // SAFETY: the header and what it points to lie in the first segment, which is mapped; the dynamic section
    // and what is relocated, in one that is writable.
    unsafe {
        let (mut table, mut bytes) = (0, 0);
        for segment in region::segments(base).filter(|segment| segment.kind == PT_DYNAMIC) {
            let mut entry = (base + segment.vaddr) as *const [usize; 2];
            while (*entry)[0] != DT_NULL {
                match *entry {
                    [DT_RELA, at] => table = base + at,
                    [DT_RELASZ, size] => bytes = size,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        for index in 0..bytes / size_of::<Rela>() {
            let rela = (table as *const Rela).add(index);
            if (*rela).info == R_X86_64_RELATIVE {
                ((base + (*rela).offset) as *mut usize).write(base + (*rela).addend);
            }
        }
    }
}
