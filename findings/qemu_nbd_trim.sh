#!/bin/bash
# qemu-nbd says yes to TRIM and frees nothing; it frees the same range for WRITE ZEROES.
#
# Versions: qemu-utils 1:7.2+dfsg-7+deb12u18+b3 and nbdkit 1.32.5-1 of Debian 12.
# Behaviour: qemu-nbd, started without --discard, offers TRIM to its clients. It answers each TRIM with
#   success. The file keeps all its blocks, and a read gives the old bytes. A request to write zeroes that
#   may leave a hole does punch the hole, although --discard was not given then either.
# One would have guessed: a server that does not trim does not offer TRIM, as the protocol has a flag for
#   it; or else the option decides over both kinds of request alike. nbdkit's file plugin frees the blocks
#   unasked.
# Why it matters: who swaps over NBD discards freed pages to give the room back. Here the store only grows,
#   no error says so, and pages thought to be gone can still be read on the server. Start it with
#   --discard=unmap.
# Cause: QEMU drops discards where an image was opened without BDRV_O_UNMAP, and "ignore" is the default.
#   The NBD protocol lets a server ignore TRIM, so neither side is wrong by the letter.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download qemu-utils=1:7.2+dfsg-7+deb12u18+b3 nbdkit=1.32.5-1
for package in *.deb; do dpkg-deb -x "$package" root; done
bin=$dir/root/usr/bin plugins=$dir/root/usr/lib/x86_64-linux-gnu/nbdkit/plugins

# The disk space of a file of 8 MiB, in KiB, after its first 4 MiB were given up.
ask='discard 0 4M'
zero='write -z -u 0 4M'
fill() { head -c 8M /dev/urandom >file && cp file before && sync file; }
left() { sync file && echo $(($(stat -c %b file) / 2)); }
kept() { cmp -s -n 4M before file && echo yes || echo no; }

qemu() { # OPTION COMMAND
    fill
    # It ends when its only client goes.
    "$bin/qemu-nbd" --fork -f raw $1 -k "$dir/socket" --pid-file=pid file
    "$bin/qemu-io" -f raw -d unmap -c "$2" "nbd+unix:///?socket=$dir/socket" >answer 2>&1
    while kill -0 "$(cat pid 2>/dev/null)" 2>/dev/null; do sleep 0.1; done
}

qemu '' "$ask"
grep -q '^discard 4194304/4194304' answer || { echo "changed: TRIM is refused" >&2; exit 1; }
trim=$(left) old=$(kept)
qemu '' "$zero"
zeroes=$(left)
qemu --discard=unmap "$ask"
unmap=$(left)
fill
"$bin/nbdkit" -U - "$plugins/nbdkit-file-plugin.so" file \
    --run "$bin/qemu-io -f raw -d unmap -c '$ask' \$uri" >answer
nbdkit=$(left)

echo "8192 KiB, 4096 of them given up. What is left on the disk:"
echo "qemu-nbd, TRIM                  $trim KiB; it answered with success; old bytes still there: $old"
echo "qemu-nbd, WRITE ZEROES          $zeroes KiB"
echo "qemu-nbd --discard=unmap, TRIM  $unmap KiB"
echo "nbdkit file, TRIM               $nbdkit KiB"
[ "$trim" -ge 8192 ] && [ "$old" = yes ] && [ "$zeroes" -lt 4200 ] &&
    [ "$unmap" -lt 4200 ] && [ "$nbdkit" -lt 4200 ] ||
    { echo "changed: it is not as the header says" >&2; exit 1; }
