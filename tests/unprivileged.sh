#!/bin/bash
# Agent mode, as a user without any privilege: real programs, and what must hold when things go wrong. The
# scripts for these run as that user, in that mode.

HELP="usage: tests/unprivileged.sh [--full] [NAME...]
  NAME    cases of tests/robustness.sh and programs of tests/real_programs.sh
  --full  large sizes, and more kills
  --holes=guard  guard pages in place of userfaultfds. by_auto is a run that is to take that by itself, with
          guard pages under a filter that refuses userfaultfd and io_uring. without_query is one with
          userfaultfds under a filter that refuses PROCMAP_QUERY, as Linux before 6.11
  --list  names of both
Needs root, to become that user (65534); the repository must be readable for all."
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CASES=(check kill-target kill-child kill-supervisor kill-supervisor-tree kill-daemon ctrl-c ctrl-c-caught
    signals stop-target stop-supervisor swap-full-ram swap-full-file swap-full-grow read-error
    wrong-bytes write-error remap-pieces madv-free locked regrow main-exits ctl-swapoff ctl-limit guards
    last-thread locked-once locked-kept writable-code torn-mapping remap-grow many-mappings
    many-small stop-sibling second-signal stop-evictor populate opened
    late-children forked-writers many-children few-descriptors address-limit)
PROGRAMS=(sort numpy python sqlite redis gcc make node java-serial java cplusplus verify-threads
    mutate fork-storm stress-ng bash)

FULL=()
NAMES=()
HOLES=userfaultfd
for word; do
    case $word in
    --holes=guard) HOLES=guard ;;
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
# An older kernel has no guard markers. Missing features are named; anything else is no reason to skip.
HOW=(--mode=agent --holes=$HOLES)
if [ $HOLES = guard ]; then
    said=$(cd / && "${user[@]}" "$TESTS/../target/release/memspill" run "${HOW[@]}" -m 64M -- true 2>&1)
    if [[ $said == *"not possible"* ]]; then
        echo "SKIP ($said)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
fi
# The case `locked` locks 44 MiB; most systems allow everyone 8.
ulimit -l 65536 2>/dev/null
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
run robustness.sh --kills 6 --with "${HOW[*]}" -- "${CASES[@]}"
run real_programs.sh --with "${HOW[*]} --check" -- "${PROGRAMS[@]}"
# by_auto WORDS BEFORE...: what memspill takes by itself, behind this command, and that it pages.
by_auto() {
    [[ ${#NAMES[@]} = 0 || " ${NAMES[*]} " == *" by_auto "* ]] || return
    local words=$1 right said job='d = {i: str(i) * 5 for i in range(300000)}
print(sum(int(v[:6]) for _ in range(3) for v in d.values()))'
    right=$(/usr/bin/python3 -c "$job")
    said=$(cd / && "${user[@]}" "${@:2}" "$TESTS/../target/release/memspill" run -v --stats=all -m 24M \
        -- /usr/bin/python3 -c "$job" 2>&1)
    if [[ $said == *"mode: agent mode, holes by $words"* && $said == *"$right"* &&
        $said =~ " pgsteal "[[:space:]]+[0-9]{4} ]]; then
        echo "PASS by_auto"
        echo "1 passed, 0 failed, 0 skipped"
    else
        printf 'FAIL by_auto\n%s\n' "$said"
        echo "0 passed, 1 failed, 0 skipped"
        code=1
    fi
}
# without_query: memory that comes, goes, moves and is forked, where the kernel tells of mappings by text.
without_query() {
    [[ ${#NAMES[@]} = 0 || " ${NAMES[*]} " == *" without_query "* ]] || return
    local said
    if said=$(cd / && "${user[@]}" timeout -k 10 60 /usr/bin/python3 "$TESTS/without.py" procmap-query \
        "$TESTS/../target/release/memspill" run "${HOW[@]}" --check --stats=all -m 32M \
        -- "$TESTS/../target/release/memspill-workload" mutate --size 80M --threads 3 --seconds 5 2>&1) &&
        [[ $said =~ " pgsteal "[[:space:]]+[0-9]{4} ]]; then
        echo "PASS without_query"
        echo "1 passed, 0 failed, 0 skipped"
    else
        printf 'FAIL without_query\n%s\n' "$said"
        echo "0 passed, 1 failed, 0 skipped"
        code=1
    fi
}
case $HOLES in
guard) by_auto "guard pages" /usr/bin/python3 "$TESTS/without.py" userfaultfd ;;
userfaultfd)
    # If anybody may open the device, the kernel mode is taken.
    "${user[@]}" test -w /dev/userfaultfd || by_auto "its own userfaultfd" env
    without_query
    ;;
esac
exit $code
