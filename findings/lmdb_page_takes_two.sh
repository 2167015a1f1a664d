#!/bin/bash
# LMDB stores a page of 4096 bytes in two pages, so a store of pages is twice as large as the pages.
#
# Version: lmdb 3.0.0 (Python), on a machine with pages of 4096 bytes.
# Behaviour: 500 values of 4080 bytes take one page each, and the file is 2 % larger than they are. 500
#   values of 4096 bytes take two pages each, and the file is twice as large. 2000 bytes pack two to a page;
#   2040 bytes take a page each.
# One would have guessed: a store that is mapped, and made of pages, likes values of just one page best.
# Why it matters: pages, blocks and tensors of 4096 bytes are what one puts there. Half of the file is
#   empty, and so is half of what is mapped, read ahead and cached. Compressed by 16 bytes, or as runs of
#   pages, they fit.
# Cause: a value of more than about half a page goes to "overflow pages" of its own, the first of which
#   begins with a header of 16 bytes. The remainder of the last page is not shared.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check lmdb==3.0.0
venv/bin/python - <<'END'
import os
import sys

import lmdb

COUNT = 500
ratios = {}
for size in (2000, 2040, 4080, 4096, 65536):
    with lmdb.open(f"store{size}", map_size=1 << 28) as store:
        with store.begin(write=True) as transaction:
            for number in range(COUNT):
                transaction.put(number.to_bytes(8, "big"), os.urandom(size), append=True)
        pages = store.stat()["overflow_pages"]
    ratios[size] = os.path.getsize(f"store{size}/data.mdb") / (COUNT * size)
    print(f"{COUNT} values of {size:5} bytes: the file is {ratios[size]:.2f} times as large, "
          f"{pages / COUNT:.2f} pages of its own for each")
good = (ratios[2000] < 1.1 and ratios[2040] > 1.9 and ratios[4080] < 1.1 and ratios[4096] > 1.9
        and ratios[65536] < 1.1)
if not good:
    sys.exit("changed: it is not as the header says")
END
