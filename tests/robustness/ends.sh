# However a run ends: kills at any moment, signals, a terminal that goes, threads that end first.
# Cases of robustness.sh.

# The target is killed while it starts, populates and touches.
case_kill-target() {
    local n victims
    for ((n = 1; n <= KILLS; n++)); do
        start "${SPILL[@]}" -- "${SPIN[@]}"
        running 1 || return
        moment
        victims=$(targets)
        [ -n "$victims" ] || { no "time $n: no target to be killed is found: $(tail -n 1 err)"; return; }
        kill -9 $victims
        ends 10
        code_is 137 && clean || { WHY="time $n: $WHY"; return; }
    done
    DID="$KILLS times"
}

# One child of a tree is killed; the others go on and see right pages.
case_kill-child() {
    local n victim before
    for ((n = 1; n <= (KILLS + 3) / 4; n++)); do
        start "${RUN[@]}" --memory-max 96M --swap-dir "$SWAP" -- \
            "$WORKLOAD" spin-touch --size 64M --processes 4
        running 4 || return
        moment
        before=$(targets)
        victim=$(sed -n "$((RANDOM % 3 + 2))p" <<<"$before")
        kill -9 "$victim"
        sleep 1
        [ "$(targets | wc -l)" = 3 ] ||
            {
                no "time $n: $(targets | wc -l) of the 3 others are left: $(tail -n 1 err)"
                kill_ours
                return
            }
        kill -9 $PID
        ends 10
        clean || { WHY="time $n: $WHY"; return; }
    done
    DID="$(((KILLS + 3) / 4)) times"
}

# memspill dies: everything must be gone, and nobody may have read zeros.
kill_supervisor() { # COUNT COMMAND...
    local n count=$1
    shift
    for ((n = 1; n <= KILLS; n++)); do
        start "${SPILL[@]}" -- "$@"
        if [ $((n % 2)) = 0 ]; then
            running "$count" || return
        else
            populated 1 || return
        fi
        moment
        kill -9 $PID
        ends 10
        code_is 137 && clean || { WHY="time $n: $WHY"; return; }
    done
    DID="$KILLS times"
}
case_kill-supervisor() { kill_supervisor 1 "${SPIN[@]}"; }
case_kill-supervisor-tree() { kill_supervisor 4 "$WORKLOAD" spin-touch --size 48M --processes 4; }

# A child that leaves its parent, its session and its group behind belongs to the tree all the same.
case_kill-daemon() {
    have setsid || { SKIP="no setsid"; return; }
    start "${SPILL[@]}" -- bash -c 'setsid -f "$@" >/dev/null; exec sleep 1000' - "${SPIN[@]}"
    running 1 || return
    moment
    kill -9 $PID
    ends 10
    code_is 137 && clean
}

# As from the terminal: SIGINT to the whole foreground group.
case_ctrl-c() {
    local n
    for ((n = 1; n <= (KILLS + 3) / 4; n++)); do
        start "${SPILL[@]}" -- "${SPIN[@]}"
        running 1 || return
        moment
        kill -INT -- -$PID
        ends 10
        code_is 130 && clean || { WHY="time $n: $WHY"; return; }
    done
}

case_ctrl-c-caught() {
    start "${SPILL[@]}" -- bash -c 'trap "echo caught; exit 9" INT; echo up; while :; do sleep 0.05; done'
    until grep -q up out || ! kill -0 $PID 2>/dev/null; do sleep 0.02; done
    kill -INT -- -$PID
    ends 10
    code_is 9 || return
    [ "$(grep -c caught out)" = 1 ] || { no "the program's handler ran $(grep -c caught out) times"; return; }
    clean
}

# Signals to memspill alone go on to the program.
case_signals() {
    local signal
    for signal in TERM HUP USR1 USR2 INT QUIT; do
        start "${SPILL[@]}" -- bash -c "trap 'echo caught $signal; exit 9' $signal; echo up
            while :; do sleep 0.05; done"
        until grep -q up out || ! kill -0 $PID 2>/dev/null; do sleep 0.02; done
        kill -$signal $PID
        ends 10
        code_is 9 && clean || { WHY="SIG$signal: $WHY"; return; }
        grep -q "caught $signal" out || { no "SIG$signal did not reach the program"; return; }
    done
    start "${SPILL[@]}" -- "${SPIN[@]}"
    running 1 || return
    moment
    kill -TERM $PID
    ends 10
    code_is 143 && clean
}

case_main-exits() {
    gcc -O2 -pthread -o main-exits "$TESTS/programs/main_exits.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 120 "${SPILL[@]}" --stats-json stats.json -- ./main-exits
    code_is 0 || return
    local peak
    peak=$(grep -oP '"memory_peak_bytes": \K\d+' stats.json)
    [ "$peak" -gt 60000000 ] || { no "its memory was not seen: peak $peak"; return; }
    clean
}

# Its terminal goes: so does it.
case_top-hangup() {
    call 30 $PYTHON -c 'import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "top"])
os.read(terminal, 1)
os.close(terminal)
for _ in range(100):
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        sys.exit(not os.WIFEXITED(status))
    time.sleep(0.1)
os.kill(pid, 9)
sys.exit(1)' "$MEMSPILL"
    code_is 0 && clean
}

case_last-thread() {
    gcc -O1 -pthread -o last-thread "$TESTS/programs/last_thread.c" 2>/dev/null || { SKIP="no gcc"; return; }
    local mib
    for mib in 1 100; do
        call 30 "${SPILL[@]}" -- ./last-thread $mib
        code_is 0 || { WHY="with $mib MiB: $WHY: $(tail -n 1 out)"; return; }
    done
    clean
}

# A thread's page would leave while the kernel lets the thread end.
case_thread-ends() {
    gcc -O2 -pthread -o thread-ends "$TESTS/programs/thread_ends.c" 2>/dev/null || { SKIP="no gcc"; return; }
    ./thread-ends 2>/dev/null || { SKIP="processes may not trace each other here"; return; }
    call 60 "${SPILL[@]}" -- ./thread-ends
    code_is 0 && clean
}

# memspill's memory holds everybody's: no core of it is written. The program's own limit stays.
case_no-core() {
    local pid before=$(ulimit -Hc)
    [[ "$(cat /proc/sys/kernel/core_pattern)" = [!\|@/]* ]] ||
        { SKIP="cores do not go to the working directory here"; return; }
    start bash -c 'ulimit -c "$(ulimit -Hc)"; exec "$@"' - "${SPILL[@]}" -- \
        bash -c 'ulimit -c; exec "$0" spin-touch --size 96M' "$WORKLOAD"
    populated 1 || return
    [ "$(head -n 1 out)" = "$before" ] ||
        { no "the program may have a core of $(head -n 1 out), not $before"; return; }
    for pid in $PID $(pgrep -P $PID memspill-guard); do
        [ "$(awk '/^Max core/ { print $5 }' "/proc/$pid/limits")" -le 1 ] ||
            { no "$(cat "/proc/$pid/comm") may have a core"; return; }
    done
    kill -ABRT $PID
    ends 10
    ! compgen -G 'core*' >dumped || { no "there is a core: $(cat dumped)"; rm -f core*; return; }
    code_is 134 && clean
}

case_second-signal() {
    call 120 $PYTHON "$TESTS/programs/second_signal.py" "$MEMSPILL" "$WORKLOAD" $(freezer)
    code_is 0 && clean
}

# A swap file without a name gives its space back when it is closed. If that takes long, memspill's exit does
# not.
case_exit-file() {
    local closing exiting
    closing=$($PYTHON - "$SWAP" <<'PY'
import os, sys, time
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR)
for _ in range(400):
    os.write(fd, os.urandom(1 << 20))
os.fsync(fd)
begun = time.monotonic()
os.close(fd)
print(int((time.monotonic() - begun) * 1000))
PY
) || { SKIP="no O_TMPFILE here"; return; }
    [ "$closing" -ge 100 ] || { SKIP="a file of 400 MiB is closed within $closing ms here"; return; }
    call 60 "${RUN[@]}" --memory-max 48M --swap-dir "$SWAP" -- bash -c \
        '"$0" populate --size 400M --contents random >/dev/null; echo ${EPOCHREALTIME//./} >ended' "$WORKLOAD"
    exiting=$(((${EPOCHREALTIME//./} - $(cat ended)) / 1000))
    DID="$exiting ms, $closing ms for the file"
    [ $exiting -lt $((closing / 2 + 50)) ] || no "memspill took $DID"
    code_is 0 && clean
}
