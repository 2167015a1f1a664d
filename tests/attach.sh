#!/bin/bash
# memspill attach, with real programs that run already. They check their own data all the time: before, while
# they are within a budget that is half of what they have, and after they were let go.

HELP="usage: tests/attach.sh [--memspill BIN] [--with 'ARGS'] [--keep] [NAME...]
  --short    those that tests/run.sh runs
  --list     names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(python node java redis postgres go threads untouched untouched_calls user bash children programs
    static outside arena again refused gdb inside other-user short interrupted killed ends options)
# Quick enough for tests/run.sh.
SHORT=(python threads untouched untouched_calls user refused inside killed ends interrupted)
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    --short) NAMES+=("${SHORT[@]}") ;;
    *) return 1 ;;
    esac
}
parse_options "$@"
cd "$WORK" || exit 2
touch forks # attached.py makes some
P=$TESTS/programs
BUDGET_MIB=80
SIZE_MIB=160
# Itself, and no script that becomes it.
PYTHON=$(python3 -c 'import sys; print(sys.executable)')

no() { WHY=$1; return 1; }

# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1 + 1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

PROGRAM= RUN=
# start COMMAND...: a program in the background, which says `round` on its stdout; sets PROGRAM.
start() {
    # A case that has failed may have left some.
    kill -9 $PROGRAM $RUN 2>/dev/null
    rm -f said
    "$@" </dev/null >said 2>program.err &
    PROGRAM=$!
    rounds 1
}
count() { grep -c "^round" said; }
more_than() { [ "$(count)" -gt "$1" ]; }
# Waits for so many more rounds, all of them right.
rounds() {
    local before
    before=$(count)
    until_true 120 more_than $((before + $1 - 1)) ||
        no "no more rounds after $before: $(tail -n 1 said program.err | tr '\n' ' ')"
}

# attach [OPTION...] PID: in the background, until it is attached; sets RUN.
attach() {
    : >err
    "$MEMSPILL" attach -m ${BUDGET_MIB}M "${MEMSPILL_ARGS[@]}" "$@" >out 2>err &
    RUN=$!
    until_true 60 is_attached_or_over
    grep -q "attached to" err || no "it is not attached: $(tail -n 1 err)"
}
is_attached_or_over() { grep -q "attached to" err || ! kill -0 $RUN; }

# over_with CODE: the attach ends so, within 60 s.
over_with() {
    local code
    until_true 60 has_ended $RUN || no "memspill attach does not end: $(tail -n 1 err)" || return
    wait $RUN
    code=$?
    [ $code = "$1" ] || no "memspill attach ends with $code: $(tail -n 1 err)"
}
has_ended() { ! kill -0 "$1"; }

# The kB of these lines of /proc/PID/status.
kib() { # PID NAME...
    local pid=$1
    shift
    awk -v names=" $* " 'index(names, " " $1 " ") { sum += $2 } END { print sum + 0 }' "/proc/$pid/status"
}
# held PID...: for three seconds the programs have no more memory than the budget and a twentieth of it.
held() {
    local most=0 now pid
    for _ in $(seq 30); do
        now=$(kib $RUN RssAnon: RssShmem:)
        for pid; do now=$((now + $(kib "$pid" RssAnon:))); done
        [ $now -le $most ] || most=$now
        sleep 0.1
    done
    HELD="$((most >> 10)) MiB of $BUDGET_MIB"
    [ $((most * 20)) -le $((BUDGET_MIB * 21 << 10)) ] || no "it takes $HELD"
}
# Something is away.
is_swapped() { "$MEMSPILL" ctl --pid $RUN stats | awk '$2 == "swapped_bytes" { exit $3 + 0 == 0 }'; }

# The program is at it still, and ends well when it is told to.
goes_on() {
    rounds 2 || return
    is_bare "$PROGRAM" || return
    stops
}
stops() {
    local code
    kill -TERM "$PROGRAM"
    wait "$PROGRAM"
    code=$?
    [ $code = 0 ] && ! grep -qi wrong said ||
        no "the program ends with $code: $(tail -n 2 said program.err | tr '\n' ' ')"
}
# Nothing of memspill is in it: no thread, no mapping.
is_bare() {
    ! grep -qE "memfd:memspill|memspill-agent" "/proc/$1/maps" || no "the agent is left mapped" || return
    ! grep -qx memspill /proc/"$1"/task/*/comm || no "a thread is left"
}

# The whole of it for a program: attached, held, let go.
through() { # COMMAND...
    start "$@" && rounds 3 || return
    # (Pages that are shared with a child cannot leave, so with forks it takes more for moments.)
    rm forks
    attach "$PROGRAM" && rounds 1 && until_true 60 settled && held "$PROGRAM" && touch forks && rounds 2 &&
        detach && goes_on
}
settled() { [ $((($(kib "$PROGRAM" RssAnon:) + $(kib $RUN RssAnon: RssShmem:)) >> 10)) -le $BUDGET_MIB ]; }
detach() {
    timeout 60 "$MEMSPILL" ctl --pid $RUN detach >ctl.out 2>&1 || no "ctl detach: $(cat ctl.out)" || return
    over_with 0
}

case_python() { through "$PYTHON" "$P/attached.py" $SIZE_MIB; }
case_node() { have node || { SKIP="no node"; return; }; through node "$P/attached.js" $SIZE_MIB; }
case_java() {
    have javac || { SKIP="no javac"; return; }
    javac -d . "$P/Attached.java" && through java -Xmx$((SIZE_MIB * 3))m -cp . Attached $SIZE_MIB
}
case_go() {
    have go || { SKIP="no go"; return; }
    cp "$P/attached.go" . && CGO_ENABLED=0 GO111MODULE=off go build -o attached attached.go ||
        { SKIP="go build fails"; return; }
    through ./attached $SIZE_MIB
}
# Threads in the midst of system calls.
case_threads() {
    gcc -O2 -pthread -o in_calls "$P/in_calls.c" || { no "it is not compiled"; return; }
    # (Its forks leave pages shared, which take more for moments.)
    start ./in_calls $SIZE_MIB && attach "$PROGRAM" && rounds 20 && until_true 60 is_swapped && detach &&
        goes_on
}

# A program has memory mapped that it touches for the first time now: it waits for room.
case_untouched() {
    cat >untouched.py <<'PY'
import mmap, os, time
PAGES = 300 << 8
memory = mmap.mmap(-1, PAGES << 12, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while not os.path.exists("touch"):
    print("round", flush=True)
    time.sleep(0.1)
for page in range(PAGES):
    memory[page << 12 : (page << 12) + 4] = page.to_bytes(4, "little")
is_right = all(memory[page << 12 : (page << 12) + 4] == page.to_bytes(4, "little") for page in range(PAGES))
print("touched", flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
print("right" if is_right and not any(memory[8:4096]) else "WRONG", flush=True)
PY
    local most
    start "$PYTHON" untouched.py && attach "$PROGRAM" && touch touch || return
    until_true 120 grep -qx touched said || no "it does not end: $(tail -n 1 program.err)" || return
    most=$(($(kib "$PROGRAM" VmHWM:) - $(kib "$PROGRAM" RssFile: RssShmem:)))
    [ $((most * 20)) -le $((BUDGET_MIB * 21 << 10)) ] || no "it took $((most >> 10)) MiB of $BUDGET_MIB" ||
        return
    detach && is_bare "$PROGRAM" && touch end && wait "$PROGRAM" && grep -qx right said ||
        no "${WHY:-the program ends with $?: $(tail -n 1 said program.err | tr '\n' ' ')}"
}

# The same by system calls, as stacks, and in the child of a fork.
case_untouched_calls() {
    gcc -O2 -pthread -o untouched "$P/untouched.c" || { no "it is not compiled"; return; }
    rm -f touch
    start ./untouched && attach "$PROGRAM" && touch touch && rounds 3 && detach && goes_on
}

# A server: its digest is the same before, while it is attached, after a dump by a fork, and when it is let
# go.
case_redis() {
    local cli="redis-cli -s $WORK/redis.sock" before
    have redis-server && have redis-cli || { SKIP="no redis"; return; }
    redis-server --port 0 --unixsocket "$WORK/redis.sock" --dir "$WORK" --dbfilename dump.rdb --save '' \
        --enable-debug-command local >redis.log 2>&1 &
    PROGRAM=$!
    until_true 20 $cli PING || no "it does not answer: $(tail -n 1 redis.log)" || return
    python3 "$P/redis_load.py" 200000 first | $cli --pipe >load.log 2>&1 ||
        no "$(tail -n 1 load.log)" || return
    before=$($cli DEBUG DIGEST)
    attach $PROGRAM && until_true 20 settled && held $PROGRAM && {
        [ "$($cli DEBUG DIGEST)" = "$before" ] || no "another digest while it is attached"
    } && {
        $cli BGSAVE >/dev/null
        python3 "$P/redis_load.py" 20000 second | $cli --pipe >load.log 2>&1
        redis-benchmark -s "$WORK/redis.sock" -q -n 4000 -r 10000 -t set,get -c 8 >bench.log 2>&1 ||
            no "redis-benchmark: $(tail -n 1 bench.log)"
    } && {
        until_true 60 bash -c "$cli INFO persistence | grep -q rdb_bgsave_in_progress:0"
        $cli INFO persistence | grep -q rdb_last_bgsave_status:ok || no "BGSAVE fails: $(tail -n 2 redis.log)"
    } && before=$($cli DEBUG DIGEST) && detach && is_bare $PROGRAM && {
        [ "$($cli DEBUG DIGEST)" = "$before" ] || no "another digest when it was let go"
    }
    $cli SHUTDOWN NOSAVE 2>/dev/null
    wait $PROGRAM || no "${WHY:-the server ends with $?}"
}

# The postmaster, as root; its later server processes are within the budget too.
case_postgres() {
    local bin data=$WORK/data as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    [ -x "$bin/pgbench" ] && id postgres >/dev/null 2>&1 && [ "$(id -u)" = 0 ] ||
        { SKIP="no PostgreSQL, or not root"; return; }
    chmod 755 "$WORK" && mkdir "$data" && chown postgres "$data" || return
    "${as[@]}" "$bin/initdb" -D "$data" -A trust --no-sync >initdb.log 2>&1 || { no "initdb fails"; return; }
    (cd "$data" && exec "${as[@]}" "$bin/postgres" -D "$data" -c shared_buffers=32MB -c huge_pages=off \
        -c unix_socket_directories="$data" -c listen_addresses= -c fsync=off -c work_mem=256MB \
        -c max_parallel_workers_per_gather=0) >postgres.log 2>&1 &
    PROGRAM=$!
    ask() { "${as[@]}" "$bin/psql" -h "$data" -d postgres -tAX -c "$1" 2>&1; }
    until_true 20 is_one "ask 'select 1'" || no "it does not answer: $(tail -n 1 postgres.log)" || return
    # A sort and a hash in the memory of a server process that came later.
    local query="select count(*), sum(n), md5(string_agg(s, '')) from (select n, md5(n::text) s from
        generate_series(1, 400000) n order by s) x" right
    right=$(ask "$query")
    BUDGET_MIB=120 attach $PROGRAM && {
        [ "$(ask "$query")" = "$right" ] || no "another answer: $(ask "$query")"
    } && {
        "${as[@]}" "$bin/pgbench" -h "$data" -i -q -s 2 postgres >bench.log 2>&1 &&
            "${as[@]}" "$bin/pgbench" -h "$data" -c 4 -T 3 postgres >bench.log 2>&1 ||
            no "pgbench: $(tail -n 1 bench.log)"
    } && detach && is_bare $PROGRAM && {
        [ "$(ask "$query")" = "$right" ] || no "another answer when it was let go"
    }
    "${as[@]}" "$bin/pg_ctl" -D "$data" -m fast -W stop >/dev/null 2>&1
    wait $PROGRAM || no "${WHY:-the server ends with $?}"
}
is_one() { [ "$(eval "$1")" = 1 ]; }

# A shell, whose later programs are within the budget.
case_bash() {
    local most
    cat >loop.sh <<'SH'
trap 'wait; echo right; exit 0' TERM
n=0
while :; do
    n=$((n + 1))
    sum=$(python3 -c 'import zlib; b = bytearray(range(256)) * (400 << 10); print(zlib.crc32(b))')
    [ "$sum" = "${first:=$sum}" ] || { echo WRONG "$sum"; exit 1; }
    echo round $n
done
SH
    start bash loop.sh && attach "$PROGRAM" && rounds 2 && {
        most=$("$MEMSPILL" ctl --pid $RUN stats | awk '$2 == "pgsteal" { print $3 }')
        [ "${most:-0}" -gt 1000 ] || no "its programs are not within the budget: $most pages were swapped out"
    } && detach && goes_on
}

# Children that live on: they are let go too.
case_children() {
    cat >parent.py <<'PY'
import os, signal, sys, time, zlib
block = os.urandom(60 << 20)
sum_before, children, ended = zlib.crc32(block), [], []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
n = 0
while not ended:
    if not children and os.path.exists("fork"):
        for _ in range(3):
            child = os.fork()
            if child == 0:
                own = bytearray(os.urandom(20 << 20))
                own_sum = zlib.crc32(own)
                while not ended:
                    if zlib.crc32(block) != sum_before or zlib.crc32(own) != own_sum:
                        os._exit(1)
                    time.sleep(0.02)
                os._exit(0)
            children.append(child)
    if zlib.crc32(block) != sum_before:
        print("WRONG", flush=True)
        sys.exit(1)
    n += 1
    print("round", n, flush=True)
    time.sleep(0.1)
for child in children:
    os.kill(child, signal.SIGTERM)
ends = [os.waitpid(child, 0)[1] for child in children]
print("WRONG" if any(ends) else "right", len(children), flush=True)
PY
    local child
    start "$PYTHON" parent.py && rounds 3 && attach "$PROGRAM" && touch fork && rounds 5 &&
        until_true 30 is_swapped && sleep 2 && detach || return
    for child in $(pgrep -P "$PROGRAM"); do is_bare "$child" || return; done
    goes_on && { grep -q 'right 3' said || no "its children: $(tail -n 1 said)"; }
}

# Programs that it has started meanwhile keep the agent: memspill says so, and waits for their end. Later ones
# have nothing of it.
case_programs() {
    cat >worker.py <<'PY'
import os, time, zlib
block = os.urandom(100 << 20)
before = zlib.crc32(block)
while not os.path.exists("end"):
    time.sleep(0.05)
print("worker", "right" if zlib.crc32(block) == before else "WRONG", flush=True)
PY
    start_starter "$PYTHON" worker.py && attach "$PROGRAM" && touch begin &&
        until_true 60 is_swapped || return
    timeout 60 "$MEMSPILL" ctl --pid $RUN detach >ctl.out 2>&1 || no "ctl detach: $(cat ctl.out)" || return
    is_bare "$PROGRAM" && until_true 5 grep -q 'waits for the end of .*(python' err ||
        no "${WHY:-it is not said who stays: $(tail -n 1 err)}" || return
    touch later && until_true 20 grep -qx "later bare" said || no "$(grep later said)" || return
    kill -0 $RUN || no "memspill has ended, and a program has the agent" || return
    touch end && over_with 0 && until_true 20 grep -qx "worker right" said ||
        no "${WHY:-$(grep worker said)}" || return
    stops
}

# Its children run static programs while they are let go, for which they ask memspill, and all of these end
# well.
case_static() {
    local _
    cat >shells.sh <<'SH'
trap 'touch stop; wait; echo right; exit 0' TERM
loop() {
    while [ ! -e stop ]; do
        (for _ in {1..4000}; do :; done; exec ./ends) || echo WRONG $?
    done
}
while :; do
    if [ -e begin ]; then rm begin; for _ in 1 2 3 4 5 6; do loop & done; fi
    sleep 0.1
    echo round
done
SH
    echo 'int main(void) { return 0; }' >ends.c && gcc -static -o ends ends.c 2>/dev/null ||
        { SKIP="no static C library"; return; }
    for _ in 1 2 3; do
        rm -f stop
        start bash shells.sh && attach "$PROGRAM" && touch begin && rounds 8 || return
        timeout 60 "$MEMSPILL" ctl --pid $RUN detach >ctl.out 2>&1 || no "ctl detach: $(cat ctl.out)" ||
            return
        rounds 2 && is_bare "$PROGRAM" && stops && over_with 0 || return
    done
}

# A program that memspill could not take in goes on when the others are let go.
case_outside() {
    local outside=(unshare -n setpriv --reuid=65534 --regid=65534 --clear-groups) child
    [ "$(id -u)" = 0 ] && unshare -n true 2>/dev/null || { SKIP="needs root, and unshare -n"; return; }
    start_starter "${outside[@]}" sleep 60 && attach "$PROGRAM" && touch begin &&
        until_true 20 pgrep -P "$PROGRAM" -x sleep -u 65534 || return
    child=$(pgrep -P "$PROGRAM" -x sleep -u 65534)
    until_true 20 grep -q "$child runs outside the budget" program.err || no "it is not outside" || return
    timeout 60 "$MEMSPILL" ctl --pid $RUN detach >ctl.out 2>&1 || no "ctl detach: $(cat ctl.out)" || return
    sleep 1
    kill -0 "$child" || no "it is killed" || return
    kill -0 $RUN || no "memspill does not wait for it: $(tail -n 1 err)" || return
    kill "$child"
    over_with 0 && stops
}
# start_starter COMMAND...: a shell that starts this once there is a file `begin`; and says what programs have
# of memspill, for `later`.
start_starter() {
    cat >starter.sh <<'SH'
trap 'wait; echo right; exit 0' TERM
while :; do
    if [ -e begin ]; then rm begin; "$@" & fi
    if [ -e later ]; then rm later; bash -c 'echo "later ${LD_PRELOAD-bare}"'; fi
    sleep 0.1
    echo round
done
SH
    start bash starter.sh "$@"
}

# A library has its range managed: nothing else leaves, and programs that it starts have nothing of memspill.
case_arena() {
    cat >arena.py <<'PY'
import ctypes, mmap, os, signal, subprocess, sys, time, zlib
MAP_NORESERVE = 0x4000
def made(mib, flags):
    # As the library's: no one mapping with what is beside it.
    memory = mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    memory[:] = os.urandom(1 << 20) * mib
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return memory, start, start + (mib << 20)
arena, start, end = made(int(sys.argv[1]), MAP_NORESERVE)
outside, from_, to = made(60, 0)
with open("bounds", "w") as file:
    print(f"{start:x}-{end:x} {from_:x}-{to:x}", file=file)
sums, ended = (zlib.crc32(arena), zlib.crc32(outside)), []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
while not ended:
    said = subprocess.run(["sh", "-c", "echo ${LD_PRELOAD-bare}"], capture_output=True, text=True).stdout
    if said != "bare\n" or (zlib.crc32(arena), zlib.crc32(outside)) != sums:
        print("WRONG", said, flush=True)
        sys.exit(1)
    print("round", flush=True)
    time.sleep(0.1)
print("right", flush=True)
PY
    local arena outside
    start "$PYTHON" arena.py $SIZE_MIB && read -r arena outside <bounds &&
        attach --arena="$arena" "$PROGRAM" && rounds 2 && until_true 30 is_swapped && rounds 5 || return
    arena=$(there "$arena") outside=$(there "$outside")
    [ "$outside" = 60 ] || no "outside of the arena $outside MiB of 60 are there" || return
    [ "$arena" -le $((BUDGET_MIB * 21 / 20)) ] || no "$arena MiB of the arena are there" || return
    detach && goes_on
}
# MiB of a range of the program's that are in memory.
there() {
    python3 - "$PROGRAM" "$1" <<'PY'
import struct, sys
start, end = (int(bound, 16) >> 12 for bound in sys.argv[2].split("-"))
with open(f"/proc/{sys.argv[1]}/pagemap", "rb") as pagemap:
    pagemap.seek(start * 8)
    entries = struct.unpack(f"{end - start}Q", pagemap.read((end - start) * 8))
print(sum(entry >> 63 for entry in entries) >> 8)
PY
}

# A library is told by --ready-fd; a swap that is full ends the program, if it is to.
case_options() {
    start "$PYTHON" "$P/attached.py" $SIZE_MIB || return
    mkfifo ready
    "$MEMSPILL" attach -m ${BUDGET_MIB}M --ready-fd 7 "$PROGRAM" 7>ready 2>err &
    RUN=$!
    [ "$(timeout 20 cat ready)" = "attached $PROGRAM" ] || no "not told: $(tail -n 1 err)" || return
    rounds 1 && detach || return
    "$MEMSPILL" attach -m ${BUDGET_MIB}M --ready-fd 7 1 7>ready 2>err &
    timeout 20 cat ready | grep -q '^error: ' || no "no error is told" || return
    attach --swap ram:size=10M --on-full=kill "$PROGRAM" && over_with 137 || return
    wait "$PROGRAM"
    [ $? = 137 ] || no "the program is not killed when its swap is full"
}

# Attached to by its own user, who is not root.
case_user() {
    local as=(setpriv --reuid=65534 --regid=65534 --clear-groups) scope
    [ "$(id -u)" = 0 ] || { SKIP="not root"; return; }
    scope=$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null)
    [ "${scope:-0}" = 0 ] || { SKIP="kernel.yama.ptrace_scope is $scope"; return; }
    chmod 755 "$WORK" && mkdir -m 777 user && cp "$MEMSPILL" user/memspill && cp in_calls user 2>/dev/null ||
        gcc -O2 -pthread -o user/in_calls "$P/in_calls.c" || { no "it is not compiled"; return; }
    start "${as[@]}" user/in_calls $SIZE_MIB || return
    : >err # What another case has said there.
    "${as[@]}" user/memspill attach -m ${BUDGET_MIB}M --swap-dir user "$PROGRAM" >out 2>err &
    RUN=$!
    until_true 60 is_attached_or_over
    grep -q "attached to" err || no "it is not attached: $(tail -n 1 err)" || return
    rounds 10 && until_true 60 is_swapped && kill -INT $RUN && over_with 0 && goes_on
}

GROUP=
at_exit() { [ -z "$GROUP" ] || rmdir "$GROUP"; }
# The program is in a container with too little room for what is away: it stays attached until there is more.
case_short() {
    local group=/sys/fs/cgroup/memory/memspill-test-$$ limit
    [ "$(id -u)" = 0 ] && [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ] && mkdir -p "$group" ||
        { SKIP="needs root and a memory cgroup of version 1"; return; }
    limit=$group/memory.limit_in_bytes
    GROUP=$group
    start bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$PYTHON" "$P/attached.py" $SIZE_MIB &&
        rounds 1 && attach "$PROGRAM" && until_true 60 settled || return
    echo $(((BUDGET_MIB + 40) << 20)) >"$limit" || no "the limit is refused" || return
    ! timeout 60 "$MEMSPILL" ctl --pid $RUN detach >ctl.out 2>&1 || no "it was let go" || return
    grep -q "are swapped out and .* are free" ctl.out || no "$(tail -n 1 ctl.out)" || return
    rounds 2 && held "$PROGRAM" || return
    echo -1 >"$limit" && detach && goes_on
}

# refuses TEXT ARGUMENT...: one line, which says that, and exit code 125.
refuses() {
    local text=$1 code
    shift
    timeout 30 "$MEMSPILL" attach -m ${BUDGET_MIB}M "$@" >out 2>err
    code=$?
    [ "$code" = 125 ] && [ "$(wc -l <err)" = 1 ] && grep -qE -- "$text" err && [ ! -s out ] ||
        no "$* ends with $code: $(head -c 300 err)"
}
case_refused() {
    local zombie
    refuses 'no process 4194999' 4194999 && refuses 'has started this' $$ &&
        refuses 'invalid value' python3 && refuses 'PID' || return
    if grep -qs '^Kthread:.1' /proc/2/status; then refuses 'thread of the kernel' 2 || return; fi
    "$PYTHON" -c 'import subprocess, time; p = subprocess.Popen(["true"]); time.sleep(60)' &
    zombie=$!
    until_true 10 pgrep -P $zombie -r Z && refuses 'has ended' "$(pgrep -P $zombie)" || no "${WHY:-no zombie}"
    kill $zombie
    sleep 30 &
    BUDGET_MIB=1 refuses 'too small' $!
    kill $!
    [ -z "$WHY" ]
}
case_gdb() {
    have gdb || { SKIP="no gdb"; return; }
    sleep 60 &
    PROGRAM=$!
    gdb -q -batch -p $PROGRAM -ex 'python import time; time.sleep(20)' >gdb.out 2>&1 &
    until_true 10 grep -q 'TracerPid:.[1-9]' /proc/$PROGRAM/status || no "gdb does not attach" || return
    refuses 'traced by process [0-9]+ \(gdb\)' $PROGRAM
    kill %% $PROGRAM
    [ -z "$WHY" ]
}
case_inside() {
    "$MEMSPILL" run -m 60M -- sleep 30 &
    RUN=$!
    until_true 10 pgrep -P $RUN -x sleep
    refuses "ctl --pid $RUN limit" "$(pgrep -P $RUN -x sleep)" && refuses 'memspill itself' $RUN
    kill $RUN
    wait $RUN
    [ -z "$WHY" ]
}
case_other-user() {
    [ "$(id -u)" = 0 ] || { SKIP="not root"; return; }
    sleep 30 &
    PROGRAM=$!
    setpriv --reuid=65534 --regid=65534 --clear-groups "$MEMSPILL" attach -m 60M --swap ram: $PROGRAM 2>err
    [ $? = 125 ] && grep -q "another user's" err || no "$(tail -n 1 err)"
    kill $PROGRAM
    [ -z "$WHY" ]
}

# ^C twice: it is let go, and nothing ends.
case_interrupted() {
    local signal
    for signal in INT TERM HUP; do
        start "$PYTHON" "$P/attached.py" $SIZE_MIB && attach "$PROGRAM" && rounds 1 || return
        kill -$signal $RUN
        sleep 0.2
        kill -$signal $RUN 2>/dev/null
        over_with 0 && goes_on || no "SIG$signal: $WHY" || return
    done
}
# Killed in one way or other, memspill takes the program with it: a page that reads as zeros would be worse.
case_killed() {
    start "$PYTHON" "$P/attached.py" $SIZE_MIB && attach "$PROGRAM" && rounds 1 &&
        until_true 20 is_swapped || return
    kill -KILL $RUN
    until_true 5 has_ended "$PROGRAM" || no "the program goes on without its pages" || return
    ! grep -q WRONG said || no "$(grep WRONG said)"
}
# It ends with the program.
case_ends() {
    start "$PYTHON" "$P/attached.py" $SIZE_MIB && attach "$PROGRAM" && rounds 1 && stops && over_with 0
}
# Attached to and let go, again and again.
case_again() {
    start "$PYTHON" "$P/attached.py" $SIZE_MIB || return
    for _ in 1 2 3; do
        attach "$PROGRAM" && rounds 1 && detach || return
    done
    goes_on
}

run_cases "${ALL[@]}"
