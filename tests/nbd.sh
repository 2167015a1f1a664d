#!/bin/bash
# Swap on NBD servers, with the real ones: nbdkit and its filters, qemu-nbd, nbd-server.
#
# They listen on sockets and ports of this machine and keep their data below $WORK; all of them end with this
# script, however it ends. After each case no process of memspill's may be left, and no program may have seen
# a wrong page. `fuse` uses an export as a file, by nbdfuse.

HELP="usage: tests/nbd.sh [--memspill BIN] [--workload BIN] [--with 'ARGS'] [--keep] [NAME...]
  --list     names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(servers fuse)
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    *) return 1 ;;
    esac
}
parse_options "$@"
PATH=$PATH:/usr/sbin:/sbin
TOOLS=(nbdkit qemu-nbd qemu-img nbd-server openssl)
for tool in "${TOOLS[@]}"; do have "$tool" || { "$REPO/scripts/install-test-packages.sh" >&2; break; }; done
for tool in "${TOOLS[@]}"; do have "$tool" || { skip all "no $tool"; finish; }; done
cd "$WORK" || exit 2
SPILL=("$MEMSPILL" run -m 60M "${MEMSPILL_ARGS[@]}")
# All pages are checked, and most of them do not fit into the pool.
MUTATE=("$WORKLOAD" mutate --size 150M --contents random)

no() { WHY=$1; return 1; }

# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1 + 1))
    shift
    while ! "$@" 2>/dev/null; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
answers() { (: <"/dev/tcp/127.0.0.1/$1"); }

# serve SOCKET|PORT COMMAND...: starts a server, which listens there; sets SERVER, its process.
SERVERS=()
serve() {
    local place=$1
    shift
    "$@" >>"$WORK/servers.log" 2>&1 &
    SERVER=$!
    SERVERS+=("$SERVER")
    case $place in
    */*) until_true 10 test -S "$place" ;;
    *) until_true 10 answers "$place" ;;
    esac || { end_servers; no "$1 does not listen at $place: $(tail -n 1 "$WORK/servers.log")"; }
}

end_servers() {
    [ ${#SERVERS[@]} = 0 ] || { kill -CONT "${SERVERS[@]}"; kill "${SERVERS[@]}"; wait "${SERVERS[@]}"; }
    SERVERS=()
    rm -f "$WORK"/*.sock
} 2>/dev/null

# start_KIND UNIX|TCP: the server, with an export of 256 MiB; sets ADDRESS.
SIZE=$((256 << 20))
where() { # UNIX|TCP EXPORT
    SOCK=$WORK/server.sock
    PORT=$(free_port)
    PLACE=$SOCK ADDRESS="nbd+unix:///$2?socket=$SOCK"
    [ "$1" = unix ] || PLACE=$PORT ADDRESS="nbd://127.0.0.1:$PORT/$2"
}
start_nbdkit() { # UNIX|TCP FILTERS-AND-PLUGIN...
    local listen
    where "$1" ""
    shift
    [ "$PLACE" = "$SOCK" ] && listen=(-U "$SOCK") || listen=(-i 127.0.0.1 -p "$PORT")
    serve "$PLACE" nbdkit -f "${listen[@]}" "$@"
}
start_nbdkit-memory() { start_nbdkit "$1" memory $SIZE; }
start_nbdkit-file() {
    rm -f disk.raw && truncate -s $SIZE disk.raw && start_nbdkit "$1" file disk.raw
}
start_qemu() { # UNIX|TCP FORMAT
    local listen
    where "$1" disk
    rm -f disk.img
    qemu-img create -q -f "$2" disk.img $SIZE || no "qemu-img ends with $?" || return
    [ "$PLACE" = "$SOCK" ] && listen=(-k "$SOCK") || listen=(-b 127.0.0.1 -p "$PORT")
    serve "$PLACE" qemu-nbd -t -e 16 -x disk -f "$2" --discard=unmap "${listen[@]}" disk.img
}
start_qemu-raw() { start_qemu "$1" raw; }
start_qemu-qcow2() { start_qemu "$1" qcow2; }
start_nbd-server() {
    where "$1" disk
    rm -f disk.raw && truncate -s $SIZE disk.raw
    # It listens on TCP in any case.
    {
        printf '[generic]\nlistenaddr = 127.0.0.1\nport = %s\n' "$PORT"
        [ "$PLACE" = "$PORT" ] || printf 'unixsock = %s\n' "$SOCK"
        printf '[disk]\nexportname = %s\ntrim = true\n' "$WORK/disk.raw"
    } >nbd-server.conf
    # It goes into the background, for else it serves one connection at a time.
    serve "$PLACE" nbd-server -C nbd-server.conf -p "$WORK/nbd-server.pid" || return
    SERVER=$(cat nbd-server.pid)
    SERVERS+=("$SERVER")
}
KINDS=(nbdkit-memory nbdkit-file qemu-raw qemu-qcow2 nbd-server)

# The others' own client finds an export of that size at each of them.
case_servers() {
    local kind transport found name
    for kind in "${KINDS[@]}"; do
        for transport in unix tcp; do
            "start_$kind" $transport || return
            found=$(qemu-img info --output=json "$ADDRESS" 2>&1)
            end_servers
            [[ $found == *"\"virtual-size\": $SIZE"* ]] || no "$kind by $transport: $found" || return
        done
    done
}

# A file whose length the file system does not change is swap as it is, and is ours the next time too.
is_swap_by_fuse() { # FILE
    local words
    for words in "" ",size=200M" ",overwrite,encrypt=off"; do
        timeout 60 "${SPILL[@]}" --swap "file:$1$words" -- "${MUTATE[@]}" --seconds 2 >out 2>&1 ||
            no "$words: ends with $?: $(tail -n 1 out)" || return
    done
    # All of it is given back; page 0 says whose it is.
    cmp -s -n $((SIZE - 4096)) -i 4096:0 "$1" /dev/zero || no "it still holds something"
}
at_exit() { fusermount3 -uz "$WORK/mounted" 2>/dev/null; return 0; }

case_fuse() {
    have nbdfuse && have fusermount3 && [ -e /dev/fuse ] ||
        { SKIP="no nbdfuse, no fusermount3 or no /dev/fuse"; return; }
    start_nbdkit-memory unix || return
    touch mounted
    nbdfuse mounted "$ADDRESS" >>servers.log 2>&1 &
    SERVERS+=($!)
    if until_true 10 grep -q "$WORK/mounted" /proc/mounts; then
        is_swap_by_fuse mounted
    else
        SKIP="nbdfuse cannot mount here: $(tail -n 1 servers.log)"
    fi
    fusermount3 -u mounted 2>/dev/null
    end_servers
    [ -z "$WHY" ]
}

run_cases "${ALL[@]}"
