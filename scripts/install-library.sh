#!/bin/bash
# Installs the library for C: libmemspill.so, libmemspill.a, memspill.h, and memspill.pc for pkg-config.
set -eu
HELP="usage: scripts/install-library.sh [PREFIX]
  PREFIX  [default: /usr/local]
Build before: cargo build --release. The memspill command goes beside it, or into PATH."
case ${1-} in -h | --help) echo "$HELP"; exit ;; -*) echo "$HELP" >&2; exit 2 ;; esac
REPO=$(cd "$(dirname "$0")/.." && pwd)
PREFIX=$(realpath -m "${1:-/usr/local}")
BUILT=${CARGO_TARGET_DIR:-$REPO/target}/release
[ -e "$BUILT/libmemspill.so" ] || { echo "no library in $BUILT: cargo build --release" >&2; exit 2; }
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml")

install -d "$PREFIX/lib/pkgconfig" "$PREFIX/include"
install -m 755 "$BUILT/libmemspill.so" "$PREFIX/lib"
install -m 644 "$BUILT/libmemspill.a" "$PREFIX/lib"
install -m 644 "$REPO/crates/arena/include/memspill.h" "$PREFIX/include"
cat >"$PREFIX/lib/pkgconfig/memspill.pc" <<END
prefix=$PREFIX
Name: memspill
Description: Memory with a budget inside a program
Version: $VERSION
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -lmemspill
Libs.private: -lpthread -ldl -lm -lgcc_s
END
