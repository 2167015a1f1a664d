#!/bin/bash
# A preallocated file is all hole until somebody reads it; then it is all data; with the cache dropped, hole
#   again.
#
# Versions: nbdkit 1.32.5-1, libnbd-bin 1.14.2-1 of Debian 12, on ext4. (On another file system it ends with
#   77.) Behaviour: fallocate makes a file of 8 MiB. "nbdinfo --map" of it, served by nbdkit's file plugin,
#   shows 8 MiB of hole. After "cat file" the same command shows 8 MiB of data. After its pages are dropped
#   from the page cache it shows 8 MiB of hole. Its bytes, its length and its blocks on the disk (stat) stay
#   the same throughout. One would have guessed: whether a range is hole or data is a property of the file,
#   and reading changes no file. Also that blocks which fallocate has taken on the disk are no hole. Why it
#   matters: swap files and stores of pages are preallocated. Copies and backups that go by the map move
#   nothing or all of it, depending on who read the file before; and "hole" does not mean that no room is
#   taken. Cause: the map is made with lseek's SEEK_DATA. For blocks that are allocated but unwritten, ext4
#   answers it by looking into the page cache. A page that is there counts as data, also when a mere read
#   brought it there.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
[ "$(stat -f -c %T .)" = ext2/ext3 ] || { echo "not ext4 here: not tried" >&2; exit 77; }
apt-get -qq download nbdkit=1.32.5-1 libnbd-bin=1.14.2-1 libnbd0=1.14.2-1 2>/dev/null
for package in *.deb; do dpkg-deb -x "$package" root; done
export LD_LIBRARY_PATH=$dir/root/usr/lib/x86_64-linux-gnu PATH=$dir/root/usr/bin:$PATH

fallocate -l 8M file
show() { # WHEN
    nbdkit -r -U - "$LD_LIBRARY_PATH/nbdkit/plugins/nbdkit-file-plugin.so" file \
        --run 'nbdinfo --map --totals "$uri"' | awk -v when="$1" -v blocks="$(stat -c %b file)" \
        '{ printf "%s: %d bytes of %s, %d KiB on the disk\n", when, $1, $4, blocks / 2 }'
}
{
    show before
    cat file >/dev/null
    show read
    # It asks the kernel to drop the file's cached pages.
    dd if=file iflag=nocache count=0 status=none
    show dropped
} | tee seen
cmp -s seen - <<'END' || { echo "changed: it is not as the header says" >&2; exit 1; }
before: 8388608 bytes of hole,zero, 8192 KiB on the disk
read: 8388608 bytes of data, 8192 KiB on the disk
dropped: 8388608 bytes of hole,zero, 8192 KiB on the disk
END
