#!/bin/bash
# Installs the Debian or Ubuntu packages that the test scripts use. Quick where all is there; what cannot be had is said,
# and the tests then skip what needs it.
set -u
# command or file that shows that a package is there, and the package
WANTED=(redis-server:redis-server redis-cli:redis-tools stress-ng:stress-ng sqlite3:sqlite3 gcc:gcc g++:g++ make:make
    node:nodejs javac:default-jdk-headless mkfs.ext4:e2fsprogs setsid:util-linux python3:python3
    numpy:python3-numpy lib.c:libc6-dev)

there() {
    case $1 in
    numpy) /usr/bin/python3 -c 'import numpy' 2>/dev/null ;;
    lib.c) [ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/aarch64-linux-gnu/libc.a ] || [ -e /usr/lib/libc.a ] ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
    esac
}

missing=()
for pair in "${WANTED[@]}"; do there "${pair%%:*}" || missing+=("${pair#*:}"); done
if [ ${#missing[@]} = 0 ]; then
    echo "all test packages are there"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "missing, and there is no apt-get here: ${missing[*]}"
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "missing; as root: apt-get install ${missing[*]}"
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo "apt-get update failed; trying with what is known"
# One by one, so that one that cannot be had does not keep out the others.
for package in "${missing[@]}"; do
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || true
done
still=()
for pair in "${WANTED[@]}"; do there "${pair%%:*}" || still+=("${pair#*:}"); done
if [ ${#still[@]} != 0 ]; then
    echo "could not get: ${still[*]} (tests that need them are skipped)"
    exit 1
fi
echo "installed: ${missing[*]}"
