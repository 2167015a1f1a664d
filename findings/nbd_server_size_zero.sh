#!/bin/bash
# nbd-server tells who asks about an export that it is empty, and tells who opens it its true size.
#
# Versions: nbd-server 1:3.24-1.1, libnbd-bin 1.14.2-1 and qemu-utils 1:7.2+dfsg-7+deb12u18+b3 of Debian 12.
# Behaviour: an export of 1 MiB. "nbdinfo URI" prints export-size 0 and content "empty". "nbdinfo --size
#   URI", of the same program, prints 1048576. qemu-img sees 1 MiB too. No one reports an error.
# One would have guessed: two ways to ask one program for one number give the same number.
# Why it matters: a script that looks for the size of a remote store in the full listing, or in its JSON
#   form, takes the store for empty. A client that asks first and opens later sizes its slots by the first
#   answer.
# Cause: nbdinfo asks for the full listing by NBD_OPT_INFO, which opens nothing, and for the size by
#   NBD_OPT_GO. This server looks at the file only when a client commits to it, so INFO gets the number it
#   began with, 0. A patch of February 2024 on the nbd mailing list makes INFO look at the file as well.
set -eu
dir=$(mktemp -d)
trap 'if [ -s "$dir/pid" ]; then kill "$(cat "$dir/pid")"; fi; rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download nbd-server=1:3.24-1.1 libnbd-bin=1.14.2-1 libnbd0=1.14.2-1 \
    qemu-utils=1:7.2+dfsg-7+deb12u18+b3 2>/dev/null
for package in *.deb; do dpkg-deb -x "$package" root; done
export LD_LIBRARY_PATH=$dir/root/usr/lib/x86_64-linux-gnu PATH=$dir/root/usr/bin:$dir/root/bin:$PATH

head -c 1M /dev/urandom >file
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '[generic]\nlistenaddr = 127.0.0.1\nport = %s\n[export]\nexportname = %s\n' "$port" "$dir/file" >config
nbd-server -C config -p "$dir/pid" >/dev/null 2>&1
uri=nbd://127.0.0.1:$port/export
for _ in $(seq 50); do nbdinfo --size "$uri" >/dev/null 2>&1 && break || sleep 0.1; done

listing=$(nbdinfo "$uri" | sed -n 's/^\texport-size: \([0-9]*\).*/\1/p')
size=$(nbdinfo --size "$uri")
qemu=$(qemu-img info --output=json "$uri" | sed -n 's/.*"virtual-size": \([0-9]*\).*/\1/p')
echo "nbdinfo URI:        export-size $listing"
echo "nbdinfo --size URI: $size"
echo "qemu-img info URI:  $qemu"
[ "$listing" = 0 ] && [ "$size" = 1048576 ] && [ "$qemu" = 1048576 ] ||
    { echo "changed: it is not as the header says" >&2; exit 1; }
