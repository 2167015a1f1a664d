# Static programs, which get the agent without a loader.
# Cases of robustness.sh.

# compiled_static: the programs, once for all cases.
compiled_static() {
    [ ! -e static-is-compiled ] || return 0
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return 1; }
    have gcc || { SKIP="no gcc"; return 1; }
    # One that is a launcher for a moment.
    cat >later.c <<'END'
#include <unistd.h>
int main(int count, char **words) { return count > 1 ? execvp(words[1], words + 1) : sleep(20); }
END
    cat >hidden.c <<'END'
volatile long execve = 59;
int main(int count, char **words, char **environment) {
    long result = execve;
    __asm__ volatile("syscall" : "+a"(result) : "D"(words[1]), "S"(words + 1), "d"(PASSED)
        : "rcx", "r11", "memory");
    return result;
}
END
    gcc -static later.c -o later 2>/dev/null && gcc -static -DPASSED=environment hidden.c -o hidden &&
        gcc -static -DPASSED=0 hidden.c -o without-environment ||
        { SKIP="gcc -static does not work here"; return 1; }
    gcc -O2 -static -pthread -o static "$TESTS/programs/static.c" &&
        gcc -O2 -static-pie -pthread -o static-pie "$TESTS/programs/static.c" &&
        gcc -O1 -pthread -o exec-from-thread "$TESTS/programs/exec_from_thread.c" ||
        { no "a program does not compile"; return 1; }
    call 20 "${SPILL[@]}" -- ./static 2 exit
    ! grep -q 'takes ptrace' err || { SKIP="no process may be traced here"; return 1; }
    touch static-is-compiled
}

# kernel_can_be: else no agent can be planted into a static program that another one runs.
kernel_can_be() {
    "$MEMSPILL" run --mode=kernel -m $BUDGET --swap-dir "$SWAP" -- true 2>/dev/null
}

# The command is a static program: the agent is planted into it.
case_static-c() {
    compiled_static || return 0
    local alone name
    for name in static static-pie; do
        # It finds itself, its words, signals that it has not blocked, and no tracer.
        alone=$(./$name 96 a 'b c') || { no "$name fails alone"; return; }
        call 60 "${SPILL[@]}" --stats=all --check -- ./$name 96 a 'b c'
        code_is 0 && [ "$(cat out)" = "$alone" ] || { no "$name: another output: $WHY $(cat out)"; return; }
        is_swapped $name || return
    done
    clean || return
    # A script is its interpreter.
    printf '#!%s 96\n' "$WORK/static" >script
    chmod +x script
    call 60 "${SPILL[@]}" -- ./script
    code_is 0 || return
    call 20 "${SPILL[@]}" -- ./static 8 exit
    code_is 7 || return
    call 20 "${SPILL[@]}" -- ./static 8 abort
    code_is 134 && clean || return
    # Whoever traces it first keeps us out.
    if have strace; then
        call 60 strace -f -o trace "${SPILL[@]}" -- ./static 8
        code_is 125 && says 'statically linked, .* takes ptrace' && clean || return
    fi
    # The program that it becomes is managed.
    call 60 "${SPILL[@]}" --stats=all -- ./later "$WORKLOAD" sequential --size 96M --passes 1
    code_is 0 && is_swapped "after an exec" && clean || return
    call 20 "${SPILL[@]}" -- ./later sh -c "exit 7"
    code_is 7 && clean || return
    case " ${MEMSPILL_ARGS[*]} " in
    *" --mode="*)
        call 60 "${SPILL[@]}" --stats=all -- ./later ./later ./static 96
        code_is 0 && is_swapped "after two execs" && clean
        ;;
    *) static_under_kernel ;;
    esac
}

# In a run in kernel mode it is paged by its agent, and so is what it becomes by any instruction.
static_under_kernel() {
    kernel_can_be || return 0
    call 60 "${SPILL[@]}" --mode=kernel --stats=all --check -- ./static 96
    code_is 0 && is_swapped kernel && clean || return
    call 60 "${SPILL[@]}" --mode=kernel --stats=all --check -- ./hidden ./static 96
    code_is 0 && is_swapped "by an instruction of its own" && clean || return
    # Programs of both modes, at the same time.
    call 60 "${SPILL[@]}" --mode=kernel --stats=all --check -- bash -c './static 96 & one=$!
        "$0" sequential --size 96M --passes 2 >/dev/null && wait $one' "$WORKLOAD"
    code_is 0 && is_swapped "both modes" && clean || return
    # The command is known by looking, within a second, where it has thrown the agent's name away.
    local start took
    start=$(now)
    call 20 "${SPILL[@]}" --mode=kernel -- ./without-environment ./later
    code_is 125 && says 'later is statically linked' && clean || return
    took=$(since "$start")
    awk -v s="$took" 'BEGIN { exit !(s < 3) }' || no "seen after $took s"
}

# Static programs that others run: by exec, from a shell, by posix_spawn, from a thread, many at once.
case_static-children() {
    compiled_static || return 0
    call 20 "${SPILL[@]}" --verbose -- true
    ! grep -q 'mode: kernel' err || kernel_can_be ||
        { SKIP="kernel mode is not possible"; return; }
    call 60 "${SPILL[@]}" --stats=all --check -- sh -c 'exec ./static 96'
    code_is 0 && is_swapped exec || return
    # With the signal mask that it would have, though it has blocked what memspill uses itself.
    local alone blocked
    for blocked in USR1,TERM SYS,SEGV,USR1; do
        alone=$(env --block-signal=$blocked ./static 80) || { no "it fails alone"; return; }
        call 60 "${SPILL[@]}" --stats=all -- env --block-signal=$blocked ./static 80
        code_is 0 && [ "$(cat out)" = "$alone" ] ||
            { no "$blocked: another output: $WHY $(cat out)"; return; }
    done
    call 60 "${SPILL[@]}" --stats=all -- bash -c './static 96; ./static 8 exit; echo $?'
    code_is 0 && is_swapped "a shell's child" || return
    [ "$(tail -n 1 out)" = 7 ] || { no "exit code $(tail -n 1 out) in place of 7"; return; }
    # A process whose exec fails goes on, and may try another.
    call 60 "${SPILL[@]}" --stats=all -- bash -c 'export LONG=$(head -c 200000 /dev/zero | tr "\0" x)
        ./static 8; echo $?; unset LONG; exec ./static 96'
    code_is 0 && is_swapped "after an exec that failed" || return
    [ "$(head -n 1 out)" = 126 ] || { no "exit code $(head -n 1 out) in place of 126"; return; }
    call 60 "${SPILL[@]}" --stats=all -- $PYTHON -c 'import subprocess, sys
sys.exit(subprocess.run(["./static", "96"], close_fds=False).returncode)'
    code_is 0 && is_swapped posix_spawn || return
    call 60 "${SPILL[@]}" --stats=all -- ./exec-from-thread 1 ./static 96
    code_is 0 && is_swapped "from a thread" || return
    for i in {1..10}; do
        call 60 "${SPILL[@]}" -- ./exec-from-thread 2 ./static 8
        code_is 0 || { WHY="from two threads: $WHY"; return; }
    done
    call 100 "${SPILL[@]}" --verbose -- $PYTHON "$TESTS/programs/static_signals.py" ./static 60
    code_is 0 || return
    ! grep -q 'outside the budget' err || { no "$(grep -m 1 outside err)"; return; }
    call 60 "${SPILL[@]}" --verbose -- bash -c 'for i in {1..40}; do ./static 2 exit & all+=($!); done
        for one in ${all[@]}; do wait $one; [ $? = 7 ] || exit 1; done'
    code_is 0 || return
    ! grep -q 'outside the budget' err || { no "$(grep -m 1 outside err)"; return; }
    clean
}

# static_run WHAT WORD...: in the mode of programs that are not static.
static_run() {
    local what=$1
    shift
    call 60 "${SPILL[@]}" --stats=all --verbose -- sh -c 'exec "$@"' sh "$@"
    code_is 0 || { WHY="$what: $WHY"; return 1; }
    ! grep -q 'outside the budget' err || { no "$what: $(grep -m 1 outside err)"; return 1; }
    is_swapped "$what"
}

# filtered_run WHAT: under a filter of ./runs that kills for what it takes to join, other programs run too,
# without the agent, but with all else that their environment says.
filtered_run() {
    local set='LD_PRELOAD=$LD_PRELOAD:libm.so.6' look='env | grep -aE "^(LD_PRELOAD|MEMSPILL_AGENT)"'
    call 20 "${SPILL[@]}" -- sh -c "$set exec ./runs filtered /bin/sh -c 'sleep 0.1; $look'"
    code_is 0 && [ "$(sort -u out)" = LD_PRELOAD=libm.so.6 ] ||
        { WHY="$1, filtered: $WHY $(cat out)"; return 1; }
    call 20 "${SPILL[@]}" -- sh -c './runs filtered ./static 8 exit'
    code_is 7 || { WHY="$1, filtered: $WHY $(cat out)"; return 1; }
    [ "$1" = 'with a loader' ] || return 0
    call 20 "${SPILL[@]}" -- ./runs filtered $PYTHON -c 'print(sum(bytes(100 << 20)))'
    code_is 0 && [ "$(cat out)" = 0 ] || { WHY="$1, filtered python: $WHY $(cat out)"; return 1; }
    # A filter that lets all of that pass is no reason to run without it.
    static_run "$1, harmless" ./runs harmless $PYTHON -c 'print(sum(bytearray(b"ab" * (50 << 20))))'
}

# What static programs run, and the children of their forks.
case_static-runs() {
    compiled_static || return 0
    call 20 "${SPILL[@]}" --verbose -- true
    ! grep -q 'mode: kernel' err || kernel_can_be || { SKIP="kernel mode is not possible"; return; }
    local compiler how ways
    gcc -O2 -pthread -o runs "$TESTS/programs/static_runs.c" && filtered_run 'with a loader' || return
    for compiler in 'gcc -static' 'gcc -static-pie' 'musl-gcc -static'; do
        have "${compiler%% *}" || { DID="without musl-gcc"; continue; }
        $compiler -O2 -pthread -o runs "$TESTS/programs/static_runs.c" ||
            { no "$compiler: does not compile"; return; }
        # All calls are trapped, so neither where it is loaded nor its C library matters much.
        ways='exec thread vfork popen failing'
        [ "$compiler" = 'gcc -static' ] || ways=exec
        [ $FULL = 0 ] || ways='exec function thread fork vfork spawn popen failing'
        for how in $ways; do
            # (Its function is compiled, differently each time.)
            [ "$compiler $how" != 'musl-gcc -static function' ] || continue
            static_run "$compiler, $how" ./runs $how ./static 96 || return
            [[ "$(cat out)" == *" tracer 0,"*"bad 0, child 0, caught 1, another program" ]] ||
                { no "$compiler, $how: $(cat out)"; return; }
        done
        for how in child grandchild; do
            static_run "$compiler, $how" ./runs $how 144 || return
        done
        filtered_run "$compiler" || return
    done
    # With groups, in agent mode, which traps all calls.
    gcc -static -O2 -pthread -o runs "$TESTS/programs/static_runs.c"
    for how in child grandchild; do
        call 60 "${SPILL[@]}" --group all,comm=runs --stats=all -- ./runs $how 144
        code_is 0 && is_swapped "a group, $how" || return
    done
    clean || return
    have go || { DID="without Go"; return; }
    compiled_go run go-run || return 0
    static_run "Go" ./go-run 1 ./static 128 || return
    static_run "Go, four at once" ./go-run 4 ./static 40 || return
    [ "$(grep -c 'bad 0, child 0' out)" = 4 ] || { no "Go, four at once: $(cat out)"; return; }
    clean
}

# compiled_go SOURCE PROGRAM: without the C library.
compiled_go() {
    mkdir -p go
    cp "$TESTS/programs/$1.go" go/main.go
    (cd go && GOCACHE=$WORK/go/cache GOFLAGS=-mod=mod CGO_ENABLED=0 go build \
        -o "../$2" main.go) >/dev/null 2>&1 ||
        { SKIP="go build does not work here"; return 1; }
}

# Programs of Go call the kernel by their own instructions, with stacks of their own.
case_static-go() {
    [ "$(uname -m)" = x86_64 ] || { SKIP="not x86-64"; return; }
    have go || { SKIP="no go"; return; }
    compiled_go job static-go || return 0
    local alone
    alone=$(./static-go 400000) || { no "it fails alone"; return; }
    call 100 "${SPILL[@]}" --stats=all --check -- ./static-go 400000
    code_is 0 && [ "$(cat out)" = "$alone" ] || { no "another output: $WHY $(cat out)"; return; }
    is_swapped static-go && clean
}
