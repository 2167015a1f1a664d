# Other users, other namespaces, and whoever lies to memspill or looks at what is not his.
# Cases of robustness.sh.

# As another user, with a device node of our own that this user may open.
case_unprivileged() {
    [ "$(id -u)" = 0 ] && have setpriv && have unshare && have setcap ||
        { SKIP="needs root, setpriv, unshare, setcap"; return; }
    local dir=$WORK/unprivileged node
    mkdir "$dir" && chmod 755 "$WORK" "$dir" && cp "$MEMSPILL" "$dir/memspill" &&
        cp "$MEMSPILL" "$dir/with-file-cap"
    node=$(stat -c '0x%t 0x%T' /dev/userfaultfd 2>/dev/null) && mknod -m 666 "$dir/node" c $node &&
        setcap cap_sys_ptrace+ep "$dir/with-file-cap" ||
            { SKIP="cannot make a device node or set capabilities"; return; }
    # with_node COMMAND...
    local with_node=(unshare -m bash -c 'mount --bind "$1" /dev/userfaultfd && shift && exec "$@"' \
        - "$dir/node")
    local user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    local ambient=(--inh-caps +sys_ptrace --ambient-caps +sys_ptrace)
    "${with_node[@]}" "${user[@]}" test -x "$dir/memspill" -a -w /dev/userfaultfd ||
        { SKIP="the user cannot reach a copy of memspill"; return; }
    local memory=(run -m 64M --swap ram: -- /usr/bin/python3 -c 'print(sum(bytearray(96 << 20)))')
    call 60 "${with_node[@]}" "${user[@]}" "${ambient[@]}" "$dir/memspill" "${memory[@]}"
    code_is 0 && [ "$(cat out)" = 0 ] || { no "the program's output is wrong: $(head -c 100 out)"; return; }
    if [ "$(uname -m)" = x86_64 ]; then
        call 60 "${with_node[@]}" "${user[@]}" "$dir/memspill" "${memory[@]}"
        code_is 0 && [ "$(cat out)" = 0 ] || { WHY="without the capability: $WHY"; return; }
        if compiled_agent_forks; then
            chmod 755 agent-forks
            local PREFIX=("${with_node[@]}" "${user[@]}") SPILLS=$dir/memspill DIR=$dir/swap
            mkdir -m 777 "$DIR"
            agent_forks kinds kept unseen threads || { WHY="without the capability: $WHY"; return; }
        fi
    fi
    call 60 "${with_node[@]}" "${user[@]}" "$dir/with-file-cap" "${memory[@]}"
    code_is 125 && says setcap || { WHY="with a file capability: $WHY"; return; }
    # Root has no limit on processes.
    call 60 "${with_node[@]}" "${user[@]}" "${ambient[@]}" bash -c 'ulimit -u 4; exec "$@"' \
        - "$dir/memspill" "${memory[@]}"
    code_is 125 && says 'ulimit -u' || { WHY="with a limit on processes: $WHY"; return; }
    call 60 "${with_node[@]}" "${user[@]}" "${ambient[@]}" bash -c 'ulimit -S -u 4; exec "$@"' \
        - "$dir/memspill" "${memory[@]}"
    code_is 125 && says 'agent was refused' ||
        { WHY="with a limit on the command's processes: $WHY"; return; }
    rm -r "$dir"
    clean
}

# Anything that keeps the agent out of the command ends the run, with 125 and one line.
unmanaged() { # WORDS COMMAND...
    local words=$1
    shift
    call 30 "${SPILL[@]}" -- "$@"
    code_is 125 && says "$words" || { WHY="$*: $WHY"; return 1; }
    [ "$(grep -c '^memspill: ' err)" = 1 ] || { no "$*: more than one line: $(cat err)"; return 1; }
    clean
}
case_no-agent() {
    # The loader is not told of it.
    unmanaged 'without memspill.s agent' env -u LD_PRELOAD sleep 20 || return
    # The agent cannot get the descriptors that it needs.
    unmanaged refused sh -c 'ulimit -n 4; exec sleep 20' || return
    # A loader that knows nothing of LD_PRELOAD, and a program that is over before it can be looked at.
    have gcc || { DID="without gcc, some were left out"; return; }
    cat >loader.c <<'END'
__attribute__((naked)) void _start(void) { __asm__("mov $60, %eax\n xor %edi, %edi\n syscall"); }
END
    echo 'int main(void) { return 0; }' >main.c
    gcc -nostdlib -static-pie -fPIE loader.c -o loader 2>/dev/null &&
        gcc main.c -o other-loader "-Wl,--dynamic-linker=$WORK/loader" ||
        { DID="without static-pie, some were left out"; return; }
    unmanaged 'without memspill.s agent' ./other-loader
}

# A program that was root becomes another user and runs programs: its loader may not open memspill's
# descriptors, which is what those of other users are closed to.
case_other-user() {
    [ "$(id -u)" = 0 ] && have setpriv || { SKIP="needs root and setpriv"; return; }
    local other=(setpriv --reuid 65534 --regid 65534 --clear-groups) program=$PYTHON how
    call 60 "${SPILL[@]}" --stats=all --check -- "${other[@]}" "$program" -c '
import os, subprocess
lists = [[number] * 40 for number in range(400_000)]
echo = subprocess.run(["/bin/sh", "-c", "id -u; /bin/echo again"], capture_output=True, text=True)
print(os.getuid(), sum(map(sum, lists)), echo.stdout.split(), echo.stderr)'
    code_is 0 && [ "$(cat out)" = "65534 3199992000000 ['65534', 'again'] " ] ||
        { WHY="$WHY: $(cat out)"; return; }
    is_swapped "of another user" && clean || return
    # In a shell, with what the shell says.
    for how in 'exec "$@"' '"$@"' '"$@" | cat; true'; do
        call 20 "${SPILL[@]}" --verbose -- sh -c "$how" sh "${other[@]}" /bin/sh -c 'id -u; /bin/true'
        code_is 0 && [ "$(cat out)" = 65534 ] || { WHY="$how: $WHY"; return; }
        ! grep -qE 'outside the budget|preloaded' err ||
            { no "$how: $(grep -m 1 -E 'outside|preloaded' err)"; return; }
    done
    # An environment that cannot be written, or is not there, is passed on as it is.
    call 20 "${SPILL[@]}" -- $PYTHON -c '
import ctypes, mmap, os
os.setresuid(65534, 65534, 65534)
libc = ctypes.CDLL(None, use_errno=True)
def run(environment):
    if os.fork() == 0:
        libc.execve(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None), environment)
        os._exit(ctypes.get_errno())
    return os.waitstatus_to_exitcode(os.wait()[1])
page = mmap.mmap(-1, mmap.PAGESIZE)
words = [f"{name}={value}".encode() for name, value in os.environ.items()]
strings = (ctypes.c_char_p * (len(words) + 1))(*words, None)
page.write(bytes(strings))
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.mprotect(ctypes.c_void_p(at), mmap.PAGESIZE, mmap.PROT_READ)
print(run(None), run(ctypes.c_void_p(8)), run(ctypes.c_void_p(at)))'
    code_is 0 && [ "$(cat out)" = "0 14 0" ] || { WHY="bad environments: $WHY $(cat out)"; return; }
    # A program that has become another user passes memory of its own to others, to free as well: in the child
    # of a vfork, and where an exec fails. Another library stays in LD_PRELOAD, wherever it stands.
    call 20 "${SPILL[@]}" -- $PYTHON -c '
import os, subprocess
os.setresuid(65534, 65534, 65534)
agent = os.environ["LD_PRELOAD"]
def run(**more):
    script = "grep -c r-xp.*/memspill-agent- /proc/self/maps; echo $LD_PRELOAD"
    return subprocess.run(["/bin/sh", "-c", script], env=dict(os.environ, **more), capture_output=True,
        text=True, close_fds=False)
for number in range(50):
    assert run().stdout.startswith("1\n/run/memspill-agent-"), run()
    try:
        os.execve("/nothing/there", ["there"], dict(os.environ))
    except FileNotFoundError:
        pass
for list in "libc.so.6:" + agent, agent + ":libc.so.6", "libc.so.6 " + agent + " libc.so.6":
    found = run(LD_PRELOAD=list)
    assert found.stdout.split("\n")[0] == "1" and not found.stderr, found
    assert found.stdout.count("libc.so.6") == list.count("libc.so.6"), found
print("done")'
    code_is 0 && [ "$(cat out)" = done ] || { WHY="its own environment: $WHY $(tail -n 1 err)"; return; }
    clean || return
    # In another root directory somebody else has put a file under the name of ours.
    mkdir -p root/{bin,run,proc,dev}
    local jail=(unshare --mount sh -c 'for at in bin lib lib64 usr proc; do
            mkdir -p root/$at; mount --rbind /$at root/$at; done
        echo "not ours" >root$(echo "$MEMSPILL_AGENT_FILE" | cut -d: -f1)
        exec chroot --userspec=65534:65534 root /bin/sh -c "echo in; /bin/echo \$LD_PRELOAD"')
    call 20 "${SPILL[@]}" -- sh -c '"$@"; true' sh "${jail[@]}"
    code_is 0 && [ "$(head -n 1 out)" = in ] && ! grep -q memspill-agent- out ||
        { WHY="in another root directory: $WHY $(cat out)"; return; }
    # And one who has the second name already, root too.
    call 20 "${SPILL[@]}" -- sh -c 'LD_PRELOAD=${MEMSPILL_AGENT_FILE%%:*} "$@"; true' sh "${jail[@]}"
    code_is 0 && [ "$(head -n 1 out)" = in ] && grep -q '^////*$' out ||
        { WHY="in another root directory, loaded by that name: $WHY $(cat out)"; return; }
    rm -r root/run
    clean || return
    # The file has no other user than memspill.
    start "${SPILL[@]}" -- "${other[@]}" sleep 1000
    until pgrep -U 65534 -x sleep >/dev/null || ! kill -0 $PID 2>/dev/null; do sleep 0.02; done
    [ "$(agents | wc -l)" = 1 ] || { no "files: $(agents)"; return; }
    kill -9 $PID
    ends 10
    code_is 137 && clean || return
    # If the guardian is killed too, the next run removes what is left.
    start "${SPILL[@]}" -- sleep 1000
    until [ -n "$(agents)" ] && pgrep -P $PID memspill-guard >/dev/null || ! kill -0 $PID 2>/dev/null; do
        sleep 0.02
    done
    # Stopped first: between two kills the guardian may run, and remove the file.
    local guardian=$(pgrep -P $PID memspill-guard)
    kill -STOP "$guardian"
    kill -9 $PID "$guardian"
    ends 10
    gone 5 || { no "left: $(ours)"; kill_ours; }
    [ "$(agents | wc -l)" = 1 ] || { no "files after both were killed: $(agents)"; return; }
    call 20 "${SPILL[@]}" -- true
    code_is 0 && clean
}

# Bad input, nothing, another user, a run that ends or is stopped.
case_ctl-strangers() {
    local name
    "$MEMSPILL" ctl --pid $$ swaps >ctl.out 2>&1 && { no "a shell answers"; return; }
    grep -q "^memspill: no run of ours has process id" ctl.out || { no "it says: $(cat ctl.out)"; return; }
    start "${SPILL[@]}" -- "$WORKLOAD" random --size 96M --seconds 30 --check full
    answers || return
    "$MEMSPILL" ctl list >ctl.out 2>&1 && grep -q "^ *$PID " ctl.out ||
        { no "not listed: $(cat ctl.out)"; return; }
    for wrong in "swapon zram:" "swapon file:/" "swapon file:$WORK/none/x" "swapoff nothing" \
        "swapoff default" "limit 4k"; do
        # shellcheck disable=SC2086
        ctl $wrong && { no "ctl $wrong is taken"; return; }
        [ "$(wc -l <ctl.out)" = 1 ] && grep -q '^memspill: ' ctl.out ||
            { no "ctl $wrong says: $(cat ctl.out)"; return; }
    done
    name=$(grep -o "@memspill-ctl-$PID-[0-9a-f]*" /proc/net/unix | head -n 1)
    $PYTHON "$TESTS/programs/ctl_strangers.py" "${name#@}" >ctl.out 2>&1 ||
        { no "$(tail -n 1 ctl.out)"; return; }
    ctl_ok swaps || return
    kill -STOP $PID
    timeout 20 "$MEMSPILL" ctl --pid $PID swaps >ctl.out 2>&1
    [ $? = 1 ] && grep -q 'is it stopped' ctl.out || no "of a run that is stopped: $(cat ctl.out)"
    kill -CONT $PID
    [ -z "$WHY" ] || return
    kill -9 $PID
    ends 10
    ctl swaps && { no "a run that has ended answers"; return; }
    clean
}

# The rights of the extra thread, and what the program may still do beside it.
case_privileges() {
    [ "$(id -u)" = 0 ] || { SKIP="not root"; return; }
    gcc -O1 -o privileges "$TESTS/programs/privileges.c" 2>/dev/null || { SKIP="no gcc"; return; }
    mkdir -p mnt
    call 60 "${SPILL[@]}" -- ./privileges "$WORK/mnt"
    umount mnt 2>/dev/null
    code_is 0 || { WHY="$WHY: $(grep -m 1 BAD out)"; return; }
    clean
}

# A run within a run would hold neither budget.
case_nested() {
    call 20 "${SPILL[@]}" -- "${RUN[@]}" -m 32M -- true
    code_is 125 || return
    grep -q 'inside another run of memspill' err || { no "it says: $(tail -n 1 err)"; return; }
    clean
}

# A program in a network namespace of its own reaches memspill all the same, and so does the child of a fork
# there.
case_network-namespace() {
    [ "$(id -u)" = 0 ] && unshare -n true 2>/dev/null || { SKIP="no network namespace can be made"; return; }
    # (`echo` alone would end before it joins.)
    call 60 "${SPILL[@]}" -- bash -c 'unshare -n -- bash -c "sleep 0 && echo inside"; echo outside'
    code_is 0 || return
    [ "$(tr '\n' ' ' <out)" = "inside outside " ] || { no "it printed: $(tr '\n' ' ' <out)"; return; }
    ! grep -q 'runs outside the budget' err || { no "$(grep 'runs outside the budget' err)"; return; }
    call 60 "${SPILL[@]}" -- "$PYTHON" "$TESTS/programs/fork_elsewhere.py" 40
    code_is 0 && clean
}

# A process that connects and is none of the run stalls nobody, gets nothing, and ends nothing.
door() {
    call 60 $PYTHON "$TESTS/programs/door.py" "$1" "${SPILL[@]}"
    code_is 0 && clean
}

case_door-strangers() { door strangers; }

case_door-namespace() {
    unshare -pf --mount-proc true 2>/dev/null || { SKIP="cannot make a pid namespace"; return; }
    door namespace
}

case_door-descriptors() { door descriptors; }

# Agents that lie. They can lose their own data only.
case_lying-uffd() {
    call 60 "${RUN[@]}" --memory-max 96M --swap-dir "$SWAP" \
        --stats-json stats.json -- \
        bash -c '
        coproc "$1" env -u LD_PRELOAD "$2" "$3" waits
        read -r -t 20 line <&"${COPROC[0]}" && [ "$line" = "let in" ] || exit 1
        "$0" random --size 192M --seconds 3 --check full || exit 2
        kill $COPROC_PID' "$WORKLOAD" setsid $PYTHON "$TESTS/programs/lying_agents.py"
    code_is 0 || return
    grep -qE '"pswpout": *[0-9]{5}' stats.json ||
        { no "the budget did not hold: $(grep pswpout stats.json)"; return; }
    clean
}

case_lying-evictor() {
    # Not as the command itself, which would be ended for having no agent.
    call 60 "${SPILL[@]}" -- bash -c '"$@"; exit 0' - env \
        -u LD_PRELOAD $PYTHON "$TESTS/programs/lying_agents.py" memory
    ! grep -q LEAKED out || { no "$(cat out)"; return; }
    code_is 125 && says 'cannot be read any more' && clean
}

# In a pid namespace with a /proc of its own, the number in the agent's path may be another process's.
case_other-proc() {
    unshare -pf --mount-proc test -w /proc/sys/kernel/ns_last_pid 2>/dev/null ||
        { SKIP="cannot choose a process id"; return; }
    local library=$(ldconfig -p | grep -oP 'libm\.so\.6 .*x86-64.* => \K.*' | head -n 1)
    [ -n "$library" ] || { SKIP="no libm"; return; }
    cat >other-proc.sh <<'END'
number=${LD_PRELOAD#/proc/} number=${number%%/*}
echo $((number - 1)) >/proc/sys/kernel/ns_last_pid
env -u LD_PRELOAD "$1" -c "import os, sys; [os.open('$2', 0) for _ in range(500)]
print(os.getpid(), flush=True); sys.stdin.read()" <&8 >&9 &
read -r there <&9
[ "$there" = "$number" ] || exit 3
cat /proc/self/maps
kill -9 $!
END
    rm -f back forth
    mkfifo back forth
    call 30 "${SPILL[@]}" -- unshare -pf \
        --mount-proc bash "$WORK/other-proc.sh" $PYTHON "$library" 8<>forth 9<>back
    code_is 0 || return
    grep -q '\[stack\]' out || { no "there are no maps"; return; }
    ! grep -q libm.so out || { no "a program there loads what another process has open"; return; }
    clean
}

# A fault in a child that is not the child's own, as when a tracer reads it, must not be taken for the
# child's.
case_read-from-outside() {
    gcc -O2 -o read-from-outside "$TESTS/programs/read_from_outside.c" 2>/dev/null ||
        { SKIP="no gcc"; return; }
    ./read-from-outside >/dev/null || { SKIP="processes may not trace each other here"; return; }
    call 120 "${SPILL[@]}" -- ./read-from-outside
    code_is 0 || return
    # The userfaultfd names threads as their own pid namespace does.
    unshare -pf true 2>/dev/null && call 120 "${SPILL[@]}" -- unshare -pf ./read-from-outside
    code_is 0 && clean
}
