"""What tests/attach.sh attaches to: attached.py MIB

Eight threads have blocks with checksums, which they check, change, have filled by read(2) and write(2), and
give back; a child checks some of them each round, while there is a file `forks` here. It says when it is
round. SIGTERM ends it: `right`.
"""
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib

THREADS = 8
BLOCK = 1 << 20
blocks = int(sys.argv[1]) // THREADS
stop = threading.Event()
wrong = []
rounds = [0] * THREADS


def made(rng):
    block = bytearray(BLOCK)
    block[: BLOCK // 2] = rng.randbytes(BLOCK // 2)
    return block


def work(number):
    rng = random.Random(number)
    mine = [made(rng) for _ in range(blocks)]
    sums = [zlib.crc32(block) for block in mine]
    source = open("/dev/urandom", "rb", buffering=0)
    out, into = os.pipe()
    while not stop.is_set():
        for at in range(blocks):
            if zlib.crc32(mine[at]) != sums[at]:
                wrong.append((number, at, rounds[number]))
                stop.set()
            kind = rng.randrange(4)
            if kind == 0:
                source.readinto(memoryview(mine[at])[4096 : 4096 + (64 << 10)])
            elif kind == 1:
                # The kernel reads the one block, and writes into the other.
                os.write(into, memoryview(mine[at])[:32768])
                got = os.readv(out, [memoryview(mine[at - 1])[8192:40960]])
                sums[at - 1] = zlib.crc32(mine[at - 1])
                assert got == 32768
            elif kind == 2:
                mine[at] = made(rng)
            time.sleep(0.0005)
            sums[at] = zlib.crc32(mine[at])
        rounds[number] += 1
        if number == 0 and os.path.exists("forks"):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(zlib.crc32(mine[at]) == sums[at] for at in range(0, blocks, 7)) else 9)
            if os.waitpid(child, 0)[1] != 0:
                wrong.append("the child")
                stop.set()
            if subprocess.run(["sh", "-c", "echo said"], capture_output=True).stdout != b"said\n":
                wrong.append("the program")
                stop.set()
        if number == 0:
            print("round", rounds[0], flush=True)


signal.signal(signal.SIGTERM, lambda *_: stop.set())
threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    time.sleep(0.05)
print("WRONG" if wrong else "right", wrong, min(rounds), flush=True)
sys.exit(bool(wrong))
