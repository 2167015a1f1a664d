"""Memory that is given back with MADV_FREE and used again: it must stay within reach of swap."""
import mmap

PAGE = 4096
PAGES = 96 * 256
FREE = 8


def fresh():
    return mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


memory = fresh()
for turn in range(6):
    for page in range(PAGES):
        memory[page * PAGE] = (page + turn) % 251
    assert all(memory[page * PAGE] == (page + turn) % 251 for page in range(PAGES))
    memory.madvise(FREE)
    other = fresh()
    for page in range(PAGES):
        other[page * PAGE] = 1
    other.close()
print("ready")
