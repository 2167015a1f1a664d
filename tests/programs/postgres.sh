#!/bin/bash
# PostgreSQL whose shared buffers are twice the budget:
#   postgres.sh [--kill] MEMSPILL FOLDER SECONDS MEMSPILL-OPTION...
#
# pgbench fills its tables and updates them from several clients. In the end the sums of all balances must be
# equal, and amcheck, where there is one, must find the indexes sound. Prints what was wrong, or the
# transactions made. Ends with 77 where there is no PostgreSQL. The server refuses to be root, so memspill is
# not root either: it has the capabilities that it needs.
#
# --kill: while pgbench runs, a server process is killed, then memspill itself. The server makes what was
# shared anew and recovers by its log, the second time when it is started again; no transaction may be half
# done.
set -u
KILL=
[ "$1" = --kill ] && { KILL=1; shift; }
MEMSPILL=$1 FOLDER=$2 SECONDS_LONG=$3
shift 3
BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -x "$BIN/postgres" ] && [ -x "$BIN/pgbench" ] && id postgres >/dev/null 2>&1 && [ "$(id -u)" = 0 ] ||
    { echo "no PostgreSQL, or not root"; exit 77; }
AS=(setpriv --reuid=postgres --regid=postgres --clear-groups)
CAPS=+sys_ptrace,+checkpoint_restore
CAPABLE=("${AS[@]}" --inh-caps=$CAPS --ambient-caps=$CAPS)
DATA=$FOLDER/data
mkdir -p "$DATA" "$FOLDER/swap"
cp "$MEMSPILL" "$FOLDER/memspill"
chown postgres "$FOLDER" "$DATA" "$FOLDER/swap"
cd "$DATA" || exit 1
ask() { "${AS[@]}" "$BIN/psql" -h "$DATA" -d postgres -tAX -c "$1" 2>&1; }
bench() { "${AS[@]}" "$BIN/pgbench" -h "$DATA" "$@" postgres 2>&1; }
MEMSPILL_OPTIONS=("$@")
SERVER=
start() {
    "${CAPABLE[@]}" "$FOLDER/memspill" run --swap-dir "$FOLDER/swap" "${MEMSPILL_OPTIONS[@]}" -- \
        "$BIN/postgres" -D "$DATA" -c shared_buffers=128MB -c huge_pages=off \
        -c unix_socket_directories="$DATA" -c listen_addresses= -c fsync=off -c max_wal_size=256MB \
        -c max_parallel_workers_per_gather=0 >>"$FOLDER/log" 2>&1 &
    SERVER=$!
    await
}
# Until it answers; what was killed before may have left its shared memory for a moment.
await() {
    for _ in $(seq 300); do
        [ "$(ask 'select 1')" = 1 ] && return
        kill -0 $SERVER 2>/dev/null || break
        sleep 0.1
    done
    finish 1 "the server does not answer"
}
finish() { # CODE WHAT
    "${AS[@]}" "$BIN/pg_ctl" -D "$DATA" -m fast -W stop >/dev/null 2>&1
    wait $SERVER
    local code=$?
    [ $code = 0 ] || { echo "the server ends with $code: $(grep -v LOG "$FOLDER/log" | tail -n 1)"; exit 1; }
    [ "$1" = 0 ] || tail -n 3 "$FOLDER/log"
    echo "$2"
    exit "$1"
}
check() { # WHEN
    local sums accounts
    sums=$(ask "select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all
        select sum(bbalance) from pgbench_branches union all select sum(tbalance) from pgbench_tellers
        union all select sum(delta) from pgbench_history) sums")
    [ "$sums" = 1 ] || finish 1 "the sums of balances differ $1: $sums"
    accounts=$(ask 'select count(*) from pgbench_accounts')
    [ "$accounts" = 1000000 ] || finish 1 "accounts are missing $1: $accounts"
}
# A server process that works for a client, and has the shared memory mapped.
backend() { ask "select pid from pg_stat_activity where backend_type = 'client backend'
    and pid <> pg_backend_pid() limit 1"; }
kill_some() {
    local client victim
    bench -n -c 4 -T 60 >"$FOLDER/first" &
    client=$!
    sleep 2
    victim=$(backend)
    [[ $victim =~ ^[0-9]+$ ]] || finish 1 "no server process to kill: $victim"
    kill -9 "$victim"
    wait $client && finish 1 "the clients did not notice that a server process was killed"
    sleep 0.5
    await
    check "after a server process was killed"
    bench -n -c 4 -T 60 >"$FOLDER/second" &
    client=$!
    sleep 2
    kill -9 $SERVER
    wait $SERVER
    wait $client && finish 1 "the clients did not notice that memspill was killed"
    for _ in $(seq 100); do
        kill -0 "$(head -n 1 "$DATA/postmaster.pid")" 2>/dev/null || break
        sleep 0.1
    done
    start
    check "after memspill was killed"
}

"${AS[@]}" "$BIN/initdb" -D "$DATA" -A trust --no-sync >/dev/null 2>&1 || { echo "initdb fails"; exit 1; }
start
bench -i -q -s 10 >"$FOLDER/init" || finish 1 "pgbench -i: $(tail -n 1 "$FOLDER/init")"
# All of it comes into the buffers.
ask "select count(*), sum(length(filler)) from pgbench_accounts" >/dev/null
bench -c 4 -T "$SECONDS_LONG" >"$FOLDER/bench" || finish 1 "pgbench: $(tail -n 1 "$FOLDER/bench")"
[ -z "$KILL" ] || kill_some
check "in the end"
if ask "create extension amcheck" | grep -q CREATE; then
    SOUND=$(ask "select count(bt_index_check(c.oid, true)) from pg_index i
        join pg_class c on c.oid = i.indexrelid
        where c.relam = 403 and c.relpersistence = 'p' and i.indisready and i.indisvalid")
    [[ $SOUND =~ ^[0-9]+$ ]] || finish 1 "an index is not sound: $SOUND"
fi
DONE=$(grep -o 'number of transactions actually processed: .*' "$FOLDER/bench")
finish 0 "$DONE, ${SOUND:-no} indexes checked"
