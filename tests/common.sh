# Shared by the scripts in this folder: where things are, how results are counted, how all is cleaned up.
# A script sets HELP to its usage before sourcing this.

set -u
shopt -s nullglob
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(dirname "$TESTS")
MEMSPILL=$REPO/target/release/memspill
WORKLOAD=$REPO/target/release/memspill-workload
MEMSPILL_ARGS=()
FULL=0
KEEP=0
NAMES=()

usage() {
    printf '%s\n' "$HELP"
    exit "${1:-0}"
}

# Options that all scripts know; the rest goes to the script's own `option` function.
parse_options() {
    while [ $# -gt 0 ]; do
        case $1 in
        --memspill) MEMSPILL=$2; shift ;;
        --workload) WORKLOAD=$2; shift ;;
        --with) read -ra MEMSPILL_ARGS <<<"$2"; shift ;;
        --full) FULL=1 ;;
        --keep) KEEP=1 ;;
        -h | --help) usage ;;
        --*) option "$1" "${2:-}" || usage 2 >&2; shift $((TAKEN - 1)) ;;
        *) NAMES+=("$1") ;;
        esac
        shift
    done
    case $MEMSPILL in */*) ;; *) MEMSPILL=$(command -v "$MEMSPILL" || echo "$MEMSPILL") ;; esac
    if [ ! -x "$MEMSPILL" ]; then
        echo "no memspill at $MEMSPILL: build it (cargo build --release) or name it with --memspill" >&2
        exit 2
    fi
    if [ ! -x "$WORKLOAD" ]; then
        echo "no memspill-workload at $WORKLOAD: build it (cargo build --release) or say --workload BIN" >&2
        exit 2
    fi
    MEMSPILL=$(readlink -f "$MEMSPILL")
    WORKLOAD=$(readlink -f "$WORKLOAD")
}

option() { return 1; }
TAKEN=1

# Every process that a script starts carries this mark in its environment or works below $WORK.
WORK=$(mktemp -d "${TMPDIR:-/tmp}/memspill-test.XXXXXX")
export MEMSPILL_TEST_MARK=memspill-test-$$-$(basename "$WORK")

# ours: the ids of processes that carry the mark; zombies and this shell's own subshells left out. In few
# processes of its own: on a busy machine it took seconds when it started some for each process that it looked
# at.
ours() {
    local pid stat words self
    mapfile -d '' self </proc/$$/cmdline
    # A test that it starts itself carries no mark, and works elsewhere.
    (
        cd / && export -n MEMSPILL_TEST_MARK
        {
            grep -lasF -- "$MEMSPILL_TEST_MARK" /proc/[0-9]*/environ
            stat --format=%N /proc/[0-9]*/cwd 2>/dev/null | grep -F -- "-> '$WORK"
        } | tr -d "'" | cut -d/ -f3 | sort -nu
    ) | while read -r pid; do
        [ "$pid" = $$ ] && continue
        { mapfile -d '' words <"/proc/$pid/cmdline" && read -r stat <"/proc/$pid/stat"; } 2>/dev/null ||
            continue
        stat=${stat##*) }
        [ "${words[*]}" = "${self[*]}" ] || [ "${stat:0:1}" = Z ] || echo "$pid"
    done
}

# gone SECONDS: waits until none of ours is left.
gone() {
    local end=$((SECONDS + $1 + 1))
    while [ -n "$(ours)" ]; do
        [ $SECONDS -ge $end ] && return 1
        sleep 0.05
    done
}

kill_ours() {
    local pids
    pids=$(ours)
    [ -n "$pids" ] && kill -9 $pids 2>/dev/null
    return 0
}

at_exit() { :; }
cleanup() {
    trap '' INT TERM
    cd /
    exec 2>/dev/null # the shell would tell of each of these kills
    # The second SIGTERM ends a whole run, and it leaves nothing; what is killed with -9 may leave a file.
    local pids
    pids=$(ours)
    [ -z "$pids" ] || { kill $pids; kill $pids; gone 2; }
    kill -9 $(jobs -p)
    kill_ours
    at_exit
    if [ $KEEP = 1 ]; then echo "kept: $WORK"; else rm -rf "$WORK"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

PASSED=0
FAILED=0
SKIPPED=0
FAILURES=() # the lines of all failures, once more at the end: of a long output people read, or keep, the end
ok() { PASSED=$((PASSED + 1)); echo "$1: ok${2:+ ($2)}"; }
fail() { FAILED=$((FAILED + 1)); FAILURES+=("$1: FAIL${2:+ ($2)}"); echo "${FAILURES[-1]}"; }
skip() { SKIPPED=$((SKIPPED + 1)); echo "$1: SKIP (${2})"; }
finish() {
    [ "$FAILED" = 0 ] || printf 'again: %s\n' "${FAILURES[@]}"
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" = 0 ]
    exit
}

# wanted NAME: true where no names were given or this one was.
wanted() {
    [ ${#NAMES[@]} = 0 ] && return 0
    local name
    for name in "${NAMES[@]}"; do [ "$name" = "$1" ] && return 0; done
    return 1
}

# run_cases NAME...: case_NAME of each of these that is wanted, and the end. A case that fails returns
# non-zero, with the reason in WHY; one that cannot run here says why in SKIP.
run_cases() {
    local name
    for name in "${NAMES[@]}"; do
        [[ " $* " == *" $name "* ]] || { echo "unknown case '$name': $*" >&2; exit 2; }
    done
    for name; do
        wanted "$name" || continue
        WHY= SKIP=
        if ! "case_$name"; then
            fail "$name" "$WHY"
        elif [ -n "$SKIP" ]; then
            skip "$name" "$SKIP"
        else
            ok "$name"
        fi
    done
    finish
}

have() { command -v "$1" >/dev/null 2>&1; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }
