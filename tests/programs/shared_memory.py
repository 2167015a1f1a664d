"""multiprocessing.shared_memory as programs use it: shared_memory.py MIB [numpy]

The parent fills a segment, workers attach it by its name, check it and change it; the parent checks what they
have done. Then each worker that comes later finds what is swapped out by then.
"""

import multiprocessing
import sys
from multiprocessing import shared_memory

MIB = 1 << 20


def piece(number):
    pattern = bytes((number * 7 + i * 13) % 251 for i in range(4096))
    return b"".join((number * 256 + i).to_bytes(4, "little") + pattern[4:] for i in range(256))


def check_and_change(job):
    name, number, use_numpy = job
    segment = shared_memory.SharedMemory(name=name)
    begin = number * MIB
    if use_numpy:
        import numpy

        array = numpy.ndarray((MIB // 8,), dtype=numpy.uint64, buffer=segment.buf, offset=begin)
        right = bool((array == numpy.frombuffer(piece(number), dtype=numpy.uint64)).all())
        array += numpy.uint64(1)
        array -= numpy.uint64(1)
        del array
    else:
        right = bytes(segment.buf[begin : begin + MIB]) == piece(number)
        segment.buf[begin : begin + MIB] = piece(number)
    segment.close()
    return right


if __name__ == "__main__":
    size, use_numpy = int(sys.argv[1]), "numpy" in sys.argv
    segment = shared_memory.SharedMemory(create=True, size=size * MIB + 100)
    try:
        for number in range(size):
            segment.buf[number * MIB : (number + 1) * MIB] = piece(number)
        segment.buf[size * MIB : size * MIB + 100] = b"x" * 100
        jobs = [(segment.name, number, use_numpy) for number in range(size)]
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(3) as pool:
                assert all(pool.map(check_and_change, jobs, 4)), method
        for number in range(size):
            assert bytes(segment.buf[number * MIB : (number + 1) * MIB]) == piece(number), number
        assert bytes(segment.buf[size * MIB : size * MIB + 100]) == b"x" * 100
    finally:
        segment.close()
        segment.unlink()
    print("all as it should be")
