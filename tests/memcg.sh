#!/bin/bash
# The budget is honest: under a hard memory limit of the budget plus a slack, without the kernel's swap,
# memspill brings a program to its end that takes 4 and 8 times the budget; without memspill it is killed
# there; and children that write what they share with their parent end well (forks-8). 16 processes that
# fill more than the budget at once stay below it and a twentieth (fill-16: 480M in 300M). And memspill itself
# takes little of a small budget: own-memory, at most 8 MiB beside its code, tables included, while pages come
# and go, to a file, so that there is no pool.
#
# Needs root and a memory cgroup (v1 at /sys/fs/cgroup/memory, or v2). memspill itself runs inside the limit.

HELP="usage: tests/memcg.sh [--memspill BIN] [--workload BIN] [--with 'ARGS'] [--budget 64] [--slack 48]
                      [NAME...]
  --budget, --slack   in MiB
  --list     names of the cases"
. "$(dirname "$0")/common.sh"

BUDGET=64
SLACK=48
ALL=(killed-without mmap-4 mmap-8 malloc-4 brk-4 mprotect-4 mapfixed-4 all-8 random-8 threads-4 fill-16
    forks-8 own-memory)
option() {
    case $1 in
    --budget) BUDGET=$2; TAKEN=2 ;;
    --slack) SLACK=$2; TAKEN=2 ;;
    --list) echo "${ALL[*]}"; exit ;;
    *) return 1 ;;
    esac
}
parse_options "$@"
for name in "${NAMES[@]}"; do
    [[ " ${ALL[*]} " == *" $name "* ]] || { echo "unknown case '$name': ${ALL[*]}" >&2; exit 2; }
done

GROUP=
at_exit() {
    [ -n "$GROUP" ] || return 0
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do rmdir "$GROUP" 2>/dev/null && return; sleep 0.1; done
    [ ! -d "$GROUP" ] || echo "could not remove $GROUP" >&2
}

# The group is made anew for each case, so that the peak is the case's own.
make_group() {
    local name=memspill-test-$$ limit=$(((budget + slack) << 20))
    if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        GROUP=/sys/fs/cgroup/memory/$name
        mkdir -p "$GROUP" && echo $limit >"$GROUP/memory.limit_in_bytes" || return
        # If swap is accounted, it is shut off; else there must be none (checked below).
        { echo $limit >"$GROUP/memory.memsw.limit_in_bytes"; } 2>/dev/null ||
            echo 0 >"$GROUP/memory.swappiness"
        PEAK=memory.max_usage_in_bytes
    elif [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        grep -qw memory /sys/fs/cgroup/cgroup.subtree_control ||
            echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        GROUP=/sys/fs/cgroup/$name
        mkdir -p "$GROUP" && echo $limit >"$GROUP/memory.max" || return
        { echo 0 >"$GROUP/memory.swap.max"; } 2>/dev/null
        PEAK=memory.peak
    else
        return 1
    fi
}

# inside SECONDS COMMAND...: runs in the group; sets CODE and USED (MiB).
inside() {
    local limit=$1
    shift
    make_group || { CODE=nogroup; return 1; }
    timeout -k 5 "$limit" bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$GROUP" \
        "$@" >"$WORK/out" 2>"$WORK/err" &
    { wait $!; } 2>/dev/null # the shell would tell of the kill
    CODE=$?
    USED=$(($(cat "$GROUP/$PEAK" 2>/dev/null || echo 0) >> 20))
    gone 2 || { kill_ours; WHY="processes were left"; }
    at_exit
    GROUP=
}

budget=$BUDGET
slack=$SLACK
if [ "$(id -u)" != 0 ] || ! make_group 2>/dev/null; then
    for name in "${ALL[@]}"; do wanted "$name" && skip "$name" "needs root and a memory cgroup"; done
    finish
fi
at_exit
GROUP=

for name in "${ALL[@]}"; do
    wanted "$name" || continue
    WHY=
    budget=$BUDGET
    slack=$SLACK
    program=$WORKLOAD
    times=${name##*-}
    times=${times//[^0-9]/}
    size=$((BUDGET * ${times:-4}))M
    case $name in
    own-memory)
        "$MEMSPILL" run --memory-max 64M --swap "file:$WORK/own,size=200M" "${MEMSPILL_ARGS[@]}" \
            -- "$WORKLOAD" pmbench --size 96M --seconds 3 --contents half >"$WORK/out" 2>"$WORK/err" &
        supervisor=$!
        sleep 2
        own=0
        for pid in $supervisor $(pgrep -P $supervisor memspill-guard); do
            kib=$(awk '/^Pss_(Anon|Shmem):/ { kib += $2 } END { print kib }' "/proc/$pid/smaps_rollup")
            own=$((own + kib))
        done
        wait $supervisor
        CODE=$?
        if [ $CODE = 0 ] && [ $own -gt 500 ] && [ $own -le 8192 ]; then
            ok "$name" "$own KiB of supervisor and guardian"
        else
            fail "$name" "ends with $CODE, $own KiB of supervisor and guardian: $(tail -n 1 "$WORK/err")"
        fi
        continue
        ;;
    killed-without)
        inside 60 "$WORKLOAD" hog --size $((BUDGET * 4))M
        if [ "$CODE" = 137 ]; then
            ok "$name" "killed at $USED MiB"
        else
            fail "$name" "ends with $CODE at $USED MiB"
        fi
        continue
        ;;
    forks-*)
        gcc -O2 -o "$WORK/forked-writers" "$TESTS/programs/forked_writers.c" 2>/dev/null ||
            { skip "$name" "no gcc"; continue; }
        size="$times x 32M"
        program=$WORK/forked-writers
        command=("$times" 32)
        ;;
    random-*) command=(pmbench --size "$size" --seconds 10 --threads 4 --check sparse) ;;
    threads-*) command=(verify-threads --size "$size" --threads 16 --seconds 10) ;;
    fill-16)
        budget=300
        slack=15
        size="16 x 30M"
        command=(usemem --processes 16 --size 30M --contents half)
        ;;
    *) command=(hog --size "$size" --by "${name%-*}") ;;
    esac
    start=$(now)
    inside 300 "$MEMSPILL" run --memory-max ${budget}M --swap-dir "$WORK" "${MEMSPILL_ARGS[@]}" \
        -- "$program" "${command[@]}"
    figures="$size in ${budget}M + ${slack}M, peak $USED MiB, $(since "$start") s"
    if [ -n "$WHY" ]; then
        fail "$name" "$WHY, $figures"
    elif [ "$CODE" = 0 ]; then
        ok "$name" "$figures"
    else
        fail "$name" "ends with $CODE, $figures: $(tail -n 1 "$WORK/err")"
    fi
done
finish
