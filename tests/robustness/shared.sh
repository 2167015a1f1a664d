# Shared memory: anonymous, of PostgreSQL, and files in RAM.
# Cases of robustness.sh.

# Half of what a program shares among its processes is swapped out.
shared() { # MEMORY-MAX NAME ARGUMENTS...: a program of this folder, which says nothing and is right
    local max=$1 name=$2
    shift 2
    gcc -O2 -pthread -o "$name" "$TESTS/programs/$name.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 120 "${RUN[@]}" --memory-max "$max" --check --stats-json stats.json \
        --swap-dir "$SWAP" -- "./$name" "$@"
    code_is 0 && took_shared && clean
}

took_shared() {
    local pages
    pages=$(grep -oP '"shared_pgsteal": \K\d+' stats.json)
    [ "${pages:-0}" -gt 1000 ] || no "$pages pages of shared memory were taken out"
}

case_shared-pool() { shared 32M shared_pool 64 5; }
case_shared-changes() { shared 32M shared_changes 48; }
case_shared-regrow() { shared 40M shared_regrow 64; }
case_shared-advice() { shared 48M shared_advice 64; }
case_shared-removed() { shared 24M shared_removed 48; }
case_shared-removed-raw() { shared 24M shared_removed 36 raw; }

# Memory that may not leave any more is too much by itself: the run ends, and says why.
case_shared-then-direct() {
    local name=shared_then_direct
    gcc -O2 -o $name "$TESTS/programs/$name.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 60 "${RUN[@]}" --memory-max 48M --swap-dir "$SWAP" -- ./$name 96 "$SWAP/direct"
    [ "$CODE" = 77 ] && { SKIP="no O_DIRECT there"; return; }
    code_is 137 && says "cannot be swapped out" && clean
}

case_shared-direct() {
    shared 48M shared_direct 8 "$SWAP/read-directly"
    [ "$CODE" = 77 ] && { SKIP="no O_DIRECT there"; BAD=(); }
}

# The server and its clients check their own data; the buffers are twice the budget.
postgres() { # SECONDS MEMSPILL-OPTION... : with KILL=1, one after the other is killed
    local folder
    folder=$(mktemp -d "${TMPDIR:-/tmp}/memspill-postgres.XXXXXX")
    call 170 bash "$TESTS/programs/postgres.sh" ${KILL:+--kill} "$MEMSPILL" "$folder" "$1" --memory-max 64M \
        --stats-json "$folder/stats.json" "${MEMSPILL_ARGS[@]}"
    cp "$folder/stats.json" stats.json 2>/dev/null
    rm -rf "$folder"
    [ "$CODE" = 77 ] && { SKIP="$(cat out)"; return; }
    [ "$CODE" = 0 ] || { no "$(tail -n 1 out)"; return; }
    took_shared && clean
}

case_shared-postgres() { postgres $((5 + 5 * FULL)); }
case_shared-postgres-killed() { KILL=1 postgres 3; }

case_shared-workers() {
    call 120 "${RUN[@]}" --memory-max 40M --check --stats-json stats.json \
        --swap-dir "$SWAP" -- $PYTHON "$TESTS/programs/shared_workers.py" 64
    code_is 0 && took_shared && clean
}

# Files of shared memory, with --shared=all.
shared_files() { # MEMORY-MAX MODE MIB
    gcc -O2 -o shared_files "$TESTS/programs/shared_files.c" 2>/dev/null || { SKIP="no gcc"; return; }
    call 120 "${RUN[@]}" --shared=all --memory-max "$1" --check --stats-json stats.json \
        --swap-dir "$SWAP" -- ./shared_files "$2" "$3"
    code_is 0 && clean
}

stat_is() { # NAME LEAST
    local found
    found=$(grep -oP "\"$1\": \K\d+" stats.json)
    [ "${found:-0}" -ge "$2" ] || no "$1 is $found"
}

case_shared-file-pool() { shared_files 40M pool 64 && [ -z "$SKIP" ] && took_shared; }
# Each of these uses ends its being managed, and in between it is managed again.
case_shared-file-calls() {
    shared_files 40M calls 24 && [ -z "$SKIP" ] && took_shared && stat_is shared_given_back 2
}

case_shared-file-unfit() {
    shared_files 48M sealed 16 && [ -z "$SKIP" ] && stat_is shared_left_alone 1 || return
    shared_files 48M readonly 16 && stat_is shared_left_alone 1 || return
    shared_files 48M private 16 && stat_is shared_given_back 1 || return
    shared_files 48M popen 16 && stat_is shared_given_back 1
}

# A run that has a file of that name swapped out.
hold_file() { # NAME
    gcc -O2 -o shared_files "$TESTS/programs/shared_files.c" 2>/dev/null || { SKIP="no gcc"; return 1; }
    rm -f "/dev/shm/$1" "/dev/shm/$1.go"
    start "${RUN[@]}" --shared=all --memory-max 40M --stats-json stats.json \
        --swap-dir "$SWAP" -- ./shared_files hold 32 "$1"
    until_true 60 grep -q ready out || no "it is not ready" || return
    # Pages of a file that are away take no room.
    local blocks
    blocks=$(stat -c %b "/dev/shm/$1")
    [ "$blocks" -lt 50000 ] || no "of the file $blocks blocks are in memory, $(cat out)"
}

case_shared-file-opened() {
    local name=memspill-opened-$$
    if hold_file $name; then
        timeout 20 ./shared_files verify 32 $name >outside 2>&1 ||
            no "read from outside: $(head -n 1 outside)"
        : >"/dev/shm/$name.go"
        ends 30
        code_is 0 && took_shared && stat_is shared_given_back 1
    fi
    rm -f "/dev/shm/$name" "/dev/shm/$name.go"
    clean
}

# The target is killed: what has a name is whole afterwards.
case_shared-file-kept() {
    local name=memspill-kept-$$
    if hold_file $name; then
        kill -KILL "$(pgrep -P $PID shared_files)"
        ends 30
        code_is 137 && took_shared
        ./shared_files verify 32 $name >outside 2>&1 || no "after the run: $(head -n 1 outside)"
    fi
    rm -f "/dev/shm/$name" "/dev/shm/$name.go"
    clean
}

# memspill is killed: what was swapped out is lost, and the file is empty rather than zeros.
case_shared-file-killed() {
    local name=memspill-killed-$$
    if hold_file $name; then
        kill -KILL $PID
        ends 30
        until_true 5 test ! -s "/dev/shm/$name" || no "the file has $(stat -c %s "/dev/shm/$name") bytes"
    fi
    rm -f "/dev/shm/$name" "/dev/shm/$name.go"
    clean
}

case_shared-file-numpy() {
    local numpy=
    $PYTHON -c 'import numpy' 2>/dev/null && numpy=numpy
    call 120 "${RUN[@]}" --shared=all --memory-max 40M --check --stats-json stats.json \
        --swap-dir "$SWAP" -- $PYTHON "$TESTS/programs/shared_memory.py" 64 $numpy
    code_is 0 && took_shared && clean
}
