#!/bin/bash
# zarr and blosc2 give back old values when an array is made shorter and longer again; h5py and PyTables
#   give zeroes.
#
# Versions: zarr 3.1.6, blosc2 4.14.1, h5py 3.16.0, tables 3.11.1.
# Behaviour: an array holds 1 to 10 in chunks of 8 and its fill value is 0. It is resized to 3 and back to
#   10. In zarr and blosc2 it then begins 1 to 8, and zeroes follow. In h5py and PyTables it is 1, 2, 3 and
#   zeroes.
# One would have guessed: what was cut off is gone, and new places hold the fill value; at least, where
#   chunks end has no say in which values an array has.
# Why it matters: a file used as scratch space, a ring or a log of pages is cut and grown all the time. A
#   reader who takes the fill value for "not written yet" takes stale data for fresh. With other chunks,
#   other values.
# Cause: both drop whole chunks past the new end and leave the last one alone; HDF5 fills what is cut off in
#   it. The notes on zarr's resize do tell it (zarr-developers/zarr-python#1017); those on blosc2's say "not
#   initialized".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check zarr==3.1.6 blosc2==4.14.1 h5py==3.16.0 tables==3.11.1
venv/bin/python - <<'END'
import sys

import blosc2
import h5py
import numpy
import tables
import zarr

OLD = numpy.arange(1, 11, dtype="i4")


def shorter_and_longer(array, resize):
    resize(3)
    resize(10)
    return array[:].tolist()


seen = {}
array = zarr.create_array("zarr", shape=(10,), chunks=(8,), dtype="i4", fill_value=0)
array[:] = OLD
seen["zarr"] = shorter_and_longer(array, lambda length: array.resize((length,)))
packed = blosc2.zeros((10,), dtype="i4", chunks=(8,), blocks=(4,))
packed[:] = OLD
seen["blosc2"] = shorter_and_longer(packed, lambda length: packed.resize((length,)))
with h5py.File("h5py.h5", "w") as file:
    data = file.create_dataset("d", (10,), "i4", chunks=(8,), maxshape=(None,), fillvalue=0)
    data[:] = OLD
    seen["h5py"] = shorter_and_longer(data, lambda length: data.resize((length,)))
with tables.open_file("tables.h5", "w") as file:
    rows = file.create_earray("/", "d", tables.Int32Atom(), (0,), chunkshape=(8,))
    rows.append(OLD)
    seen["tables"] = shorter_and_longer(rows, rows.truncate)
for name, values in seen.items():
    print(f"{name:6}: {values}")
old, zeroes = [*range(1, 9), 0, 0], [1, 2, 3] + [0] * 7
if not (seen["zarr"] == seen["blosc2"] == old and seen["h5py"] == seen["tables"] == zeroes):
    sys.exit("changed: it is not as the header says")
END
