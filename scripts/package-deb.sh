#!/bin/bash
# A Debian package of a memspill that is built already: the command, man pages, completions, documents. A
# `--profile profiling` build, which has tables for debuggers and profilers, gives a second package,
# memspill-dbgsym, with these.
#
# Needs dpkg-dev and binutils. dpkg-shlibdeps finds out what the command depends on; a static one depends on
# nothing. Files have the time of the last commit: the same sources make the same package.
set -eu
HELP="usage: scripts/package-deb.sh [BINARY [OUT_DIR]]
  BINARY   [default: target/release/memspill]
  OUT_DIR  [default: target/packages]
Prints the paths of the packages."
case ${1-} in -h | --help) echo "$HELP"; exit ;; -*) echo "$HELP" >&2; exit 2 ;; esac
[ $# -le 2 ] || { echo "$HELP" >&2; exit 2; }
REPO=$(cd "$(dirname "$0")/.." && pwd)
BINARY=$(readlink -f "${1:-$REPO/target/release/memspill}")
OUT=${2:-$REPO/target/packages}
[ -x "$BINARY" ] || { echo "no memspill at $BINARY: build it first (cargo build --release)" >&2; exit 2; }

umask 022
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$OUT"
VERSION=$("$BINARY" --version | cut -d' ' -f2)
ARCH=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=$(git -C "$REPO" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
MAINTAINER='The memspill authors <memspill@users.noreply.github.com>'

depends() {
    local work=$WORK/depends
    mkdir -p "$work/debian"
    printf 'Source: memspill\n\nPackage: memspill\nArchitecture: %s\n' "$ARCH" >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O "$1" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

# control NAME TREE LINE...
control() {
    local name=$1 tree=$2
    shift 2
    mkdir -p "$tree/DEBIAN"
    (cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) \
        >"$tree/DEBIAN/md5sums"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$name" "$VERSION" "$ARCH"
        printf 'Maintainer: %s\n' "$MAINTAINER"
        printf 'Installed-Size: %s\n' "$(du -k -s --exclude=DEBIAN "$tree" | cut -f1)"
        printf '%s\n' "$@"
    } >"$tree/DEBIAN/control"
}

# pack TREE: with the times of all files set.
pack() {
    find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$1" "$OUT" >/dev/null
}

# The form that tools read; what has changed is in CHANGELOG.md.
changelog() {
    printf 'memspill (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
        "$VERSION" "$MAINTAINER" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

copyright() {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n'
    printf 'Files: *\nCopyright: 2026 The memspill contributors\nLicense: MIT or Apache-2.0\n\n'
    printf 'License: Apache-2.0\n On Debian systems: /usr/share/common-licenses/Apache-2.0\n\nLicense: MIT\n'
    sed 's/^$/./; s/^/ /' "$REPO/LICENSE-MIT"
}

TREE=$WORK/memspill
DOC=$TREE/usr/share/doc/memspill
install -D -m 755 "$BINARY" "$TREE/usr/bin/memspill"
strip --strip-unneeded "$TREE/usr/bin/memspill"
"$BINARY" man "$TREE/usr/share/man/man1"
install -d "$TREE"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$BINARY" completions bash >"$TREE/usr/share/bash-completion/completions/memspill"
"$BINARY" completions zsh >"$TREE/usr/share/zsh/vendor-completions/_memspill"
"$BINARY" completions fish >"$TREE/usr/share/fish/vendor_completions.d/memspill.fish"
install -d "$DOC/docs" "$DOC/examples"
install -m 644 "$REPO"/README.md "$REPO"/ARCHITECTURE.md "$REPO"/CHANGELOG.md "$DOC"
install -m 644 "$REPO"/docs/*.md "$DOC/docs"
install -m 644 "$REPO"/contrib/grafana.json "$DOC/examples"
changelog >"$DOC/changelog"
copyright >"$DOC/copyright"
gzip -9n "$TREE"/usr/share/man/man1/*.1 "$DOC/changelog" "$DOC/CHANGELOG.md"
DEPENDS=$(depends "$BINARY")
control memspill "$TREE" ${DEPENDS:+"Depends: $DEPENDS"} 'Section: utils' 'Priority: optional' \
    'Description: run a program in less memory than it needs' \
    ' memspill runs an unmodified program, and all that it starts, within a memory' \
    ' budget, by swapping in user space: what does not fit is compressed into RAM' \
    ' and into an encrypted swap file. It needs neither root nor swap of the kernel.'
pack "$TREE"
echo "$OUT/memspill_${VERSION}_$ARCH.deb"

# The tables go where gdb and perf look for them, by the build's id.
if readelf -SW "$BINARY" | grep -q '\.debug_line'; then
    ID=$(readelf -n "$BINARY" | sed -n 's/.*Build ID: //p')
    [ -n "$ID" ] || { echo "$BINARY has no build id" >&2; exit 1; }
    TREE=$WORK/memspill-dbgsym
    FILE=$TREE/usr/lib/debug/.build-id/${ID:0:2}/${ID:2}.debug
    mkdir -p "$(dirname "$FILE")"
    objcopy --only-keep-debug --compress-debug-sections "$BINARY" "$FILE"
    chmod 644 "$FILE"
    install -d "$TREE/usr/share/doc"
    ln -s memspill "$TREE/usr/share/doc/memspill-dbgsym"
    control memspill-dbgsym "$TREE" "Depends: memspill (= $VERSION)" 'Section: debug' 'Priority: optional' \
        'Description: debug symbols for memspill' ' Lines and functions, for debuggers and profilers.'
    pack "$TREE"
    echo "$OUT/memspill-dbgsym_${VERSION}_$ARCH.deb"
fi
