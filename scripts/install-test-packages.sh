#!/bin/bash
# Installs the Debian or Ubuntu packages that building and the test scripts use. Quick where all is there;
# what cannot be had is said, and the tests then skip what needs it. Without Rust, rustup is installed, where
# there is a package of it: it fetches the toolchain that rust-toolchain.toml names.
set -u
[ -d "${HOME:-}/.cargo/bin" ] && PATH=$PATH:$HOME/.cargo/bin
# command or file that shows that a package is there, and the package
WANTED=(cargo:rustup gcc:gcc lib.c:libc6-dev /usr/bin/python3:python3 numpy:python3-numpy
    redis-server:redis-server redis-cli:redis-tools redis-benchmark:redis-tools stress-ng:stress-ng
    sqlite3:sqlite3 g++:g++ make:make node:nodejs javac:default-jdk-headless mkfs.ext4:e2fsprogs
    mkfs.btrfs:btrfs-progs nbdkit:nbdkit
    psql:postgresql setsid:util-linux ipcs:util-linux mount:mount awk:mawk diff:diffutils xargs:findutils
    strace:strace gdb:gdb valgrind:valgrind zsh:zsh fish:fish mandoc:mandoc
    /usr/share/bash-completion/bash_completion:bash-completion
    musl-gcc:musl-tools libjemalloc.so.2:libjemalloc2 dpkg-shlibdeps:dpkg-dev strip:binutils
    ninja:ninja-build col:bsdextrautils
    nbdkit:nbdkit qemu-nbd:qemu-utils nbd-server:nbd-server nbdfuse:nbdfuse fusermount3:fuse3
    openssl:openssl ip:iproute2)

there() {
    case $1 in
    numpy) /usr/bin/python3 -c 'import numpy' 2>/dev/null ;;
    libjemalloc.so.2) ldconfig -p 2>/dev/null | grep -q libjemalloc.so.2 ;;
    lib.c) [ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/libc.a ] ;;
    /usr/share/*) [ -e "$1" ] ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
    esac
}

# look_for: the packages of all that is not there, in MISSING, each once.
look_for() {
    local pair package
    MISSING=()
    for pair in "${WANTED[@]}"; do
        package=${pair#*:}
        there "${pair%%:*}" || [[ " ${MISSING[*]-} " == *" $package "* ]] || MISSING+=("$package")
    done
}

look_for
if [ ${#MISSING[@]} = 0 ]; then
    echo "all test packages are there"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "missing, and there is no apt-get here: ${MISSING[*]}"
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "missing; as root: apt-get install ${MISSING[*]}"
    exit 1
fi
wanted=("${MISSING[@]}")
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; }
apt-get update -qq || echo "apt-get update failed; trying with what is known"
# All at once is quicker; one by one, one that cannot be had does not keep out the others.
if ! install "${wanted[@]}"; then
    for package in "${wanted[@]}"; do install "$package"; done
fi
look_for
if [ ${#MISSING[@]} != 0 ]; then
    echo "could not get: ${MISSING[*]} (tests that need them are skipped)"
    exit 1
fi
echo "installed: ${wanted[*]}"
