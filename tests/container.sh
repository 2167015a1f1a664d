#!/bin/bash
# In a real container with default settings, whose seccomp profile refuses userfaultfd and io_uring, and with
# a memory limit: programs that are killed there without memspill end well with it.
#
# Needs root, podman and runc (Debian: podman, runc, golang-github-containers-common). The container's root is
# this machine's, below an overlay. Not in tests/run.sh: the packages take minutes to install.

HELP="usage: tests/container.sh [--memspill BIN] [--with 'ARGS'] [NAME...]
  --with   further arguments for memspill run
  --list   names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(killed strings numpy forks gcc other-user supervisor-killed)
option() {
    [ "$1" = --list ] && { echo "${ALL[*]}"; exit; }
    return 1
}
parse_options "$@"

PYTHON=/usr/bin/python3
CONTAINER=(podman --runtime runc --cgroup-manager cgroupfs run --rm --network none
    --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --memory 140m --rootfs /:O)
SPILL=("$MEMSPILL" run --memory-max 64M --verbose "${MEMSPILL_ARGS[@]}" --)
STRINGS='rows = [str(i) * 45 for i in range(10**6)]; print(sum(r.count("7") for r in rows))'
NUMPY='import numpy; print(numpy.arange(25_000_000).sum())'
FORKS='import os
d = ["x%d" % i for i in range(1_500_000)]
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if all(d[i] == "x%d" % i for i in range(0, len(d), 3)) else 5)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))'

contained() { timeout 120 "${CONTAINER[@]}" "$@" >"$WORK/out" 2>"$WORK/err"; }
# is RIGHT COMMAND...: under memspill it prints what it should.
is() {
    local right=$1
    shift
    contained "${SPILL[@]}" "$@" || { WHY="ends with $?: $(tail -n 1 "$WORK/err")"; return 1; }
    [ "$(cat "$WORK/out")" = "$right" ] || { WHY="prints $(head -c 100 "$WORK/out")"; return 1; }
    grep -q 'mode: agent mode, holes by guard' "$WORK/err" || WHY="another mode: $(head -n 1 "$WORK/err")"
    [ -z "$WHY" ]
}
case_killed() {
    contained $PYTHON -c "$STRINGS"
    local code=$?
    [ $code = 137 ] || { WHY="without memspill it ends with $code"; return 1; }
}
case_strings() { is 27000000 $PYTHON -c "$STRINGS"; }
case_numpy() {
    $PYTHON -c 'import numpy' 2>/dev/null || { SKIP="no numpy"; return; }
    is 312499987500000 $PYTHON -c "$NUMPY"
}
# As the entry points of many images do, which drop root before they run their server.
case_other-user() {
    local other=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    contained "${SPILL[@]}" "${other[@]}" true
    [ $? = 125 ] && grep -q 'takes CAP_SYS_PTRACE' "$WORK/err" ||
        { WHY="without the capability: $(tail -n 1 "$WORK/err")"; return 1; }
    # (The last two are the root directory.)
    local CONTAINER=("${CONTAINER[@]:0:${#CONTAINER[@]}-2}" --cap-add SYS_PTRACE "${CONTAINER[@]: -2}")
    is $'65534\n27000000' "${other[@]}" sh -c "id -u; $PYTHON -c '$STRINGS'"
}
case_forks() { is $'0\n0\n0' $PYTHON -c "$FORKS"; }
case_gcc() {
    $PYTHON "$TESTS/programs/make_c.py" 400 1 >"$WORK/big.c"
    local right
    right=$(gcc -O2 -S -o - "$WORK/big.c" | cksum)
    is "$right" bash -c "gcc -O2 -S -o - '$WORK/big.c' | cksum"
}
case_supervisor-killed() {
    # The container ends when all of it has ended.
    local script='"$@" & sleep 3; kill -KILL $!; wait $!; echo $?; sleep 2; ls /proc | grep -c "^[0-9]"'
    contained bash -c "$script" - "${SPILL[@]}" $PYTHON -c "$STRINGS; import time; time.sleep(60)"
    # The shell, ls, grep, and the shell of the substitution are all that is left.
    local left
    { read -r code && read -r left; } <"$WORK/out"
    [ "$code" = 137 ] && [ "${left:-99}" -le 4 ] || { WHY="code $code, $left processes left"; return 1; }
}

if [ "$(id -u)" != 0 ] || ! have podman || ! have runc; then
    for name in "${ALL[@]}"; do wanted "$name" && skip "$name" "needs root, podman and runc"; done
    finish
fi
run_cases "${ALL[@]}"
