#!/bin/bash
# All tests: packages, form, build, the shell suites, cargo's tests. Beside the suites, on the CPU time that
# these leave, cargo's tests are compiled, and clippy, the model checkers, and tests run that only compute.
#
# Stops at the first stage that fails, names it, and ends with a non-zero code. The last line sums up the
# shell suites (cargo prints its own figures). Written to end within 30 minutes on two CPUs; a stage that
# hangs is ended. Root is needed for the memory cgroup and for small file systems: without it those tests are
# skipped, and counted as skipped.
#
# Longer runs, one by one: tests/real_programs.sh sort java, tests/real_programs.sh --full,
# tests/robustness.sh --full, tests/knobs.sh --full, tests/memcg.sh, tests/stressors.sh,
# scripts/interleavings.sh.

set -u
cd "$(dirname "$0")/.." || exit 2
[ -d "${HOME:-}/.cargo/bin" ] && PATH=$PATH:$HOME/.cargo/bin
[ $# = 0 ] || { echo "usage: tests/run.sh" >&2; exit 2; }

# sort is slow in less than its memory, java-serial stands for java, gcc for make and C++; python and
# verify-threads run without privileges, and fork-storm in the case agent-forks.
# Cargo's tests that take long, run no memspill and look at no clock.
COMPUTING=(engine_model slots_model seeds scale soak)
CARGO_TEST=(cargo test --release --workspace --locked)
PROGRAMS=(numpy sqlite redis gcc node java-serial bash)
LOG=$(mktemp "${TMPDIR:-/tmp}/memspill-run.XXXXXX") || exit 2
PASSED=0
FAILED=0
SKIPPED=0
SUITE=
BESIDE=
BESIDE_LOG=$(mktemp "${TMPDIR:-/tmp}/memspill-run.XXXXXX") || exit 2

# The last line is printed on every way out.
finish() {
    local code=$?
    [ -z "$BESIDE" ] || { kill -TERM "$BESIDE"; wait "$BESIDE"; } 2>/dev/null
    rm -f "$LOG" "$BESIDE_LOG"
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    exit $code
}
trap finish EXIT
interrupted() { # CODE
    [ -z "$SUITE" ] || { kill -TERM "$SUITE"; wait "$SUITE" "$TAIL"; }
    exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM

begin() { # STAGE
    printf '== %s (after %d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

# The failure stands right above the sum, for readers who see only the end of the output.
give_up() { # STAGE CODE
    echo "FAILED: $1 (exit code $2)"
    grep -E '^again: ' "$LOG" | cut -d' ' -f2-
    exit 1
}

# stage NAME COMMAND...: a stage that counts nothing.
stage() {
    local name=$1 code
    shift
    begin "$name"
    "$@"
    code=$?
    [ $code = 0 ] && return
    FAILED=$((FAILED + 1))
    give_up "$name" $code
}

# beside SECONDS COMMAND...: stages that run no memspill, beside the suites until `end_beside`. The suites
# leave half of two CPUs' time, for a program and its pager wait for each other. In the kernel's idle class
# what runs here takes no more than that, and gives a CPU back at once.
beside() {
    local idle=(chrt --idle 0)
    "${idle[@]}" true 2>/dev/null || idle=(nice -n 19)
    set -m
    "${idle[@]}" timeout -k 20 "$@" </dev/null >"$BESIDE_LOG" 2>&1 &
    BESIDE=$!
    set +m
}

# Waits for these, and shows what they said.
joined() {
    local code
    wait "$BESIDE"
    code=$?
    BESIDE=
    cat "$BESIDE_LOG"
    return $code
}
end_beside() {
    [ -z "$BESIDE" ] || stage "what went on beside the suites" joined
}

# suite NAME SECONDS COMMAND...: a shell suite, which ends with `N passed, N failed, N skipped`.
suite() {
    local name=$1 seconds=$2 code counts
    shift 2
    # If something has failed there, the suites that are left would only hold that back.
    kill -0 "$BESIDE" 2>/dev/null || end_beside
    begin "$name"
    # A job with a process group of its own, so that all of it can be ended, and none of its signals is
    # ignored. Through a file, not a pipe: what a suite leaves running must not keep us waiting.
    : >"$LOG"
    set -m
    timeout -k 20 "$seconds" "$@" </dev/null >"$LOG" 2>&1 &
    SUITE=$!
    set +m
    tail -n +1 -s 0.2 -f --pid=$SUITE "$LOG" &
    TAIL=$!
    wait $SUITE
    code=$?
    SUITE=
    wait $TAIL
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$LOG" | tail -n 1 | tr -d 'a-z,')
    # Without a last line it was ended before its time.
    set -- ${counts:-0 1 0}
    PASSED=$((PASSED + $1))
    FAILED=$((FAILED + $2))
    SKIPPED=$((SKIPPED + $3))
    [ $code = 0 ] || give_up "$name" $code
    [ $(($1 + $3)) -gt 0 ] || { echo "no test was run"; FAILED=$((FAILED + 1)); give_up "$name" $code; }
}

# All but those that have run beside the suites.
other_tests() {
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/leave_out.sh ${COMPUTING[*]} --" \
        "${CARGO_TEST[@]}"
}

verifier() { # one test of 20 s: every page is checked while mappings come, go, move and are forked
    local memspill=target/release/memspill workload=target/release/memspill-workload
    if timeout --foreground -k 10 100 $memspill run -m 80M -- $workload mutate --size 200M --threads 3 \
        --seconds 20; then
        echo "1 passed, 0 failed, 0 skipped"
    else
        echo "mutate: FAIL (ends with $?)"
        echo "0 passed, 1 failed, 0 skipped"
        return 1
    fi
}

# Packages that cannot be had are named there; the tests that need them are skipped.
echo "== packages"
scripts/install-test-packages.sh || true
if ! command -v cargo >/dev/null; then
    echo "no cargo: install Rust (https://rustup.rs)"
    FAILED=1
    give_up packages 127
fi

stage "form" tests/tidy.sh --quick
stage "checks of form find what is planted" tests/tidy.sh --self-test
stage "build" cargo build --release --workspace --locked
# Compilers for the most part.
beside 2400 bash -c "${CARGO_TEST[*]} --no-run && tests/tidy.sh --clippy &&
    scripts/interleavings.sh --short && ${CARGO_TEST[*]} ${COMPUTING[*]/#/--test }"
suite "real programs" 480 tests/real_programs.sh "${PROGRAMS[@]}"
suite "robustness" 1080 tests/robustness.sh --kills 4
suite "without privileges" 300 tests/unprivileged.sh check kill-target kill-supervisor remap-pieces \
    forked-writers python verify-threads by_auto without_query
suite "without userfaultfd" 180 tests/unprivileged.sh --holes=guard check kill-target opened by_auto
export -f verifier
suite "small programs of every kind" 600 tests/field.sh
suite "packages" 120 tests/packages.sh reference man \
    completions-bash completions-zsh completions-fish deb make ninja
suite "knobs" 240 tests/knobs.sh
suite "swap on NBD servers" 240 tests/nbd.sh --short
suite "programs that run already" 180 tests/attach.sh --short
suite "mutating verifier" 120 bash -c verifier
suite "hard memory limit" 120 tests/memcg.sh killed-without mmap-4 all-8 fill-16 forks-8 \
    own-memory
suite "hard memory limit, without userfaultfd" 60 tests/memcg.sh --with "--mode=agent --holes=guard" \
    mprotect-4
end_beside
stage "cargo's tests" other_tests
begin "all stages passed"
