#!/bin/bash
# Swap on NBD servers, with the real ones: nbdkit and its filters, qemu-nbd, nbd-server.
#
# They listen on sockets and ports of this machine and keep their data below $WORK; all of them end with this
# script, however it ends. After each case no process of memspill's may be left, and no program may have seen
# a wrong page. `fuse` uses an export as a file, by nbdfuse. `link` makes a network namespace, as root.

HELP="usage: tests/nbd.sh [--memspill BIN] [--workload BIN] [--with 'ARGS'] [--keep] [NAME...]
  --short    those that tests/run.sh runs
  --list     names of the cases"
. "$(dirname "$0")/common.sh"

KINDS=(nbdkit-memory nbdkit-file qemu-raw qemu-qcow2 nbd-server)
ALL=(servers conformance fuse "${KINDS[@]/#/right-}"
    refused tls tls-refused moved tenth delay rate pause blocks odd-size one-connection no-trim errors
    hangs-up full killed restarted back-refused emptied stopped stopped-for-good filling interrupted link
    mirror altered ctl)
# Quick enough for tests/run.sh.
SHORT=(right-nbdkit-memory restarted emptied ctl)
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    --short) NAMES+=("${SHORT[@]}") ;;
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
# Another device, for what a server does not take.
MORE=(--swap "file:$WORK/more")
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
answers() { (: <"/dev/tcp/$1/$2"); }

# serve SOCKET|PORT|HOST:PORT COMMAND...: starts a server, which listens there; sets SERVER, its process.
SERVERS=()
serve() {
    local place=$1
    SERVED=("$@")
    shift
    "$@" >>"$WORK/servers.log" 2>&1 &
    SERVER=$!
    SERVERS+=("$SERVER")
    case $place in
    */*) until_true 10 test -S "$place" ;;
    *:*) until_true 10 answers "${place%:*}" "${place#*:}" ;;
    *) until_true 10 answers 127.0.0.1 "$place" ;;
    esac || { end_servers; no "$1 does not listen at $place: $(tail -n 1 "$WORK/servers.log")"; }
}

end_server() { kill -9 "$1" && wait "$1"; } 2>/dev/null

# The last server once more, at the same place.
again() {
    case ${SERVED[0]} in */*) rm -f "${SERVED[0]}" ;; esac
    serve "${SERVED[@]}"
}

end_servers() {
    # nbdkit waits for its clients, also those that the link has lost.
    [ ${#SERVERS[@]} = 0 ] || { kill -9 "${SERVERS[@]}"; wait "${SERVERS[@]}"; }
    SERVERS=()
    rm -f "$WORK"/*.sock
} 2>/dev/null

# start_KIND UNIX|TCP: the server, with an export of 256 MiB; sets ADDRESS.
SIZE=$((256 << 20))
where() { # UNIX|TCP EXPORT
    SOCK=$WORK/${NAME:-server}.sock EXPORT=$2
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
        printf '[disk]\nexportname = %s\ntrim = %s\n' "$WORK/disk.raw" ${TRIM:-true}
    } >nbd-server.conf
    # It goes into the background, for else it serves one connection at a time.
    serve "$PLACE" nbd-server -C nbd-server.conf -p "$WORK/nbd-server.pid" || return
    SERVER=$(cat nbd-server.pid)
    SERVERS+=("$SERVER")
}
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

# The suite of the backings (crates/backing/tests/conformance.rs), over each server, and by TLS.
case_conformance() {
    local kind transport suite
    have cargo || { SKIP="no cargo"; return; }
    suite=$(cd "$REPO" && cargo test --release --workspace --locked --test conformance --no-run 2>&1 |
        grep -o 'target/[^)]*/conformance-[0-9a-f]*') || no "it does not compile" || return
    for transport in unix tcp; do
        for kind in "${KINDS[@]}"; do
            "start_$kind" $transport && conforms "$suite"
            end_servers
            [ -z "$WHY" ] || no "$kind by $transport: $WHY" || return
        done
    done
    make_certificates &&
        start_nbdkit tcp --tls=require --tls-certificates="$WORK/tls/server" memory $SIZE &&
        NBD_CACERT=tls/ca-cert.pem conforms "$suite"
    end_servers
    [ -z "$WHY" ]
}
conforms() { # SUITE
    [ "$PLACE" = "$SOCK" ] || PLACE=127.0.0.1:$PORT
    NBD_SERVER=$PLACE NBD_EXPORT=$EXPORT "$REPO/$1" --test-threads=1 nbd_given >out 2>&1 &&
        grep -q '^test result: ok. [1-9][0-9] passed' out || no "$(grep -m 3 -A 2 panicked out)"
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
at_exit() {
    { fusermount3 -uz "$WORK/mounted"; umount "$WORK/small"; ip netns del memspill-$$; } 2>/dev/null
    return 0
}

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

# The certificates of an authority, of its server 127.0.0.1, of a server with another name, and of a client.
make_certificates() {
    [ ! -d tls ] || return 0
    mkdir -p tls/{server,other,own,self,old} || return
    make_certificate authority tls/ca "" && make_certificate stranger tls/stranger "" &&
        make_certificate 127.0.0.1 tls/server/server "IP:127.0.0.1,DNS:localhost" &&
        make_certificate elsewhere.example tls/other/server "DNS:elsewhere.example" &&
        make_certificate client tls/client "DNS:client" &&
        make_certificate 127.0.0.1 tls/own/server "IP:127.0.0.1" itself &&
        make_certificate 127.0.0.1 tls/self/server "IP:127.0.0.1" authority &&
        make_certificate 127.0.0.1 tls/old/server "IP:127.0.0.1" expired ||
        no "openssl: $(tail -n 1 openssl.log)" || return
    for folder in server other own self old; do cp tls/ca-cert.pem tls/$folder/ || return; done
}
make_certificate() { # NAME FILE NAMES-OF-A-SERVER [itself|authority|expired]: by ca, or by itself
    local by=(-addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign) ca=FALSE
    [ "${4:-}" != authority ] || ca=TRUE
    if [ -n "$3" ]; then
        by=(-addext "subjectAltName=$3" -addext basicConstraints=CA:$ca)
        [ -n "${4:-}" ] || by+=(-CA tls/ca-cert.pem -CAkey tls/ca-key.pem)
    fi
    printf '[req]\ndistinguished_name = name\n[name]\n' >tls/openssl.conf # without the system's extensions
    openssl req -x509 -config tls/openssl.conf -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -days 2 -subj "/CN=$1" -keyout "$2-key.pem" -out "$2-cert.pem" "${by[@]}" >>openssl.log 2>&1 || return
    [ "${4:-}" = expired ] || return 0
    openssl x509 -in "$2-cert.pem" -CA tls/ca-cert.pem -CAkey tls/ca-key.pem -CAcreateserial -days -1 \
        -out "$2-expired.pem" >>openssl.log 2>&1 && mv "$2-expired.pem" "$2-cert.pem"
}

# begin SECONDS WORDS... [-- OPTIONS...]: the verifier with the export as its swap, in the background. WORDS
# are parts of the SPEC.
begin() {
    local seconds=$1 words=
    shift
    while [ $# -gt 0 ]; do
        [ "$1" != -- ] || { shift; break; }
        words+=,$1
        shift
    done
    rm -f stats.json
    BEGAN=$SECONDS
    set -m # in a group of its own, it does not ignore SIGINT
    "${SPILL[@]}" "$@" --stats-json stats.json --swap "$ADDRESS$words" -- \
        "${MUTATE[@]}" --seconds "$seconds" >out 2>err &
    RUN=$!
    set +m
}

# ends SECONDS: the run ends within that time; sets CODE, and TOOK from its beginning.
ends() {
    local limit=$((SECONDS + $1 + 1))
    while kill -0 $RUN 2>/dev/null; do
        sleep 0.1
        [ $SECONDS -ge $limit ] || continue
        kill -9 $(left)
        wait $RUN
        CODE=hung
        no "it hangs: $(tail -n 1 err)"
        return
    done 2>/dev/null
    wait $RUN
    CODE=$?
    TOOK=$((SECONDS - BEGAN))
}

mutates() { # as begin
    begin "$@"
    ends $(($1 + 90))
}

# It ended well, and pages were on the server and came from there.
is_right() {
    [ "$CODE" = 0 ] || no "ends with $CODE: $(tail -n 1 err)" || return
    grep -q '"bad_pages":0' out || no "it did not check its pages: $(tail -n 1 out)" || return
    python3 - stats.json <<'PY' || no "few pages were there: $(grep -A8 servers stats.json | tr -d '\n')"
import json, sys
servers = [server for device in json.load(open(sys.argv[1]))["devices"] for server in device["servers"]]
sys.exit(not all(server["sent_bytes"] > 4 << 20 < server["received_bytes"] for server in servers[:1]))
PY
    nothing_left
}

# No process of memspill's, nor of what ran under it.
left() {
    local pid
    for pid in $(ours); do
        case $(cat "/proc/$pid/comm" 2>/dev/null) in memspill*) echo "$pid" ;; esac
    done
}
is_empty() { [ -z "$("$@")" ]; }
nothing_left() {
    ! grep -q 'BAD PAGE' out err || no "$(grep -h -m 1 'BAD PAGE' out err)" || return
    until_true 3 is_empty left || no "left: $(ps -o args= -p "$(left | paste -sd,)")"
}

# refuses TEXT SPEC: one line, which says that, and exit code 125.
refuses() {
    local code lines
    timeout 30 "${SPILL[@]}" --swap "$2" -- true >out 2>err
    code=$?
    lines=$(wc -l <err)
    [ "$code" = 125 ] && [ "$lines" = 1 ] && grep -qE -- "$1" err && [ ! -s out ] ||
        no "$2 ends with $code: $(head -c 300 err)"
}

# The server of a case, one run with its words, and the server's end.
right_with() { # SECONDS WORDS...
    mutates "$@"
    is_right
    end_servers
    [ -z "$WHY" ]
}

right() { # KIND
    local transport
    for transport in unix tcp; do
        "start_$1" $transport && right_with 4 || no "by $transport: $WHY" || return
    done
}
for kind in "${KINDS[@]}"; do eval "case_right-$kind() { right $kind; }"; done

case_refused() {
    local port
    start_qemu tcp raw || return
    refuses 'no export "?other' "${ADDRESS/disk/other}" &&
        refuses 'are needed' "$ADDRESS,size=1G" &&
        refuses 'in RAM|no room|fit|needed|larger' "$ADDRESS,size=100T"
    end_servers
    [ -z "$WHY" ] || return
    refuses 'connect' "$ADDRESS" && refuses 'connect' "nbd+unix:///?socket=$WORK/nothing.sock" &&
        refuses 'no host no-such-host.invalid' nbd://no-such-host.invalid/ || return
    start_nbdkit unix -r memory $SIZE && refuses 'read-only' "$ADDRESS"
    end_servers
    [ -z "$WHY" ] && start_nbdkit unix memory 4096 && refuses 'larger' "$ADDRESS"
    end_servers
    [ -z "$WHY" ] && start_nbdkit unix --filter=blocksize-policy memory $SIZE blocksize-minimum=65536 \
        blocksize-preferred=65536 blocksize-maximum=1M blocksize-error-policy=error &&
        refuses 'block' "$ADDRESS"
    end_servers
    # A file system of somebody, which may be overwritten if one says so.
    [ -z "$WHY" ] || return
    truncate -s $SIZE disk.raw && mkfs.ext4 -q -F disk.raw && start_nbdkit unix file disk.raw &&
        refuses 'ext.*overwrite' "$ADDRESS" && mutates 2 overwrite && is_right
    end_servers
    rm -f disk.raw
    [ -z "$WHY" ] || return
    port=$(free_port)
    # A server of something else: one that waits for the client's words, and one that does not.
    serve "$port" python3 -m http.server -b 127.0.0.1 "$port" && refuses 'not answer' "nbd://127.0.0.1:$port/"
    end_servers
    [ -z "$WHY" ] || return
    serve "$WORK/greeter.sock" python3 -c '
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
while True: server.accept()[0].send(b"220 mail.example ESMTP, at your service\r\n")
' "$WORK/greeter.sock" && refuses 'no NBD' "nbd+unix:///?socket=$WORK/greeter.sock"
    end_servers
    [ -z "$WHY" ] || return
    start_nbdkit-memory unix || return
    "${SPILL[@]}" --swap "$ADDRESS" -- sleep 20 2>/dev/null &
    until_true 5 is_used_by "$!" && refuses 'in use' "$ADDRESS"
    kill "$!"
    wait "$!"
    end_servers
    [ -z "$WHY" ]
}
is_used_by() { "$MEMSPILL" ctl --pid "$1" swaps 2>/dev/null | grep -q nbd; }

case_tls() {
    local transport
    make_certificates || return
    for transport in unix tcp; do
        start_nbdkit $transport --tls=require --tls-certificates="$WORK/tls/server" memory $SIZE || return
        ADDRESS=${ADDRESS/nbd/nbds}
        right_with 4 cacert=tls/ca-cert.pem || no "nbdkit by $transport: $WHY" || return
    done
    # The server wants to know who we are.
    start_nbdkit tcp --tls=require --tls-certificates="$WORK/tls/server" --tls-verify-peer memory $SIZE ||
        return
    ADDRESS=${ADDRESS/nbd:/nbds:}
    right_with 2 cacert=tls/ca-cert.pem cert=tls/client-cert.pem key=tls/client-key.pem
}

tls_with() { # FOLDER
    start_nbdkit tcp --tls=require --tls-certificates="$WORK/tls/$1" memory $SIZE || return
    ADDRESS=${ADDRESS/nbd:/nbds:}
}

case_tls-refused() {
    make_certificates || return
    start_nbdkit tcp --tls=require --tls-certificates="$WORK/tls/server" memory $SIZE || return
    local plain=$ADDRESS tls=${ADDRESS/nbd:/nbds:}
    refuses 'nbds://' "$plain" && refuses 'by nobody .*cacert=FILE' "$tls" &&
        refuses 'by nobody .*cacert=FILE' "$tls,cacert=tls/stranger-cert.pem" &&
        refuses 'for 127.0.0.1, localhost and not for elsewhere.example: .*tls-hostname=NAME' \
            "$tls?tls-hostname=elsewhere.example,cacert=tls/ca-cert.pem" &&
        refuses 'nothing.pem.*no such file' "$tls,cacert=nothing.pem" &&
        refuses 'PEM form: name one that does' "$tls,cacert=out"
    end_servers
    [ -z "$WHY" ] && tls_with own && refuses 'by nobody .*itself .*cacert=FILE' "$ADDRESS" &&
        right_with 2 cacert=tls/own/server-cert.pem
    end_servers
    [ -z "$WHY" ] && tls_with self &&
        refuses 'CA:TRUE.*cacert=FILE' "$ADDRESS,cacert=tls/self/server-cert.pem"
    end_servers
    [ -z "$WHY" ] && tls_with old && refuses 'has expired: .*new one' "$ADDRESS,cacert=tls/ca-cert.pem"
    end_servers
    [ -z "$WHY" ] && start_nbdkit tcp memory $SIZE && refuses 'nbd://' "${ADDRESS/nbd:/nbds:}"
    end_servers
    [ -z "$WHY" ] && tls_with other &&
        refuses 'for elsewhere.example and not for 127.0.0.1' "$ADDRESS,cacert=tls/ca-cert.pem"
    end_servers
    [ -z "$WHY" ] && start_nbdkit tcp --tls=require --tls-certificates="$WORK/tls/server" --tls-verify-peer \
        memory $SIZE && refuses 'cert=FILE and key=FILE' "${ADDRESS/nbd:/nbds:},cacert=tls/ca-cert.pem"
    end_servers
    [ -z "$WHY" ]
}

# Its name leads to another address than before, where the server is now. (As root: another /etc/hosts.)
case_moved() {
    local spill=("${SPILL[@]}")
    unshare -m true 2>/dev/null || { SKIP="no mount namespaces here"; return; }
    local SPILL=(unshare -m sh -c 'mount --bind hosts /etc/hosts && exec "$@"' sh "${spill[@]}")
    rm -f disk.raw && truncate -s $SIZE disk.raw
    echo 127.0.0.1 store.test >hosts
    where tcp ""
    ADDRESS=nbd://store.test:$PORT/
    serve "$PORT" nbdkit -f -i 127.0.0.1 -p "$PORT" file disk.raw || return
    begin 6 timeout=30 && gets_going && {
        end_server "$SERVER"
        echo 127.0.0.2 store.test >hosts
        serve "127.0.0.2:$PORT" nbdkit -f -i 127.0.0.2 -p "$PORT" file disk.raw && ends 60 && is_right
    }
    over
}

case_delay() { start_nbdkit unix --filter=delay memory $SIZE rdelay=2ms wdelay=5ms && right_with 5; }
case_rate() { start_nbdkit tcp --filter=rate memory $SIZE rate=100M && right_with 5; }
case_blocks() {
    start_nbdkit unix --filter=blocksize-policy memory $SIZE blocksize-minimum=4096 blocksize-preferred=4096 \
        blocksize-maximum=65536 blocksize-error-policy=error && right_with 4
}
case_odd-size() { start_nbdkit unix memory $((SIZE + 1000)) && right_with 3; }
case_one-connection() {
    start_nbdkit unix --filter=multi-conn memory $SIZE multi-conn-mode=disable && right_with 4 connections=8
}
case_no-trim() {
    TRIM=false start_nbd-server tcp && right_with 4
}

# A minute in which a tenth of all pages is there.
case_tenth() { start_nbdkit-memory unix && right_with 60 size=15M prio=9 -- "${MORE[@]}"; }

# It answers nothing for a while, in the middle of things.
case_pause() {
    start_nbdkit unix --filter=pause memory $SIZE pause-control="$WORK/pause.sock" || return
    (
        sleep 2
        for _ in 1 2 3; do
            python3 - "$WORK/pause.sock" 2>/dev/null <<'PY' # until the server has ended
import socket, sys, time
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[1])
control.send(b"p"); control.recv(1)
time.sleep(1.5)
control.send(b"r"); control.recv(1)
PY
            sleep 1
        done
    ) &
    right_with 10
}

# Each error that the protocol has: a program ends well, or is told that pages are lost; none is wrong.
case_errors() {
    local errno what
    for errno in EPERM EIO ENOMEM EINVAL ENOSPC ESHUTDOWN; do
        for what in pread pwrite trim; do
            # Not while it is looked at whether the export can be used.
            rm -f flag
            start_with_errors $errno $what || return
            begin 3 timeout=5 -- --on-full=grow
            until_true 10 is_used_by $RUN
            touch flag
            ends 93
            end_servers
            case $CODE in
            0) ;;
            135) grep -q 'read error' err || no "$errno of $what: nobody says why: $(tail err)" || return ;;
            *) no "$errno of $what: ends with $CODE: $(tail -n 1 err)"; return ;;
            esac
            [[ $CODE = 0 || $what = pread && $errno != ESHUTDOWN ]] ||
                no "$errno of $what: $(tail -n 1 err)" || return
            [ $errno$what != ESHUTDOWNpread ] || came_back || return
            nothing_left || return
        done
    done
}
start_with_errors() { # ERRNO pread|pwrite|trim: of the requests of that kind 1 %, once there is a file `flag`
    if [ "$1" = ESHUTDOWN ]; then
        where unix ""
        serve "$SOCK" python3 "$TESTS/programs/shutdown_nbd.py" "$SOCK" $SIZE "$2" "$WORK/flag"
    else
        start_nbdkit unix --filter=error memory $SIZE error="$1" error-"$2"-rate=1% \
            error-"$2"-file="$WORK/flag"
    fi
}
# The error ends the connection, and the request is sent again on the next one: nothing is lost.
came_back() {
    grep -qE '"reconnects": [1-9]' stats.json || no "it was not connected to again"
}

# The server is always there again, and hangs up at the same request: that is over after timeout= too.
case_hangs-up() {
    local what
    for what in pread pwrite; do
        rm -f flag
        where unix ""
        serve "$SOCK" \
            python3 "$TESTS/programs/shutdown_nbd.py" "$SOCK" $SIZE $what "$WORK/flag" hang-up || return
        begin 12 timeout=3 prio=9 -- "${MORE[@]}"
        until_true 10 is_used_by $RUN
        touch flag
        ends 60
        end_servers
        if [ $what = pread ]; then
            # SIGBUS, of the program or of one of its children.
            { [ "$CODE" = 135 ] || grep -q 'ended with Some(Signal(7))' err; } && grep -q 'read error' err ||
                no "$what: $CODE: $(tail -n 1 err)" || return
        else
            [ "$CODE" = 0 ] || no "$what: $CODE: $(tail -n 1 err)" || return
        fi
        came_back && nothing_left || return
    done
}

# The server's disk is full before the export is: others take what does not fit.
case_full() {
    mkdir -p small && mount -t tmpfs -o size=30M none small 2>/dev/null || { SKIP="cannot mount"; return; }
    truncate -s $SIZE small/disk.raw && start_nbdkit unix file small/disk.raw || return
    mutates 4 prio=9 -- "${MORE[@]}"
    is_right && mutates 4 && { [ "$CODE" = 137 ] && grep -q 'swap is full' err || no "alone: $CODE"; }
    end_servers
    umount small
    [ -z "$WHY" ]
}

# Some pages are on the server, and more go there.
gets_going() {
    until_true 30 has_pages_there || no "no page goes to the server: $(tail -n 1 err)"
}
has_pages_there() {
    "$MEMSPILL" ctl --pid $RUN stats --json | python3 -c '
import json, sys
devices = json.load(sys.stdin)["devices"]
sys.exit(not any(server["sent_bytes"] > 20 << 20 for device in devices for server in device["servers"]))'
}
state_is() { [ "$("$MEMSPILL" ctl --pid $RUN swaps | awk '/nbd/ { print $6 }')" = "$1" ]; }

# Who needs a page of the server ends, and is told why, and the rest goes on; within so many seconds from now.
is_lost() { # SECONDS
    ends "$1" || return
    [ "$CODE" = 135 ] || no "ends with $CODE, not by SIGBUS: $(tail -n 1 err)" || return
    grep -qE 'memspill: .*lost' err || no "nobody says that it is lost: $(tail -n 1 err)" || return
    nothing_left
}

# with_run KIND WORDS...: a server of that kind, and a run that has begun with its export.
with_run() {
    "start_$1" unix || return
    shift
    begin "$@" && gets_going
}
over() { # what remains to be done, however it went
    [ -z "$(left)" ] || { kill -9 $(left); wait $RUN; } 2>/dev/null
    end_servers
    [ -z "$WHY" ]
}

# Back within its time, with what it held: nobody notices more than a pause.
case_restarted() {
    with_run nbdkit-file 6 timeout=30 && {
        end_server "$SERVER"
        sleep 1
        again && ends 60 && is_right
    }
    over
}

# Back without what it held: never zeros for pages, and nobody waits for the time-out.
case_emptied() {
    with_run nbdkit-memory 8 timeout=60 prio=9 -- "${MORE[@]}" && {
        end_server "$SERVER"
        again && is_lost 20 && says 'is back without what it held: it holds zeros'
    }
    over
}

# Back in a way in which it cannot be used, which a line says, and then as it should be.
case_back-refused() {
    local good
    with_run nbdkit-file 8 timeout=60 && {
        good=("${SERVED[@]}")
        end_server "$SERVER"
        rm -f "$SOCK"
        serve "$SOCK" nbdkit -f -U "$SOCK" -r file disk.raw &&
            until_true 10 said 'answers, and cannot be used: the export is read-only: .*; .* wait' &&
            "$MEMSPILL" ctl --pid $RUN swaps | grep -q 'away for .* s (the export is read-only' &&
            { end_server "$SERVER"; rm -f "$SOCK"; serve "${good[@]}"; } && ends 60 && is_right &&
            said 'is there again' || no "${WHY:-it says}: $(grep server err)"
    }
    over
}
said() { grep -qE "its server $1" err; }
says() { said "$1" || no "no line says '$1': $(grep server err)"; }

case_killed() {
    with_run nbdkit-file 12 timeout=5 prio=9 -- "${MORE[@]}" && {
        end_server "$SERVER"
        sleep 1
        state_is away || no "it is not away: $("$MEMSPILL" ctl --pid $RUN swaps)"
    } && is_lost 20
    over
}

# (nbdkit 1.32 may abort on waking, as its clients of before have gone.)
case_stopped() {
    with_run qemu-raw 6 timeout=60 && {
        kill -STOP "$SERVER"
        sleep 30
        kill -CONT "$SERVER"
        ends 30 && is_right && tells_who_waits
    }
    over
}
# That it is away is said now and then, with who waits; that it is back, once.
tells_who_waits() {
    [ "$(grep -c 'does not answer: .* wait' err) $(grep -c 'is there again' err)" = '1 1' ] &&
        [ "$(grep -cE 'has not answered for [0-9]+ s: [0-9]+ programs? waits? .*[0-9] fault' err)" -ge 2 ] ||
        no "it says: $(grep server err)"
}

case_stopped-for-good() {
    with_run nbdkit-memory 15 timeout=8 prio=9 -- "${MORE[@]}" && kill -STOP "$SERVER" && is_lost 30
    over
}

# A program that only takes more memory, without another device. While the server is away it waits. After that
# nothing can be written any more, which ends the run, or has its budget grow.
case_filling() {
    local MUTATE=(python3 -c 'import os, time
kept = []
for _ in range(250):
    kept.append(os.urandom(1 << 20))
    time.sleep(0.03)
print("all there")')
    with_run qemu-raw 0 timeout=30 && {
        kill -STOP "$SERVER"
        sleep 10
        kill -CONT "$SERVER"
        ends 60 && [ "$CODE" = 0 ] && grep -q 'all there' out ||
            no "it does not wait: $CODE, $(tail -n 1 err)"
    }
    over || return
    with_run qemu-raw 0 timeout=5 && {
        end_server "$SERVER"
        ends 40 && [ "$CODE" = 137 ] && [ "$TOOK" -ge 5 ] &&
            grep -q 'nothing can be written to swap device' err ||
            no "nothing can be written: $CODE, $(tail -n 1 err)"
    }
    over || return
    with_run qemu-raw 0 timeout=5 -- --on-full=grow && {
        end_server "$SERVER"
        # What it frees at its end may be lost.
        ends 60 && [[ $CODE =~ ^(0|135)$ ]] && grep -q 'the budget grows' err ||
            no "it does not grow: $CODE, $(tail -n 1 err)"
    }
    over
}

# Programs that wait for a server can be ended: by ^C, by the second SIGTERM, by SIGKILL.
case_interrupted() {
    local signal code
    for signal in INT TERM KILL; do
        with_run nbdkit-memory 60 timeout=60 && {
            kill -STOP "$SERVER"
            sleep 3
            case $signal in
            INT) kill -INT -- -$RUN; code=130 ;;
            TERM) kill $RUN; sleep 0.5; kill $RUN 2>/dev/null; code=143 ;;
            KILL) kill -KILL $RUN; code=137 ;;
            esac
            ends 8 && nothing_left
        }
        over || no "SIG$signal: $WHY" || return
        [ "$CODE" = $code ] || no "SIG$signal: ends with $CODE" || return
    done
}

# A network of its own, whose link goes down: for a while, and for good.
case_link() {
    local space=memspill-$$ up
    have ip && ip netns add $space 2>/dev/null || { SKIP="no network namespaces here"; return; }
    ip link add mspill$$ type veth peer name far netns $space && ip addr add 10.213.77.1/30 dev mspill$$ &&
        ip link set mspill$$ up && ip -n $space addr add 10.213.77.2/30 dev far &&
        ip -n $space link set far up || SKIP="no veth here"
    for up in 1 0; do
        [ -z "$SKIP$WHY" ] || break
        truncate -s $SIZE disk.raw
        ip netns exec $space nbdkit -f -p 10809 file disk.raw >>servers.log 2>&1 &
        SERVERS+=($!)
        ADDRESS=nbd://10.213.77.2/
        until_true 10 answers 10.213.77.2 10809 || { no "no server there"; break; }
        begin $((up ? 6 : 15)) timeout=$((up ? 40 : 8)) prio=9 -- "${MORE[@]}" && gets_going && {
            ip link set mspill$$ down
            if [ $up = 1 ]; then
                sleep 10
                ip link set mspill$$ up
                ends 60 && is_right
            else
                is_lost 30
            fi
        }
        over
        rm -f disk.raw
    done
    ip link del mspill$$ 2>/dev/null
    ip netns del $space
    [ -z "$WHY" ]
}

# One of two is lost, comes back empty and is filled; then the other is lost.
case_mirror() {
    local first first_server
    truncate -s $SIZE first.raw second.raw
    NAME=first start_nbdkit unix file first.raw || return
    first=$ADDRESS first_server=$SERVER
    NAME=second start_nbdkit unix file second.raw || { over; return; }
    begin 25 timeout=40 mirror="$first" && gets_going && {
        end_server "$SERVER"
        until_true 10 state_is degraded || no "it is not degraded: $("$MEMSPILL" ctl --pid $RUN swaps)"
    } && {
        truncate -s 0 second.raw && truncate -s $SIZE second.raw && again && until_true 60 state_is on ||
            no "it does not come back: $("$MEMSPILL" ctl --pid $RUN swaps)"
    } && {
        end_server "$first_server"
        ends 60 && is_right
    }
    over
}

# Some of what one of two has is altered: no program notices.
case_altered() {
    local first
    rm -f first.raw second.raw && truncate -s $SIZE first.raw second.raw
    NAME=first start_nbdkit unix file first.raw || return
    first=$ADDRESS
    NAME=second start_nbdkit unix file second.raw || { over; return; }
    begin 10 mirror="$first" && gets_going && {
        dd if=/dev/urandom of=second.raw bs=1M seek=1 count=100 conv=notrunc status=none
        ends 60 && is_right
    } && {
        [ "$(grep -c 'its first server gave back something else' err)" = 1 ] || no "nobody says so: $(<err)"
    }
    over
}

# As soon as a page has come from there.
shows_the_server() {
    "$MEMSPILL" ctl --pid $RUN swaps >ctl.out
    grep -qE " +nbd\+unix .* 9  on .* us, [0-9]+ KiB sent" ctl.out
}

# Devices come and go, are shown, and one that is away is not waited for without end.
case_ctl() {
    local export metric
    start_nbdkit-memory unix || return
    export=$ADDRESS
    ADDRESS=${MORE[1]}
    begin 10 && sleep 1 && "$MEMSPILL" ctl --pid $RUN swapon "${export/$WORK\//},prio=9" >ctl.out 2>&1 ||
        no "swapon: $(cat ctl.out)"
    [ -n "$WHY" ] || gets_going && {
        until_true 10 shows_the_server || no "swaps: $(cat ctl.out)"
    } && {
        "$MEMSPILL" ctl --pid $RUN metrics >ctl.out
        for metric in on lost sent_bytes_total received_bytes_total reconnects_total; do
            grep -q "^memspill_device_server_$metric{device=.*server=\"0\"} " ctl.out || no "no $metric"
        done
        [ -z "$WHY" ]
    } && {
        timeout 60 "$MEMSPILL" ctl --pid $RUN swapoff "$export" >ctl.out 2>&1 || no "swapoff: $(cat ctl.out)"
    } && ends 60 && { [ "$CODE" = 0 ] || no "ends with $CODE: $(tail -n 1 err)"; } && nothing_left
    over
}

run_cases "${ALL[@]}"
