#!/bin/bash
# Every knob at both ends, its default left out: whatever is set back to what it replaced, no page is wrong
# and programs print the same.
#
# For each setting a workload that checks every page runs for some seconds with memspill's own checks on (with
# --full the mutating verifier, and then real programs). The knobs and what they take are read from `memspill
# run --tune help`, so that a new one is tested without a line here. The forms of swap in RAM follow.

HELP="usage: tests/knobs.sh [--memspill BIN] [--workload BIN] [--full] [KNOB|swap...]
  --full     every word of every knob, with all real programs (hours); the default is the extremes
  --list     the settings"
. "$(dirname "$0")/common.sh"

LIST=0
option() {
    [ "$1" = --list ] && { LIST=1; return; }
    return 1
}
parse_options "$@"

# settings NAME VALUES DEFAULT: one a line, of `1..64` or `off|on`.
settings() {
    local values value others=()
    case $2 in
    *..*) values=("${2%%..*}" "${2##*..}") ;;
    *) IFS='|' read -ra values <<<"$2" ;;
    esac
    if [ $FULL = 0 ]; then
        # The default is tested everywhere else.
        for value in "${values[@]}"; do [ "$value" = "$3" ] || others+=("$value"); done
        values=("${others[0]}" "${others[-1]}")
    fi
    printf "$1=%s\n" "${values[@]}" | uniq
}

KNOWN=" $("$MEMSPILL" run --tune help | awk '{print $1}' | paste -sd' ') swap "
for name in "${NAMES[@]}"; do
    [[ $KNOWN == *" $name "* ]] || { echo "no such knob as '$name'; the names:$KNOWN" >&2; exit 2; }
done
ALL=()
OLD=()
while read -r name values default old _; do
    [ ${#NAMES[@]} = 0 ] || [[ " ${NAMES[*]} " == *" $name "* ]] || continue
    mapfile -t of_knob < <(settings "$name" "$values" "$default")
    ALL+=("${of_knob[@]}")
    OLD+=("$name=$old")
done < <("$MEMSPILL" run --tune help)
[[ $KNOWN != "  swap " ]] || { echo "memspill run --tune help names no knob" >&2; exit 2; }
# And all of them set back at once.
[ ${#OLD[@]} = 0 ] || ALL+=("${OLD[*]}")
if [ ${#NAMES[@]} = 0 ] || [[ " ${NAMES[*]} " == *" swap "* ]]; then
    ALL+=("swap=ram:,compress=lz4" "swap=ram:,compress=wordwise")
    ALL+=("swap=ram:,compress=zstd-fast" "swap=ram:,compress=zstd")
    ALL+=("swap=ram:size=2G,compress=none")
fi
[ $LIST = 0 ] || { printf '%s\n' "${ALL[@]}"; exit; }

PROGRAMS=()
[ $FULL = 0 ] || mapfile -t PROGRAMS < <("$TESTS/real_programs.sh" --list | tr ' ' '\n')
VERIFIER=(pmbench --size 160M --processes 2 --seconds 1 --read-percent 50 --check full)
[ $FULL = 0 ] || VERIFIER=(mutate --size 160M --threads 2 --seconds 20)
PASSED=0
FAILED=0
mkdir "$WORK/swap"

try() { # SETTING...
    local with=() budget=64M setting
    for setting in "$@"; do
        case $setting in
        # A setting that leaves a pool alone stays within the budget, which must hold it.
        swap=*compress=none) with+=(--swap "${setting#swap=}") ;;
        swap=*) with+=(--swap "${setting#swap=}") budget=128M ;;
        *) with+=(--tune "$setting") ;;
        esac
    done
    timeout -k 5 60 "$MEMSPILL" run -m $budget --check --swap-dir "$WORK/swap" "${with[@]}" -- \
        "$WORKLOAD" "${VERIFIER[@]}" >"$WORK/out" 2>&1 || { tail -n 3 "$WORK/out"; return 1; }
    [ $FULL = 1 ] || return 0
    "$TESTS/real_programs.sh" --memspill "$MEMSPILL" --workload "$WORKLOAD" \
        --with "${with[*]}" "${PROGRAMS[@]}" \
        >"$WORK/out" 2>&1 || { tail -n 5 "$WORK/out"; return 1; }
}

for setting in "${ALL[@]}"; do
    read -ra words <<<"$setting"
    if try "${words[@]}"; then
        PASSED=$((PASSED + 1))
        echo "$setting: ok"
    else
        FAILED=$((FAILED + 1))
        echo "$setting: FAIL"
    fi
done
echo "$PASSED passed, $FAILED failed, 0 skipped"
[ $FAILED = 0 ]
