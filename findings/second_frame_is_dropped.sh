#!/bin/bash
# lz4 and zstandard: decompress() of a file with two frames gives the first and says nothing; open() gives
#   both.
#
# Versions: lz4 4.4.5, zstandard 0.25.0, cramjam 2.14.0.
# Behaviour: two pages of 4096 bytes are written to one file, each as a frame. lz4.frame.open(..., "ab")
#   does just that. lz4.frame.open and zstandard.open read 8192 bytes. lz4.frame.decompress and
#   zstandard.decompress, given the same bytes, return 4096. cramjam's functions, for both formats, return
#   8192.
# One would have guessed: the function and the file object of one library agree, or one of them raises an
#   error. Both formats allow frames in a row, and their command line tools read them all.
# Why it matters: logs of pages, chunks and dumps that are appended to are just frames in a row. A reader
#   that maps or reads the file and decompresses it at once loses all but the first page, with no error.
# Cause: the functions decode one frame and leave what follows to the caller. For zstandard this is
#   indygreg/python-zstandard#59, open since 2018; there, allow_extra_data=False makes it an error.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check lz4==4.4.5 zstandard==0.25.0 cramjam==2.14.0
venv/bin/python - <<'END'
import os
import sys

import cramjam
import lz4.frame
import zstandard

pages = os.urandom(4096), os.urandom(4096)
for page in pages:
    with lz4.frame.open("pages.lz4", "ab") as file:
        file.write(page)
    with open("pages.zst", "ab") as file:
        file.write(zstandard.compress(page))


def read(opener, name):
    with opener(name, "rb") as file:
        return file.read()


packed = {name: read(open, name) for name in ("pages.lz4", "pages.zst")}
lengths = {
    "lz4.frame.open": len(read(lz4.frame.open, "pages.lz4")),
    "lz4.frame.decompress": len(lz4.frame.decompress(packed["pages.lz4"])),
    "cramjam.lz4.decompress": len(cramjam.lz4.decompress(packed["pages.lz4"])),
    "zstandard.open": len(read(zstandard.open, "pages.zst")),
    "zstandard.decompress": len(zstandard.decompress(packed["pages.zst"])),
    "cramjam.zstd.decompress": len(cramjam.zstd.decompress(packed["pages.zst"])),
}
for name, length in lengths.items():
    print(f"{name}: {length} bytes")
if list(lengths.values()) != [8192, 4096, 8192] * 2:
    sys.exit("changed: it is not as the header says")
END
