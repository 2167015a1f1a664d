#!/bin/bash
# Real programs in half of the memory they need: the output must be the same, byte for byte.
#
# Each program runs unrestricted first; its peak of anonymous memory (whole tree) gives the budget, half of it
# (a third with --full), and 48M at least. Then it runs under memspill with that budget, and all its outputs
# are compared.

HELP="usage: tests/real_programs.sh [--memspill BIN] [--workload BIN] [--with 'ARGS'] [--full] [--keep]
                              [NAME...]
  --full     large sizes (sort of 500 MB and so on); the default is sized for CI
  --with     further arguments for memspill run, such as '--swap file:/tmp/x,size=2G'
  --list     names of the programs"
. "$(dirname "$0")/common.sh"

ALL=(sort numpy python sqlite redis gcc make node java-serial java cplusplus verify-threads mutate fork-storm
    stress-ng bash)
option() {
    [ "$1" = --list ] && { echo "${ALL[*]}"; exit; }
    return 1
}
parse_options "$@"
for name in "${NAMES[@]}"; do
    [[ " ${ALL[*]} " == *" $name "* ]] || { echo "unknown program '$name': ${ALL[*]}" >&2; exit 2; }
done

P=$TESTS/programs
PYTHON=/usr/bin/python3
size() { if [ $FULL = 1 ]; then echo "$2"; else echo "$1"; fi; }
need() { have "$1" || { SKIP="no $1"; return 1; }; }

# A program is up to three things: limit_NAME (seconds under memspill), prepare_NAME (common input in
# $WORK/input; sets SKIP where it cannot run) and run_NAME, which runs it as "${RUN[@]}" COMMAND in a folder
# of its own and leaves there, in out/, what is compared.

prepare_sort() { [ -s lines ] || $PYTHON "$P/lines.py" "$(size 130 500)" >lines; }
limit_sort() { size 300 1800; }
run_sort() { LC_ALL=C "${RUN[@]}" sort -S 400M --parallel=2 -T . -o out/sorted "$INPUT/lines"; }

prepare_numpy() { $PYTHON -c 'import numpy' 2>/dev/null || SKIP="no numpy for $PYTHON"; }
run_numpy() { OPENBLAS_NUM_THREADS=2 "${RUN[@]}" $PYTHON "$P/numpy_job.py" "$(size 200 500)" >out/text; }

run_python() { "${RUN[@]}" $PYTHON "$P/dicts.py" "$(size 5 40)" >out/text; }

prepare_sqlite() { need sqlite3; }
run_sqlite() {
    "${RUN[@]}" sqlite3 :memory: "create table size(n); insert into size values($(size 250000 1500000))" \
        ".read $P/job.sql" >out/text
}

prepare_redis() {
    need redis-server && need redis-cli || return
    [ -s second ] && return
    $PYTHON "$P/redis_load.py" "$(size 150000 700000)" first >first
    $PYTHON "$P/redis_load.py" "$(size 40000 150000)" second >second
}
# The second half of the writes comes while BGSAVE runs. The dump must hold what was there at the fork, the
# server what was written since; both digests are also those of the unrestricted run.
run_redis() {
    redis_up live "${RUN[@]}" || return
    local cli="redis-cli -s live.sock" code=0 server=$!
    {
        $cli --pipe <"$INPUT/first" &&
            $cli DEBUG DIGEST >out/at-the-fork &&
            $cli BGSAVE &&
            $cli --pipe <"$INPUT/second" &&
            redis-benchmark -s live.sock -q -n 8000 -r 10000 -t set,get -c 8 &&
            timeout 120 bash -c "until $cli INFO persistence | grep -q rdb_bgsave_in_progress:0
                do sleep 0.1; done" &&
            $cli INFO persistence | grep -q rdb_last_bgsave_status:ok &&
            timeout 60 bash -c "$cli --scan --pattern 'key:*' | xargs -r $cli UNLINK" >/dev/null &&
            $cli DEBUG DIGEST >out/after
    } >redis.log 2>&1 || { echo "redis: a step failed"; tail -3 redis.log; code=1; }
    $cli SHUTDOWN NOSAVE
    wait "$server" || { echo "redis: the server ended with $?"; code=1; }
    [ $code = 0 ] || return 1
    mv live.rdb dump.rdb
    redis_up dump || return
    redis-cli -s dump.sock DEBUG DIGEST >loaded
    redis-cli -s dump.sock SHUTDOWN NOSAVE
    cmp loaded out/at-the-fork ||
        { echo "redis: the dump does not hold what was there at the fork"; return 1; }
}
redis_up() { # NAME PREFIX...: starts a server on NAME.sock with NAME.rdb
    local name=$1 try
    shift
    "$@" redis-server --port 0 --unixsocket "$PWD/$name.sock" --dir "$PWD" --dbfilename "$name.rdb" \
        --save '' \
        --enable-debug-command local --daemonize no >"$name.log" 2>&1 &
    for try in $(seq 600); do
        redis-cli -s "$name.sock" PING 2>/dev/null | grep -q PONG && return
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    echo "redis: the server does not answer"
    tail -3 "$name.log"
    return 1
}

prepare_gcc() {
    need gcc || return
    [ -s big.c ] || $PYTHON "$P/make_c.py" "$(size 700 7000)" 1 >big.c
}
limit_gcc() { size 300 1200; }
run_gcc() { "${RUN[@]}" gcc -O2 -c "$INPUT/big.c" -o out/big.o; }

prepare_make() {
    need gcc && need make || return
    local n
    for n in 1 2 3 4 5 6 7 8; do
        [ -s part$n.c ] || $PYTHON "$P/make_c.py" "$(size 100 400)" $n >part$n.c
    done
    printf 'all: %s\n%%.o: %s/%%.c\n\tgcc -O2 -c $< -o $@\n' \
        "$(printf 'out/part%s.o ' 1 2 3 4 5 6 7 8)" . >Makefile
    sed -i "s,^%.o: .*,out/%.o: $PWD/%.c," Makefile
}
run_make() { "${RUN[@]}" make -s -j4 -f "$INPUT/Makefile"; }

prepare_node() { need node; }
run_node() { "${RUN[@]}" node "$P/job.js" "$(size 7 30)" >out/text; }

prepare_java() {
    need java && need javac || return
    [ -e Job.class ] || javac -d . "$P/Job.java" || SKIP="javac fails"
}
limit_java() { size 400 1800; }
run_java() { "${RUN[@]}" java -Xmx"$(size 300 600)m" -cp "$INPUT" Job "$(size 10 60)" >out/text; }
prepare_java-serial() { prepare_java; }
limit_java-serial() { limit_java; }
run_java-serial() {
    "${RUN[@]}" java -XX:+UseSerialGC -Xmx"$(size 300 600)m" -cp "$INPUT" Job "$(size 10 60)" >out/text
}

prepare_cplusplus() {
    need g++ || return
    [ -x threads ] || g++ -O2 -std=c++17 -pthread "$P/threads.cpp" -o threads || SKIP="g++ fails"
}
run_cplusplus() { "${RUN[@]}" "$INPUT/threads" "$(size 160 600)" >out/text; }

# These verify by themselves; their figures differ from run to run, so the exit code is what counts.
run_verify-threads() { "${RUN[@]}" "$WORKLOAD" verify-threads --size "$(size 160M 600M)" --threads 16 \
    --seconds "$(size 5 10)"; }
run_mutate() { "${RUN[@]}" "$WORKLOAD" mutate --size "$(size 160M 600M)" --threads 4 \
    --seconds "$(size 15 120)"; }
run_fork-storm() { "${RUN[@]}" "$WORKLOAD" fork-storm --size "$(size 160M 300M)" --forks "$(size 60 200)" \
    --live 4; }
prepare_stress-ng() { need stress-ng; }
run_stress-ng() {
    "${RUN[@]}" stress-ng --vm 2 --vm-bytes "$(size 200M 600M)" --verify --vm-ops "$(size 20000 60000)" \
        --quiet \
        --temp-path .
}

run_bash() { "${RUN[@]}" bash "$P/forks.sh" "$(size 150000 500000)" >out/text; }

limit() { if declare -F "limit_$1" >/dev/null; then "limit_$1"; else size 240 1200; fi; }

# one NAME KIND: runs in $WORK/NAME/KIND; sets TOOK and CODE.
one() {
    local dir=$WORK/$1/$2 start
    mkdir -p "$dir/out"
    start=$(now)
    # In the background, so that a signal to this script is served at once.
    (cd "$dir" && "run_$1") >"$dir/stdout" 2>"$dir/stderr" &
    { wait $!; } 2>/dev/null
    CODE=$?
    TOOK=$(since "$start")
    kill_ours
}

show() { # the last lines of what a run said
    tail -n 4 "$WORK/$1/$2/stderr" "$WORK/$1/$2/stdout" 2>/dev/null | grep -v -e '^$' -e '^==>' |
        sed 's/^/    /'
}

INPUT=$WORK/input
mkdir "$INPUT"
for name in "${ALL[@]}"; do
    wanted "$name" || continue
    SKIP=
    if declare -F "prepare_$name" >/dev/null; then
        cd "$INPUT" || exit 2
        "prepare_$name" || [ -n "$SKIP" ] || SKIP="its input could not be made"
        cd "$WORK" || exit 2
    fi
    if [ -n "$SKIP" ]; then skip "$name" "$SKIP"; continue; fi

    limit=$(limit "$name")
    peakfile=$WORK/$name.peak
    RUN=(timeout -k 5 "$limit" $PYTHON "$P/peak.py" "$peakfile" --)
    one "$name" native
    native=$TOOK
    if [ $CODE != 0 ]; then
        fail "$name" "without memspill it ends with $CODE"
        show "$name" native
        continue
    fi
    peak=$(cat "$peakfile")
    budget=$((peak / $(size 2 3)))
    [ $budget -gt 49152 ] || budget=49152
    RUN=(timeout -k 5 "$limit" "$MEMSPILL" run --memory-max "${budget}K" \
        --stats-json "$WORK/$name.json" "${MEMSPILL_ARGS[@]}" --)
    one "$name" spilled
    stolen=$(grep -oP '"pgsteal": \K[0-9]+' "$WORK/$name.json" 2>/dev/null)
    figures="budget $((budget / 1024))M, peak $((peak / 1024))M, $native s -> $TOOK s"
    if [ $CODE = 124 ] || [ $CODE = 137 ] && awk "BEGIN { exit !($TOOK >= $limit) }"; then
        fail "$name" "not done after $limit s, $figures"
    elif [ $CODE != 0 ]; then
        fail "$name" "ends with $CODE, $figures"
        show "$name" spilled
    elif ! difference=$(diff -rq "$WORK/$name/native/out" "$WORK/$name/spilled/out" 2>&1); then
        fail "$name" "other output, $figures"
        printf '%s\n' "$difference" | sed 's/^/    /'
    elif [ "${stolen:-0}" = 0 ] && [ "$peak" -gt "$budget" ]; then
        fail "$name" "nothing was swapped out, $figures"
    else
        ok "$name" "$figures"
    fi
    [ $KEEP = 1 ] || rm -rf "${WORK:?}/$name"
done
finish
