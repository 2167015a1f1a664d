#!/bin/bash
# blosc2 reports a compression ratio of 4 for random bytes, which it did not make smaller at all.
#
# Version: blosc2 4.14.1.
# Behaviour: an array of 1025 x 1025 random bytes in chunks of 1024 x 1024. nbytes is 1050625 and cbytes is
#   1052000 or so: it grew. cratio, and the line in .info just below these two, say 3.98. With chunks of
#   1025 x 1025 it says 1.0.
# One would have guessed: cratio is nbytes / cbytes, as all three stand together and cratio is described as
#   "the compression ratio of the array". Only the description of nbytes says that it is another one.
# Why it matters: by this number one chooses a codec and plans how much memory an array will take. Here it
#   is off by the share of padding, so bad chunks look like good compression, and the worse they fit the
#   better they look.
# Cause: cratio is that of the chunks below, which are padded to full size, here to 2048 x 2048. Padding
#   costs next to nothing when compressed. nbytes once counted it too: Blosc/python-blosc2#544.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check blosc2==4.14.1
venv/bin/python - <<'END'
import os
import sys

import blosc2
import numpy

data = numpy.frombuffer(os.urandom(1025 * 1025), "u1").reshape(1025, 1025)
said = []
for side in (1024, 1025):
    array = blosc2.asarray(data, chunks=(side, side))
    true = array.nbytes / array.cbytes
    print(f"chunks of {side} x {side}: nbytes {array.nbytes}, cbytes {array.cbytes}, "
          f"which is {true:.2f}; cratio {array.cratio:.2f}, padded nbytes {array.schunk.nbytes}")
    said.append((round(true, 1), round(array.cratio, 1)))
if said != [(1.0, 4.0), (1.0, 1.0)]:
    sys.exit("changed: it is not as the header says")
END
