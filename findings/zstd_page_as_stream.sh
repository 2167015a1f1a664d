#!/bin/bash
# zstd: a page of 4096 bytes compressed as a stream asks its reader for 128 MiB, and careful readers refuse
#   it.
#
# Version: zstandard 0.25.0.
# Behaviour: at level 22, compress(page) and compressobj() give frames of 18 and 17 bytes for a page of
#   equal bytes. The first declares a window of 4096 bytes, the second one of 128 MiB. Twenty
#   decompressobj() that have begun on the second reserve 2.5 GiB of address space, on the first next to
#   nothing. A reader with max_window_size of 64 MiB refuses the second, also in the call that decodes it as
#   a whole. At level 3 the window is 2 MiB.
# One would have guessed: the frame is written when the stream is flushed. By then it is known that all of
#   it is 4096 bytes, so no more than that is asked for; at the same level the two frames serve alike.
# Why it matters: who stores pages compresses many and small ones, and bounds the memory of reading them.
#   The level is the writer's choice, the memory is the reader's. compressobj(size=4096) gives the small
#   window.
# Cause: the header leaves with the first compress(), when the length is not known, so the window is that of
#   the level.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check zstandard==0.25.0
venv/bin/python - <<'END'
import sys

import zstandard

PAGE = b"a" * 4096


def stream(level, **size):
    writer = zstandard.ZstdCompressor(level=level).compressobj(**size)
    return writer.compress(PAGE) + writer.flush()


def window(frame):
    return zstandard.get_frame_parameters(frame).window_size


def reserved():
    return int(open("/proc/self/statm").read().split()[0]) * 4096 >> 20


def begun(frame):
    before = reserved()
    readers = [zstandard.ZstdDecompressor().decompressobj() for _ in range(20)]
    for reader in readers:
        reader.decompress(frame[:8])
    return reserved() - before


def is_read(frame):
    try:
        careful = zstandard.ZstdDecompressor(max_window_size=64 << 20)
        return careful.decompress(frame, max_output_size=4096) == PAGE
    except zstandard.ZstdError as error:
        print(f"  {error}")
        return False


whole, streamed, told = zstandard.ZstdCompressor(level=22).compress(PAGE), stream(22), stream(22, size=4096)
seen = []
for name, frame in (("compress()", whole), ("compressobj()", streamed), ("compressobj(size=4096)", told)):
    taken = begun(frame)
    print(f"{name}: {len(frame)} bytes, window {window(frame)}, 20 readers reserve {taken} MiB")
    seen.append((window(frame), taken > 2000, is_read(frame)))
print(f"compressobj() at level 3: window {window(stream(3))}")
small, large = (4096, False, True), (128 << 20, True, False)
if seen != [small, large, small] or window(stream(3)) != 2 << 20:
    sys.exit("changed: it is not as the header says")
END
