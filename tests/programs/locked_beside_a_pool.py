"""Memory that cannot be swapped out needs the room that the compressed pool has: the pool must give it."""
import mmap
import os

PAGE = 4096
SWAPPED_PAGES = 64 * 256
LOCKED_PAGES = 44 * 256
LOCKED = 0x2000  # MAP_LOCKED


def map_private(pages, flags=0):
    return mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


def contents(page):
    return (page.to_bytes(8, "little") * 256) + NOISE


NOISE = os.urandom(PAGE // 2)
swapped = map_private(SWAPPED_PAGES)
for page in range(SWAPPED_PAGES):
    swapped[page * PAGE:(page + 1) * PAGE] = contents(page)
locked = map_private(LOCKED_PAGES, LOCKED)
for page in range(LOCKED_PAGES):
    locked[page * PAGE] = 1
for page in range(SWAPPED_PAGES):
    assert swapped[page * PAGE:(page + 1) * PAGE] == contents(page), page
print("ready")
