"""Swapped-out memory that a child is to find empty (MADV_WIPEONFORK), or not at all (MADV_DONTFORK).

The argument is how many children there are, one after another."""
import mmap
import os
import sys

SIZE = 48 << 20
WIPEONFORK = 18


def fresh():
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, SIZE, 4096):
        memory[at : at + 8] = at.to_bytes(8, "little")
    return memory


def holds(memory, empty):
    return all(memory[at : at + 8] == (0 if empty else at).to_bytes(8, "little")
        for at in range(0, SIZE, 4096))


wiped, kept, absent = fresh(), fresh(), fresh()
wiped.madvise(WIPEONFORK)
absent.madvise(mmap.MADV_DONTFORK)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    child = os.fork()
    if child == 0:
        os._exit(0 if holds(wiped, True) and holds(kept, False) else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child finds other bytes"
    assert holds(wiped, False) and holds(kept, False) and holds(absent, False), "the parent finds other bytes"
print("ready")
