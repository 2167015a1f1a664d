#!/bin/bash
# The user pager, as a user without any privilege: real programs, and what must hold when things go wrong.
# The scripts for these run as that user, with --pager=user for each run of memspill.

HELP="usage: tests/unprivileged.sh [--full] [NAME...]
  NAME    cases of tests/robustness.sh and programs of tests/real_programs.sh
  --full  large sizes, and more kills
  --list  names of both
Needs root, to become that user (65534); the repository must be readable for all."
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CASES=(check kill-target kill-child kill-supervisor kill-supervisor-tree kill-daemon ctrl-c ctrl-c-caught
    signals stop-target stop-supervisor swap-full-ram swap-full-file swap-full-grow read-error
    wrong-bytes write-error remap-pieces madv-free locked regrow main-exits ctl-swapoff ctl-limit guards
    last-thread locked-once writable-code torn-mapping remap-grow many-mappings deep-stack many-small
    stop-sibling second-signal stop-evictor page-advice)
PROGRAMS=(sort numpy python sqlite redis gcc make node java-serial java cplusplus verify-threads
    mutate fork-storm stress-ng bash)

FULL=()
NAMES=()
for word; do
    case $word in
    --full) FULL=(--full) ;;
    --list) echo "${CASES[*]} ${PROGRAMS[*]}"; exit ;;
    -*) printf '%s\n' "$HELP"; exit 2 ;;
    *) NAMES+=("$word") ;;
    esac
done
[ "$(id -u)" = 0 ] || { echo "SKIP (needs root)"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
user=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs)
"${user[@]}" test -r "$TESTS/common.sh" ||
    { echo "SKIP (user 65534 cannot read $TESTS)"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
code=0
# run SCRIPT ARGS... -- NAMES: those of the names that were asked for, or all.
run() {
    local script=$1 name asked=()
    shift
    local args=()
    while [ "$1" != -- ]; do args+=("$1"); shift; done
    shift
    for name; do
        [ ${#NAMES[@]} = 0 ] || [[ " ${NAMES[*]} " == *" $name "* ]] && asked+=("$name")
    done
    [ ${#asked[@]} = 0 ] && return
    (cd / && TMPDIR=/tmp "${user[@]}" bash "$TESTS/$script" "${FULL[@]}" "${args[@]}" "${asked[@]}") || code=1
}
run robustness.sh --kills 6 --with '--pager=user' -- "${CASES[@]}"
run real_programs.sh --with '--pager=user --check' -- "${PROGRAMS[@]}"
exit $code
