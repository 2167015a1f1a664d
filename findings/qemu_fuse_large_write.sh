#!/bin/bash
# A file that QEMU exports by FUSE holds other bytes than were written, after a write of 1.2 MB.
#
# Versions: qemu-system-common 1:7.2+dfsg-7+deb12u18+b3 (qemu-storage-daemon) and libfuse3-3 3.14.0-4 of
#   Debian 12.
# Behaviour: qemu-storage-daemon exports a raw file of 16 MiB. One pwrite past the page cache (O_DIRECT)
#   that the kernel hands on in two requests says that all of it was written, and a read gives other bytes
#   for a part of it. It was seen in one to four of ten tries, so sixty are made of each size. Writes of up to
#   1 MiB, which are one request, are right in all tries.
# One would have guessed: a write that was acknowledged is what a read gives, of whatever length it was.
# Why it matters: large direct writes are how swap, databases and copying tools write. No error says so: only
#   who keeps checksums of pages notices.
# Cause: as it seems, a request's data lies in a buffer that the next request's are read into while the first
#   one's write is still under way.
set -eu
dir=$(mktemp -d)
daemon=
end() {
    [ -z "$daemon" ] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null || true
    umount -l "$dir/export" 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
cd "$dir"
apt-get -qq download qemu-system-common=1:7.2+dfsg-7+deb12u18+b3 libfuse3-3=3.14.0-4
for package in *.deb; do dpkg-deb -x "$package" root; done
export LD_LIBRARY_PATH=$dir/root/lib/x86_64-linux-gnu:$dir/root/usr/lib/x86_64-linux-gnu
truncate -s 16M disk.raw
touch export
"$dir/root/usr/bin/qemu-storage-daemon" --blockdev file,filename="$dir/disk.raw",node-name=disk \
    --export fuse,id=disk,node-name=disk,mountpoint="$dir/export",writable=on &
daemon=$!
for _ in {1..100}; do [ "$(stat -c %s export)" = 16777216 ] && break || sleep 0.1; done

cat >write.py <<'END'
import mmap, os, sys
PAGE, TRIES = 4096, 60
file = os.open("export", os.O_RDWR | os.O_DIRECT)
counts = []
for pages in 64, 256, 300, 512:
    wrong = 0
    for _ in range(TRIES):
        source, back = mmap.mmap(-1, pages * PAGE), mmap.mmap(-1, pages * PAGE)
        source[:] = os.urandom(pages * PAGE)
        assert os.pwrite(file, source, 0) == pages * PAGE, "changed: the write is short"
        for at in range(0, pages, 64):
            part = memoryview(back)[at * PAGE : min(at + 64, pages) * PAGE]
            assert os.preadv(file, [part], at * PAGE) == len(part)
            part.release()
        wrong += source[:] != back[:]
    counts.append(wrong)
    print(f"writes of {pages:3} pages: {wrong} of {TRIES} read back wrong")
sys.exit(not (counts[:2] == [0, 0] and any(counts[2:])))
END
python3 write.py || { echo "changed: it is not as the header says" >&2; exit 1; }
