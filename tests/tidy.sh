#!/bin/bash
# Form: what can be said of the sources without running them.
#
#   format       rustfmt would change nothing, in the agent and the fuzzer's programs too
#   lines        at most 110 characters, and a comment at the head of each file (tidy/lines.py)
#   openings     few sentences that open with a headless clause ("What waits is woken"; tidy/openings.py)
#   references   documents and headers name no file and no function that is not there (tidy/references.py)
#   port         the supervisor asks nowhere of which kind a process's port is (tidy/port.py)
#   modules      no two modules of a crate use each other, be it by way of others (tidy/modules.py)
#   clippy       no warning, in all targets of the workspace; the agent's sources are an example of its crate
#
# Prints each fault with its place. Quick enough before each commit with --quick, which leaves out clippy;
# --clippy is clippy alone. --self-test shows that the checks find what is planted.
set -u
cd "$(dirname "$0")/.." || exit 2
[ -d "${HOME:-}/.cargo/bin" ] && PATH=$PATH:$HOME/.cargo/bin

FAILED=0

# check NAME COMMAND...: what it prints is what is wrong.
check() {
    local name=$1
    shift
    "$@" || { FAILED=1; echo "tidy: FAIL: $name"; }
}

rust_files() {
    find . \( -name target -o -name '.?*' \) -prune -o -name '*.rs' -print
}

format() {
    rust_files | xargs rustfmt --check --edition 2024 --color never
}

self_test() {
    python3 tests/tidy/self_test.py || return
    # `format` is told the files, so there must be some.
    [ "$(rust_files | wc -l)" -gt 200 ] || { echo "rust_files finds few files"; return 1; }
}

# What still has faults of the kind: shorten it.
LINES_NOT_YET=""
CIRCLES_NOT_YET=""
OPENINGS_NOT_YET=""

# With `panic = "abort"` it would look at each crate twice: for the programs, and for the tests, which unwind.
clippy() {
    CARGO_PROFILE_RELEASE_PANIC=unwind \
        cargo clippy --quiet --release --workspace --all-targets --locked -- -D warnings
}

case ${1-} in
'' | --quick)
    check format format
    NOT_YET=$LINES_NOT_YET check lines python3 tests/tidy/lines.py .
    NOT_YET=$OPENINGS_NOT_YET check openings python3 tests/tidy/openings.py .
    check port python3 tests/tidy/port.py .
    check references python3 tests/tidy/references.py .
    NOT_YET=$CIRCLES_NOT_YET check modules python3 tests/tidy/modules.py .
    [ "${1-}" = --quick ] || check clippy clippy
    ;;
--clippy) check clippy clippy ;;
--self-test) check self-test self_test ;;
*)
    echo "usage: tests/tidy.sh [--quick|--clippy|--self-test]" >&2
    exit 2
    ;;
esac
exit $FAILED
