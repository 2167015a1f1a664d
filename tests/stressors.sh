#!/bin/bash
# Each stressor of stress-ng for a second, without memspill and with it: it must end as it does without.
# Together they make nearly every system call, with good arguments and with bad ones.

HELP="usage: tests/stressors.sh [NAME...]
  NAME           stressors, instead of all that harm nobody else
  --with 'ARGS'  of memspill run, as --with '--mode=agent'
Takes six minutes. Those that fail without memspill, or take all of the machine, are left out; those that
differ for a reason that is written here are said to be known. As root it runs them as user 65534, with the
right to have faults in system calls served."

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse_options "$@"
cd "$WORK" || exit 2
BUDGET=32M
USER_OF_ALL=()
if [ "$(id -u)" = 0 ]; then
    chmod 777 "$WORK"
    USER_OF_ALL=(setpriv --reuid 65534 --regid 65534 --clear-groups
        --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace)
fi

# They change or load the machine, or another program on it.
HARMFUL=" cpu-online reboot softlockup watchdog swap physpage physmmap module klog rtc loop umount quota dev \
    oom-pipe rawdev binderfs netdev icmp-flood udp-flood gpu smi ioport efivar mmapfork memhotplug sysfs \
    forkheavy resources handle mlockmany sysinval "
# Why: memspill's own thread (kcmp); asynchronous I/O is refused where calls are trapped (aiol); more than the
# budget is locked, in thousands of stacks, in a userfaultfd of the program's own, or needs more tables than
# the budget has room for.
KNOWN=" kcmp aiol mlock loadavg mmaphuge userfaultfd "

# one KIND NAME COMMAND...: sets CODE.
one() {
    local dir=$WORK/$1 name=$2
    shift 2
    rm -rf "$dir"
    mkdir -m 777 "$dir"
    "${USER_OF_ALL[@]}" timeout -k 5 40 "$@" stress-ng --"$name" 1 --timeout 1 --verify --temp-path "$dir" \
        >"$dir/out" 2>&1 </dev/null
    CODE=$?
}

have stress-ng || { echo "SKIP (no stress-ng)"; exit 0; }
[ ${#NAMES[@]} -gt 0 ] || read -ra NAMES <<<"$(stress-ng --stressors)"
for name in "${NAMES[@]}"; do
    [[ "$HARMFUL" != *" $name "* ]] || continue
    one alone "$name"
    [ $CODE = 0 ] || continue
    one spill "$name" "$MEMSPILL" run --memory-max $BUDGET "${MEMSPILL_ARGS[@]}" --
    if [ $CODE = 0 ]; then
        ok "$name"
    elif [[ "$KNOWN" == *" $name "* ]]; then
        skip "$name" "known: exit code $CODE"
    else
        fail "$name" "exit code $CODE: $(grep -m 1 -E 'memspill:|fail:' spill/out)"
    fi
done
finish
