# Processes that stand still, stopped or frozen or traced, and go on. Cases of robustness.sh.

case_stop-target() {
    local n pids
    start "${SPILL[@]}" -- "${SPIN[@]}"
    populated 1 || return
    for n in 1 2 3 4 5 6; do
        pids=$(targets)
        kill -STOP $pids
        moment 0.5
        kill -CONT $pids
        moment 0.5
    done
    goes_on || { kill_ours; return; }
    kill -TERM $PID
    ends 10
    code_is 143 && clean
}

# Idle CPUs are kept awake while faults come often, and only then.
case_idle-cpus() {
    local device=/dev/cpu_dma_latency driver knob
    driver=$(cat /sys/devices/system/cpu/cpuidle/current_driver 2>/dev/null)
    if [ "${driver:-none}" = none ] || ! { : >$device; } 2>/dev/null; then
        SKIP="idle CPUs have no choice here, or $device cannot be opened"
        return
    fi
    keeps_awake() { [ -n "$(find "/proc/$PID/fd" -lname $device)" ]; }
    halt() { ! keeps_awake; }
    for knob in on off; do
        start "${SPILL[@]}" --keep-cpus-awake=$knob -- "${SPIN[@]}"
        populated 1 || return
        if [ $knob = on ]; then
            until_true 10 keeps_awake || no "idle CPUs may halt while faults come often"
        else
            sleep 1
            halt || no "idle CPUs are kept awake with --keep-cpus-awake=off"
        fi
        kill -STOP $(targets)
        until_true 10 halt || no "idle CPUs are kept awake while no faults come"
        kill -CONT $(targets)
        kill -TERM $PID
        ends 10
        code_is 143 && clean || return
    done
}

# While memspill is stopped the program waits; afterwards it goes on.
case_stop-supervisor() {
    local n
    start "${SPILL[@]}" -- "${SPIN[@]}"
    populated 1 || return
    for n in 1 2 3 4; do
        kill -STOP $PID
        moment 1
        kill -CONT $PID
        moment 0.5
    done
    [ -n "$(targets)" ] && goes_on || { no "the target is gone: $(tail -n 1 err)"; kill_ours; return; }
    kill -TERM $PID
    ends 10
    code_is 143 && clean
}

case_ctrl-z() {
    start "${SPILL[@]}" -- "${SPIN[@]}"
    populated 1 || return
    kill -TSTP -- -$PID
    sleep 0.5
    kill -CONT -- -$PID
    sleep 0.5
    [ -n "$(targets)" ] && goes_on || { no "the target is gone: $(tail -n 1 err)"; kill_ours; return; }
    kill -TERM $PID
    ends 10
    code_is 143 && clean
}

# goes_on: the run still swaps, both ways.
swapped_in() { "$MEMSPILL" ctl --pid $PID stats --json 2>/dev/null | grep -oP '"pswpin": \K[0-9]+'; }

goes_on() {
    local before now end=$((SECONDS + 10))
    before=$(swapped_in)
    until now=$(swapped_in) && [ -n "$before" ] && [ "$now" -gt $((before + 100)) ]; do
        kill -0 $PID 2>/dev/null || { no "it ended: $(tail -n 1 err)"; return 1; }
        if [ $SECONDS -ge $end ]; then
            no "it does not go on: ${now:-no} pages were swapped in, ${before:-no} before"
            return 1
        fi
        [ -n "$before" ] || before=$now
        sleep 0.05
    done
}

# still COMMAND...: a process that has most of the budget is held by this (its id is the last argument) while
# another one needs memory; undone by letgo. The first one checks its pages after that.
still() {
    start "${RUN[@]}" --memory-max $BUDGET --check --swap-dir "$SWAP" -- bash -c '
        "$0" spin-touch --size 100M --threads 2 & big=$!
        until [ -e go ]; do sleep 0.1; done
        "$0" populate --size 160M && echo sibling
        until [ -e on ]; do sleep 0.1; done
        kill -0 $big && kill $big; wait $big; exit $?' "$WORKLOAD"
    populated 1 || return
    sleep 0.5
    "$@" "$(targets | head -n 1)" || return
    echo >go
    local end=$((SECONDS + 60))
    until grep -q sibling out; do
        [ $SECONDS -lt $end ] || { no "its sibling waits for it: $(tail -n 1 err)"; break; }
        sleep 0.1
    done
    letgo
    sleep 1
    echo >on
    ends 20
    rm -f go on
    code_is 143 && clean
}

case_stop-sibling() {
    letgo() { kill -CONT $(targets | head -n 1); }
    still kill -STOP
}

# What it locks is in nobody's part. The whole is a few seconds' work.
case_stop-locked() {
    call 60 "${SPILL[@]}" --check -- $PYTHON "$TESTS/programs/locked_beside_stopped.py" 90 20 40
    ! grep -q '^mlock: ' err || { SKIP="may not lock 20 MiB"; return; }
    code_is 0 || { WHY="$WHY $(cat out)"; return; }
    grep -qE '^memspill: process [0-9]+ \(python3\) is stopped by a signal' err ||
        { no "not told: $(tail -n 1 err)"; return; }
    clean
}

case_stop-all() {
    gcc -O2 -pthread -o stop-all "$TESTS/programs/stop_all.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 120 "${SPILL[@]}" --check -- ./stop-all 3
    code_is 0 || return
    grep -qE '^memspill: process [0-9]+ \(stop-all\) is stopped by process [0-9]+, which traces it' err ||
        { no "not told: $(tail -n 1 err)"; return; }
    clean
}

freeze() {
    mkdir "$FROZEN" && echo "$1" >"$FROZEN/cgroup.procs" || { no "cannot freeze"; return 1; }
    if [ -e "$FROZEN/cgroup.freeze" ]; then
        echo 1 >"$FROZEN/cgroup.freeze"
    else
        echo FROZEN >"$FROZEN/freezer.state"
    fi
}

case_freeze() {
    local folder
    letgo() {
        if [ -e "$FROZEN/cgroup.freeze" ]; then
            echo 0 >"$FROZEN/cgroup.freeze"
        else
            echo THAWED >"$FROZEN/freezer.state"
        fi
    }
    for folder in $(freezer); do
        FROZEN=$folder/memspill-test-$$
        still freeze
        rmdir "$FROZEN"
        [ -z "$WHY" ] || { WHY="$folder: $WHY"; return; }
        DID="$DID $folder"
    done
    [ -n "$DID" ] || SKIP="no cgroup can be made here that can be frozen"
}

# An agent's fork, in the middle of which its process is held: others get on, and its child is not given up.
case_held-fork() {
    local seconds=$((3 + 9 * FULL))
    gcc -O2 -o held-fork "$TESTS/programs/held_fork.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 60 "${SPILL[@]}" --mode=agent --check -- ./held-fork 15000 10000 $seconds
    code_is 0 || return
    DID="$(wc -l <out) times in $seconds s its tracer got on"
    [ "$(wc -l <out)" -ge 2 ] || { no "$DID"; return; }
    clean
}

# A tracer in the tree: the evictor of what it traces stands still while the tracer waits for room, and so
# does a child that is about to join. It takes many forks to meet that.
case_traced() {
    command -v strace >/dev/null || { SKIP="no strace"; return; }
    strace -f -o strace.out true 2>/dev/null || { SKIP="processes may not trace each other here"; return; }
    call 240 "${SPILL[@]}" -- strace -f -o strace.out $PYTHON "$TESTS/programs/fork_advice.py" 15
    rm -f strace.out
    code_is 0 && clean
}

# The evictor stands still with batches half taken out, while its process changes its mappings and checks what
# it reads.
case_stop-evictor() {
    local stops under_way
    start "${RUN[@]}" --memory-max 64M --swap-dir "$SWAP" --check --verbose -- \
        "$WORKLOAD" mutate --size 160M --threads 3 --seconds $((8 + 6 * FULL))
    running 1 || return
    sleep 1
    $PYTHON "$TESTS/programs/stop_evictor.py" "$(command_of_run)" $((4 + 5 * FULL)) >stops 2>&1 ||
        { no "$(tail -n 1 stops)"; return; }
    read -r stops under_way <stops
    DID="$stops times, $under_way of them with a command under way"
    ends 60
    code_is 0 || return
    [ "$under_way" -gt 0 ] || { no "it was never at work"; return; }
    grep -q 'checks, nothing found' err || { no "not checked: $(tail -n 1 err)"; return; }
    clean
}
