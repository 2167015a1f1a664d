# Debuggers, and who reads another process's memory. Cases of field.sh.
CASES+=(traceme traceme-tight selfmem readers read-stopped gdb gdb-term gdb-killed strace valgrind)

case_traceme() {
    local kind
    for kind in vfork fork stop twice; do same 64M traceme $kind 0 || return; done
}

# Its parent has memory swapped out, so that what it forks joins at once.
case_traceme-tight() {
    local kind
    for kind in vfork fork twice; do same 24M traceme $kind 40 && left 1000 || return; done
}

case_selfmem() { same 24M selfmem 48 && left 4096; }

case_readers() {
    local kind
    for kind in vm mem peek; do same 24M readers $kind 48 && left 4096 || return; done
}

# No call hangs on a process that is stopped, or gone.
# (As a whole it is so short that under kernel growth may be seen too late for anything to leave.)
case_read-stopped() { same 24M read_stopped 48 && { [ "$MODE" = kernel ] || left 4096; }; }

# What gdb prints, without the numbers of processes and of threads.
GDB='gdb -q -nx -batch "$@" 2>&1 </dev/null | grep -vE "^(\[|Using|warning|\$)" | sed "s/0x[0-9a-f]*/ADDR/g"'

case_gdb() {
    have gdb || { SKIP="no gdb"; return; }
    build walk || return
    same 64M -s 120 sh -c "$GDB" gdb -ex "break printf" -ex run -ex continue -ex "info locals" \
        --args "$WORK/bin/walk" 4 1
}

# One SIGTERM ends a run in which gdb waits for a program.
case_gdb-term() {
    have gdb || { SKIP="no gdb"; return; }
    "${AS[@]}" timeout -k 60 5 "$MEMSPILL" run "${HOW[@]}" -m 200M --swap-dir "$WORK/swap" -- \
        gdb -q -nx -batch -ex run --args sleep 100 </dev/null >out 2>err
    CODE=$?
    [ $CODE = 124 ] || { no "exit code $CODE"; kill_ours; return 1; }
    gone 20 || { no "left: $(ours | tr '\n' ' ')"; kill_ours; return 1; }
}

# Nothing goes on when memspill is killed, while gdb holds a program.
case_gdb-killed() {
    local pid
    have gdb || { SKIP="no gdb"; return; }
    rm -f swap/holds swap/ran
    "${AS[@]}" "$MEMSPILL" run "${HOW[@]}" -m 200M --swap-dir "$WORK/swap" -- \
        gdb -q -nx -batch -ex starti -ex "shell touch $WORK/swap/holds; sleep 100" \
        --args touch "$WORK/swap/ran" </dev/null >out 2>err &
    pid=$!
    for _ in $(seq 600); do [ ! -e swap/holds ] || break; sleep 0.1; done
    [ -e swap/holds ] || no "gdb does not hold the program: $(lines | tail -n 1)"
    kill -9 $pid
    wait $pid 2>/dev/null
    gone 20 || { no "left: $(ours | tr '\n' ' ')"; kill_ours; return 1; }
    [ ! -e swap/ran ] || no "the program ran on"
}

case_strace() {
    have strace || { SKIP="no strace"; return; }
    same 200M strace -f -o /dev/null sh -c '/bin/true; /bin/echo one | cat; (echo two; echo three) | sort' ||
        return
    same 200M strace -o /dev/null sh -c '/bin/true; echo one'
}

# Its own process is managed, and what it runs is memory of that.
case_valgrind() {
    have valgrind || { SKIP="no valgrind"; return; }
    build walk || return
    same 64M -s 200 valgrind -q --log-file=/dev/null "$WORK/bin/walk" 48 1 && left 4096
}
