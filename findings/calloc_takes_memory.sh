#!/bin/bash
# calloc of 256 MiB takes 256 MiB at once under tcmalloc, mimalloc and TBB; nothing under jemalloc.
#
# Versions: libtcmalloc-minimal4 2.10-1, libmimalloc2.0 2.0.9+ds-2, libtbbmalloc2 2021.8.0-2+deb12u1 and
#   libjemalloc2 5.3.0-1 of Debian 12, preloaded into a Python with numpy 2.4.6.
# Behaviour: numpy.zeros of 256 MiB grows the process by 256 MiB under three of the four, before anything is
#   written to the array. Under jemalloc, and without any of them, it grows by nothing.
# One would have guessed: fresh pages from the kernel are zero, so an allocator that has just got 256 MiB
#   from it has no reason to clear them. Three of the four clear them all the same.
# Why it matters: arrays larger than memory that are filled in few places, hash tables and tables of pages
#   rest on untouched pages that cost nothing. A preloaded allocator, chosen for speed, makes each of them
#   resident, and swapping writes pages of zeroes.
# Cause: tcmalloc's calloc is malloc and memset. oneTBB's is too: uxlfoundation/oneTBB#178, open since 2019.
#   For mimalloc, microsoft/mimalloc#1104 tells of the time that it takes in later releases; the cause is
#   not known here.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download libtcmalloc-minimal4=2.10-1 libmimalloc2.0=2.0.9+ds-2 libjemalloc2=5.3.0-1 \
    libtbbmalloc2=2021.8.0-2+deb12u1
for package in *.deb; do dpkg-deb -x "$package" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check numpy==2.4.6
lib=$dir/root/usr/lib/x86_64-linux-gnu

cat >zeros.py <<'END'
import numpy
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
numpy.zeros(8)
before = resident()
array = numpy.zeros(256 << 20, "u1")
print(resident() - before)
END
grows() { env LD_LIBRARY_PATH="$lib" LD_PRELOAD="${1:+$lib/$1}" venv/bin/python zeros.py; }

failed=0
expect() { # NAME LIBRARY all|nothing
    local mib
    mib=$(grows "$2")
    echo "$1: numpy.zeros of 256 MiB takes $mib MiB"
    case $3 in
    all) [ "$mib" -ge 250 ] || failed=1 ;;
    nothing) [ "$mib" -le 5 ] || failed=1 ;;
    esac
}
expect "no allocator preloaded" "" nothing
expect "jemalloc 5.3.0" libjemalloc.so.2 nothing
expect "tcmalloc 2.10" libtcmalloc_minimal.so.4 all
expect "mimalloc 2.0.9" libmimalloc.so.2.0 all
expect "TBB malloc 2021.8" libtbbmalloc_proxy.so.2 all
[ $failed = 0 ] || { echo "changed: it is not as the header says" >&2; exit 1; }
