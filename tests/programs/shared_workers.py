"""Shared memory as Python's workers use it: mmap(-1) and multiprocessing: shared_workers.py MIB"""

import mmap
import multiprocessing
import sys
import zlib

MIB = 1 << 20
size = int(sys.argv[1]) * MIB
memory = mmap.mmap(-1, size)
table = multiprocessing.RawArray("Q", 64)


def piece(number):
    pattern = bytes((number * 7 + i * 13) % 251 for i in range(4096))
    return b"".join(number.to_bytes(4, "little") + pattern[4:] for _ in range(256))


def write(number):
    memory[number * MIB : (number + 1) * MIB] = piece(number)
    table[number % 64] += 1
    return number


def check(number):
    return zlib.crc32(memory[number * MIB : (number + 1) * MIB]) == zlib.crc32(piece(number))


if __name__ == "__main__":
    numbers = range(size // MIB)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        for _ in range(3):
            assert pool.map(write, numbers, 4) == list(numbers)
            assert all(pool.map(check, numbers, 4))
    assert all(check(number) for number in numbers)
    print("all as it should be")
