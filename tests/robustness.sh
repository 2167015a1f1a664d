#!/bin/bash
# What must hold when things go wrong: kills at any moment, signals, bad input, full devices.
#
# After each case no process of the tree may be left after 2 s, no file in the swap directory and none of the
# suite's in /dev/shm, and no program may have seen a wrong page. (Swap files have no name; with neither a
# process nor a name left, they hold no disk space either.)

HELP="usage: tests/robustness.sh [--memspill BIN] [--workload BIN] [--with 'ARGS'] [--full] [--kills N]
                           [--keep] [NAME...]
  --kills N  how often each kind of kill is tried (default 20, with --full 100)
  --list     names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(exit-codes streams descriptors sigpipe sizes specs small-budget no-command not-executable not-found
    swap-dir static-c static-children static-runs static-go
    agent-forks agent-forks-strangers agent-forks-killed
    no-capability unprivileged no-agent other-user thread-ends
    kill-target kill-child kill-supervisor kill-supervisor-tree kill-daemon ctrl-c ctrl-c-caught signals
    stop-target stop-supervisor ctrl-z
    swap-full-ram swap-full-zstd swap-full-ram-disk swap-full-file swap-full-grow disk-full swap-file-new
    swap-file-old read-error wrong-bytes write-error write-error-all write-error-other fork-advice
    remap-pieces madv-free locked compaction regrow gap main-exits groups groups-full groups-devices
    check stats-json ctl-swapoff ctl-swapoff-ram ctl-swapoff-stop ctl-swapon-many ctl-limit ctl-strangers
    top-hangup idle-cpus
    guards privileges
    last-thread locked-once locked-kept writable-code torn-mapping network-namespace nested door-strangers
    door-namespace door-descriptors lying-uffd lying-evictor no-core other-proc read-from-outside
    forks-while-moving remap-grow many-mappings deep-stack private-file many-small limits
    limits-of-the-target few-descriptors stderr-full no-memory sanitizers stop-sibling stop-locked
    stop-all freeze held-fork
    second-signal exit-file traced stop-evictor shared-pool shared-changes shared-workers shared-removed
    shared-postgres shared-postgres-killed
    shared-removed-raw shared-direct shared-then-direct shared-advice shared-regrow own-userfaultfd
    populate opened in-order rows late-children late-then-free told-heap forked-writers many-children
    page-advice late-evictor named-pages address-limit shared-file-pool shared-file-calls shared-file-unfit
    shared-file-opened shared-file-kept shared-file-killed shared-file-numpy)
# Only with --full, or by name: each takes half a minute or more, and what it shows others show in part.
LONG=" agent-forks agent-forks-killed no-capability shared-postgres-killed second-signal compaction "
KILLS=
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    --kills) KILLS=$2; TAKEN=2 ;;
    *) return 1 ;;
    esac
}
parse_options "$@"
for name in "${NAMES[@]}"; do
    [[ " ${ALL[*]} " == *" $name "* ]] || { echo "unknown case '$name': ${ALL[*]}" >&2; exit 2; }
done
: "${KILLS:=$([ $FULL = 1 ] && echo 100 || echo 20)}"
PYTHON=/usr/bin/python3
# Job control: a job gets a process group of its own, and its signals are not ignored.
set -m

SWAP=$WORK/swap
mkdir "$SWAP"
cd "$WORK" || exit 2
BUDGET=64M
# A run with what `--with` asks for.
RUN=("$MEMSPILL" run "${MEMSPILL_ARGS[@]}")
SPILL=("${RUN[@]}" --memory-max $BUDGET --swap-dir "$SWAP")
SPIN=("$WORKLOAD" spin-touch --size 160M --threads 2)

# Each case, `case_NAME`, returns 0, or leaves the reason in WHY; SKIP is the reason for not running.
for file in "$TESTS"/robustness/*.sh; do . "$file"; done
for name in "${ALL[@]}"; do
    declare -F "case_$name" >/dev/null || { echo "there is no case_$name in $TESTS/robustness" >&2; exit 2; }
done

at_exit() { umount "$WORK/disk" "$WORK/closed" 2>/dev/null; return 0; }

for name in "${ALL[@]}"; do
    wanted "$name" || continue
    [ $FULL = 1 ] || [ ${#NAMES[@]} -gt 0 ] || [[ $LONG != *" $name "* ]] || continue
    WHY=
    SKIP=
    DID=
    "case_$name"
    if [ -n "$SKIP" ]; then
        skip "$name" "$SKIP"
    elif [ -n "$WHY" ]; then
        fail "$name" "$WHY"
        kill_ours
    else
        ok "$name" "$DID"
    fi
done 2>"$WORK/shell-messages"
finish
