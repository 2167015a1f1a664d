# Children that programs fork, where the kernel tells of forks and where the agent does.
# Cases of robustness.sh.

# agent_forks KIND...: forks that agents make, each child with all of its parent's memory, half of it away.
agent_forks() {
    local kind DIR=${DIR:-$SWAP}
    for kind in "$@"; do
        call 120 "${PREFIX[@]}" "${SPILLS:-$MEMSPILL}" run --memory-max $BUDGET --swap-dir "$DIR" --check \
            "${MEMSPILL_ARGS[@]}" -- "$WORK/agent-forks" $kind
        code_is 0 || { WHY="$kind: $WHY"; return 1; }
    done
}

compiled_agent_forks() {
    [ -x agent-forks ] ||
        gcc -O2 -pthread -o agent-forks "$TESTS/programs/agent_forks.c" -lutil 2>/dev/null ||
        { SKIP="no gcc"; return 1; }
}

# The agents make the forks.
case_agent-forks() {
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return; }
    compiled_agent_forks || return 0
    local MEMSPILL_ARGS=("${MEMSPILL_ARGS[@]}" --mode=agent) PREFIX=()
    agent_forks kinds kept zeros unseen many fails threads || return
    # All its generations live at once.
    BUDGET=512M agent_forks chain || return
    call 120 "${SPILL[@]}" --mode=agent --check -- "$WORKLOAD" fork-storm --size 128M --forks 60 --check full
    code_is 0 || { WHY="fork-storm: $WHY"; return; }
    call 60 "${SPILL[@]}" --mode=agent -- \
        bash -c 'for i in {1..100}; do /bin/true; x=$(echo $i); done; echo $x'
    code_is 0 && [ "$(cat out)" = 100 ] || { no "a shell that forks"; return; }
    clean
}

# A process that knows the token tells lies about forks.
case_agent-forks-strangers() {
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return; }
    call 120 "${SPILL[@]}" --mode=agent --check -- $PYTHON "$TESTS/programs/fork_strangers.py"
    code_is 0 && clean
}

# The supervisor is killed while agents fork: nobody may be left, and nobody reads zeros.
case_agent-forks-killed() {
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return; }
    local i
    for ((i = 0; i < KILLS; i++)); do
        start "${SPILL[@]}" --mode=agent -- "$WORKLOAD" fork-storm --size 96M --forks 1000 --check full
        sleep 0.$((RANDOM % 6 + 4))
        kill -KILL $PID
        ends 10
        [ "$CODE" = 137 ] || { no "exit code $CODE"; return; }
        clean || return
    done
    for ((i = 0; i < KILLS; i++)); do
        start "${SPILL[@]}" --mode=agent -- \
            bash -c '"${@:2}" & sleep $1; kill -KILL $!; wait; echo ok' - 0.$((RANDOM % 6 + 2)) \
            "$WORKLOAD" fork-storm --size 96M --forks 1000 --check full
        ends 30
        code_is 0 || { WHY="a parent is killed: $WHY"; return; }
        clean || return
    done
}

# Without CAP_SYS_PTRACE the kernel tells of no forks: the agents make them.
case_no-capability() {
    [ "$(id -u)" = 0 ] && have setpriv || { SKIP="needs root and setpriv"; return; }
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return; }
    local PREFIX=(setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace)
    call 20 "${PREFIX[@]}" "${SPILL[@]}" --mode=kernel -- touch "$WORK/ran"
    [ ! -e ran ] || { rm -f ran; no "it ran"; return; }
    code_is 125 && says CAP_SYS_PTRACE || return
    call 20 "${PREFIX[@]}" "$MEMSPILL" doctor -v
    grep -q '^warn  uffd EVENT_FORK' out || { no "doctor has no such line"; return; }
    compiled_agent_forks || return 0
    agent_forks kinds threads || return
    clean
}

# memspill's own tables agree while mappings come, go, move and are forked, and pages fail. Memory that fork
# leaves out of the child must not come back from the parent's swapped pages.
case_fork-advice() {
    call 120 "${SPILL[@]}" -- $PYTHON "$TESTS/programs/fork_advice.py"
    code_is 0 && clean
}

# Children of a process of which nothing is away: they join late, or never, and have all of its memory.
case_late-children() {
    gcc -O2 -pthread -o late-children "$TESTS/programs/late_children.c" 2>/dev/null ||
        { SKIP="no gcc"; return; }
    call 60 "${RUN[@]}" --memory-max 256M --swap-dir "$SWAP" \
        -- ./late-children joins
    code_is 0 || { WHY="joins: $WHY"; return; }
    local run
    for run in $(seq $((4 + 16 * FULL))); do
        call 30 "${RUN[@]}" --memory-max 24M --check --swap-dir "$SWAP" \
            -- ./late-children grows
        code_is 0 || { WHY="grows, run $run: $WHY"; return; }
    done
    clean
}

# A process whose calls are trapped only until it has joined has all as it has set it from then on.
case_late-then-free() {
    gcc -O1 -o late-then-free "$TESTS/programs/late_then_free.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 60 "${RUN[@]}" --memory-max 256M --swap-dir "$SWAP" -- ./late-then-free
    code_is 0 || { WHY="$WHY $(grep -m 1 BAD out)"; return; }
    if strace -f -o strace.out true 2>/dev/null; then
        call 60 "${RUN[@]}" --memory-max 256M --swap-dir "$SWAP" \
            -- strace -f -o strace.out bash -c '(exit 3); /bin/true; /bin/echo | /bin/cat'
        code_is 0 || return
        grep -q SIGSYS strace.out && { no "a program that is traced has its calls trapped"; return; }
        rm -f strace.out
    fi
    clean
}

# Each child has what it has written, and its parent and its own child have what was there before.
case_forked-writers() {
    gcc -O2 -o forked-writers "$TESTS/programs/forked_writers.c" 2>/dev/null || { SKIP="no gcc"; return; }
    local run
    for ((run = 1; run <= (FULL ? 3 : 1); run++)); do
        call 60 "${SPILL[@]}" --check -- ./forked-writers 8 24
        code_is 0 || { WHY="run $run: $WHY: $(head -n 1 err)"; return; }
    done
    clean
}

# Many children at once, and many processes with one memory, one after the other: nothing of theirs stays.
case_many-children() {
    gcc -O2 -o many-children "$TESTS/programs/many_children.c" 2>/dev/null || { SKIP="no gcc"; return; }
    local kind
    for kind in "fork 100 80" "vm 9000 80"; do
        call 60 "${SPILL[@]}" -- ./many-children $kind
        code_is 0 && [ ! -s err ] || { no "$kind: $WHY: $(head -n 1 err)"; return; }
    done
    clean
}

# Forks beside threads that move and unmap memory: a child has what it had at one moment, or dies.
case_forks-while-moving() {
    gcc -O2 -pthread -o forks-while-moving "$TESTS/programs/forks_while_memory_moves.c" 2>/dev/null ||
        { SKIP="no gcc"; return; }
    local lowest
    for lowest in fork raw moves unmaps; do
        call 60 "${RUN[@]}" --memory-max 64M --check --swap-dir "$SWAP" \
            -- ./forks-while-moving $((2 + 2 * FULL)) $lowest
        code_is 0 || return
    done
    clean
}

# Each too small to be worth the pages of an agent, all of them twice the budget.
case_many-small() {
    gcc -O1 -o many-small "$TESTS/programs/many_small.c" 2>/dev/null || { SKIP="no gcc"; return; }
    # Some 119 KiB of each process cannot be swapped out: with the dispatch's stack and block, and with the
    # tables of the windows, there is not room for as many. Under the kernel's pager 340 take 3 s, as these
    # do, but 360 from 6 s to more than 90: too little memory is left to them, so they thrash.
    call 90 "${SPILL[@]}" -- ./many-small "$(of_mode 160 320)" 250
    peak_below 76 && clean
}
