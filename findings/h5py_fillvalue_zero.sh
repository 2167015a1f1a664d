#!/bin/bash
# h5py: fillvalue=0, which is the default value, makes the first write of one byte write the whole array.
#
# Version: h5py 3.16.0.
# Behaviour: create_dataset of 64 MiB without chunks, then one byte written. The file takes about 64 KiB of
#   disk. With fillvalue=0 added, which names the very value that unwritten elements have anyway, it takes
#   all 64 MiB. Dataset.fillvalue is 0 in both cases and every element reads the same. Creation writes
#   nothing in either case.
# One would have guessed: to name the default changes nothing. Or, if something is filled, then on creation.
# Why it matters: an array larger than memory is laid out like this and then filled in places. The one word
#   costs a write of the whole array, which goes through the page cache, and the disk space of all of it.
# Cause: h5py leaves HDF5's fill time at "if set" for arrays without chunks. HDF5 asks whether a fill value
#   was set, not what it is. It fills when space is allocated, and that is at the first write.
#   fill_time="never" helps.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check h5py==3.16.0
venv/bin/python - <<'END'
import os
import sys

import h5py

SIZE = 64 << 20


def kib(name):
    return os.stat(name).st_blocks // 2


seen = {}
for name, options in (("left out", {}), ("fillvalue=0", {"fillvalue": 0})):
    path = name + ".h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("d", (SIZE,), "u1", **options)
        value = int(data.fillvalue)
    created = kib(path)
    with h5py.File(path, "r+") as file:
        file["d"][5] = 1
        total = int(file["d"][: 1 << 20].sum())
    os.sync()
    seen[name] = (value, created, total, kib(path))
    print(f"{name:11}: fillvalue {value}, {created} KiB when created, {kib(path)} KiB after one written byte")
plain, named = seen.values()
same = plain[0] == named[0] == 0 and plain[2] == named[2] == 1 and max(plain[1], named[1]) < 64
if not (same and plain[3] < 1024 and named[3] >= SIZE // 1024):
    sys.exit("changed: it is not as the header says")
END
