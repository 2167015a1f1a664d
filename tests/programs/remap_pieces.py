"""mremap to a fixed place of ranges that are several mappings, some swapped out, some not managed at all."""
import ctypes
import mmap

PAGE = 4096
PAGES = 4096
READ, READ_WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
MAYMOVE, FIXED, DONTUNMAP = 1, 2, 4
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
size = ctypes.c_size_t
pointer = ctypes.c_void_p


def fresh(protection=READ_WRITE):
    at = libc.mmap(pointer(0), size(PAGES * PAGE), protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1,
        size(0))
    assert at != 2**64 - 1
    return at


def word(base, page):
    return ctypes.c_uint64.from_address(base + page * PAGE)


def fill(base, mark):
    for page in range(PAGES):
        word(base, page).value = mark + page


def holds(base, mark):
    return all(word(base, page).value == mark + page for page in range(PAGES))


def mremap(old, new, flags=MAYMOVE | FIXED):
    return libc.mremap(pointer(old), size(PAGES * PAGE), size(PAGES * PAGE), flags, pointer(new))


def protect(base, first, pages, protection):
    assert libc.mprotect(pointer(base + first * PAGE), size(pages * PAGE), protection) == 0


others = [fresh() for _ in range(4)]  # what presses the rest out
for turn in range(3):
    memory, mark = fresh(), (turn + 1) << 32
    for first in range(0, PAGES, 64):
        protect(memory, first, 32, READ)  # these are not registered while they are so
    for number, other in enumerate(others):
        fill(other, number << 20)
    for first in range(0, PAGES, 64):
        protect(memory, first, 32, READ_WRITE)
    fill(memory, mark)
    for first in range(0, PAGES, 64):
        protect(memory, first + 16, 32, READ)
    for number, other in enumerate(others):
        assert holds(other, number << 20)
    target = fresh(0)
    assert mremap(memory, target) == target, "refused: errno %d" % ctypes.get_errno()
    assert holds(target, mark), "the moved pages hold other bytes"

    again = fresh(0)
    moved = mremap(target, again, MAYMOVE | FIXED | DONTUNMAP)
    assert moved == again, "DONTUNMAP: errno %d" % ctypes.get_errno()
    assert holds(again, mark) and all(word(target, page).value == 0 for page in range(PAGES))

    # A hole: all of it moves (Linux 6.17), or nothing does.
    assert libc.munmap(pointer(again + 100 * PAGE), size(PAGE)) == 0
    elsewhere = fresh(0)
    if mremap(again, elsewhere) != elsewhere:
        assert ctypes.get_errno() == 14
        elsewhere = again
    assert all(word(elsewhere, page).value == mark + page for page in range(PAGES) if page != 100)
print("ready")
