#!/bin/bash
# Model checkers: loom goes through every interleaving (and order of memory) of a few steps, shuttle draws
# schedules of whole threads. The head of each test says what it shows: crates/{engine,agent}/tests/loom_*.rs
# and shuttle_*.rs. The engine's own code is run, and the agent's; what loom looks at there is a model.
#
# Each of the two builds the engine with other locks and atomics (engine/src/sync.rs), in a target directory
# of its own, so that the usual build stays as it is.
set -u
cd "$(dirname "$0")/.." || exit 2
[ -d "${HOME:-}/.cargo/bin" ] && PATH=$PATH:$HOME/.cargo/bin

# Schedules for each scenario and scheduler.
DRAWN_SHORT=300

HELP="usage: scripts/interleavings.sh [--short] [loom|shuttle [NAME...]]
  --short  as tests/run.sh: all of loom, and fewer schedules of shuttle (DRAWN=$DRAWN_SHORT), built
           without debug information
  NAME     only tests whose name holds this
  shuttle: REPLAY=SCHEDULE   the schedule that a failure has printed, and no other; with the NAME of its test
           DRAWN=N           schedules for each scenario and scheduler, instead of 1000
  loom:    LOOM_MAX_PREEMPTIONS=N, instead of 2"

TARGET=${CARGO_TARGET_DIR:-target}
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2}

PROFILE=(--release)
if [ "${1-}" = --short ]; then
    shift
    export DRAWN=${DRAWN:-$DRAWN_SHORT} CARGO_PROFILE_DEV_DEBUG=0
    PROFILE=()
fi

# check CHECKER NAME...: the tests of a model checker.
check() {
    local checker=$1 file files=()
    shift
    for file in crates/{engine,agent}/tests/"$checker"_*.rs; do
        files+=(--test "$(basename "$file" .rs)")
    done
    RUSTFLAGS="${RUSTFLAGS:-} --cfg $checker" CARGO_TARGET_DIR=$TARGET/$checker \
        cargo test -p memspill-engine -p memspill-agent --locked "${PROFILE[@]}" "${files[@]}" -- "$@"
}

case ${1-} in
'') check loom && check shuttle ;;
loom | shuttle) check "$@" ;;
--help | -h) echo "$HELP" ;;
*) echo "$HELP" >&2; exit 2 ;;
esac
