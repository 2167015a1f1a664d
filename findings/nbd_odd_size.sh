#!/bin/bash
# A file of 4097 bytes is 4608 bytes long over qemu-nbd, which lets it grow; over nbdkit its last 511 bytes
#   are "full".
#
# Versions: qemu-utils 1:7.2+dfsg-7+deb12u18+b3, nbdkit 1.32.5-1, libnbd-bin 1.14.2-1 of Debian 12. Behaviour:
# qemu-nbd offers the raw file as 4608 bytes, nbdkit as 4097. A write of 8 bytes at 4200 to qemu-nbd works and
# the file is then 4208 bytes long. qemu-img says 4608 bytes of nbdkit's export as well; the same write to it,
# from qemu-io, fails with "No space left on device", though it is within the size that was shown. One would
# have guessed: a server tells the size of the file, or cuts it down to whole sectors, and a disk that is full
# says so on no write to a place that exists. Why it matters: a mark, a header copy or a checksum at "the end
# of the export" lies in another place for each pair of client and server. A client that takes ENOSPC for
# "full" believes a store of fixed size has run out. Cause: QEMU counts in sectors of 512 bytes and rounds up,
# as server and as client. nbdkit answers requests past the end with ENOSPC, as the protocol has it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download qemu-utils=1:7.2+dfsg-7+deb12u18+b3 nbdkit=1.32.5-1 libnbd-bin=1.14.2-1 \
    libnbd0=1.14.2-1 2>/dev/null
for package in *.deb; do dpkg-deb -x "$package" root; done
export LD_LIBRARY_PATH=$dir/root/usr/lib/x86_64-linux-gnu PATH=$dir/root/usr/bin:$PATH
file_plugin=$LD_LIBRARY_PATH/nbdkit/plugins/nbdkit-file-plugin.so

cat >ask <<'END'
nbdinfo --size "$1"
qemu-img info --output=json "$1" | sed -n 's/.*"virtual-size": \([0-9]*\).*/\1/p'
qemu-io -f raw -c 'write -P 7 4200 8' "$1" 2>&1 | sed -n 1p
END
# Prints: size for libnbd, size for QEMU, what became of the write, length of the file afterwards.
head -c 4097 /dev/urandom >file
"$(command -v qemu-nbd)" --fork -f raw -t -k "$dir/socket" --pid-file="$dir/pid" file
sh ask "nbd+unix:///?socket=$dir/socket" >qemu || true
kill "$(cat pid)"
stat -c %s file >>qemu
head -c 4097 /dev/urandom >file
nbdkit -U - "$file_plugin" file --run 'sh ask "$uri"' >nbdkit 2>/dev/null || true
stat -c %s file >>nbdkit
for server in qemu nbdkit; do
    paste -s -d '|' "$server" |
        sed "s/^/$server: libnbd sees /; s/|/, QEMU sees /; s/|/; /; s/|/; file then /"
done
printf '%s\n' 4608 4608 'wrote 8/8 bytes at offset 4200' 4208 | cmp -s - qemu &&
    printf '%s\n' 4097 4608 'write failed: No space left on device' 4097 | cmp -s - nbdkit ||
    { echo "changed: it is not as the header says" >&2; exit 1; }
