# What memspill is asked for, and what it says: options, commands that are not there, streams, figures.
# Cases of robustness.sh.

case_exit-codes() {
    local want
    for want in 0 1 7 124 255; do
        call 20 "${SPILL[@]}" -- sh -c "exit $want"
        code_is $want && clean || return
    done
    local signal
    for signal in TERM:143 KILL:137 SEGV:139 ABRT:134 INT:130 USR1:138; do
        call 20 "${SPILL[@]}" -- bash -c "ulimit -c 0; kill -${signal%:*} \$\$"
        code_is ${signal#*:} && clean || return
    done
}

case_streams() {
    head -c 20000000 /dev/urandom >bytes
    "${SPILL[@]}" -- cat <bytes >out 2>err || { no "cat: $?"; return; }
    cmp bytes out && [ ! -s err ] ||
        { no "bytes were changed, or stderr is not empty: $(tail -n 1 err)"; return; }
    : >err
    cat bytes | "${SPILL[@]}" -- cat 2>err | "${SPILL[@]}" -- cat 2>>err | cmp - bytes ||
        { no "bytes were changed in a pipe"; return; }
    call 20 "${SPILL[@]}" -- sh -c 'printf "a\0b"; printf "c\0d" >&2'
    [ "$(od -c out | head -n 1)$(od -c err | head -n 1)" = \
        "$(printf 'a\0b' | od -c | head -n 1)$(printf 'c\0d' |
        od -c | head -n 1)" ] || { no "stdout and stderr are not the program's alone: $(cat err)"; return; }
    call 20 "${SPILL[@]}" -- cat # stdin is /dev/null: it ends at once
    code_is 0 && clean
}

case_descriptors() {
    echo hello >hello
    "${SPILL[@]}" -- cat /proc/self/fd/7 7<hello >out 2>err || { no "descriptor 7 is not passed on"; return; }
    cmp -s hello out || { no "descriptor 7 reads otherwise"; return; }
    # No descriptor that the program would not have without memspill.
    local list='for f in /proc/$$/fd/*; do echo ${f##*/}; done'
    sh -c "$list" 7<hello </dev/null >without
    "${SPILL[@]}" -- sh -c "$list" 7<hello </dev/null 2>err >out
    cmp -s without out ||
        { no "the program has descriptors $(tr '\n' ' ' <out)instead of $(tr '\n' ' ' <without)"; return; }
    clean
}

case_sigpipe() {
    start bash -c '"$@" | head -c 1000; exit ${PIPESTATUS[0]}' - "${SPILL[@]}" -- yes
    ends 20
    code_is 141 && clean
}

case_sizes() {
    local size
    for size in "" 0 -5M 12Q x 1e3 5MM 18446744073709551616 9999999P "1 G"; do
        refused --memory-max="$size" || return
    done
    refused || return # no budget at all
    refused --memory-max 64M --no-such-option || return
    refused --memory-max 64M --memory-max 64M || return
    clean
}

case_specs() {
    local spec
    for spec in "" floppy: file: ram:/x ram:,size=x ram:,size=-1 ram:,size=0 ram:,colour=red ram:,prio=high \
        ram:,compress=zip ram:,compress=none ram:compress=none,size=max ram:size=999T,compress=none \
        file:"$WORK"/x,compress=lz4 ram:compress=none,size=16M,discard \
        file:"$WORK"/none/such,size=16M file:"$WORK",size=16M file:/dev/null,size=16M; do
        refused --memory-max 64M --swap="$spec" || return
    done
    refused --memory-max 64M --tune no-such-knob=1 || return
    clean
}

# It says how much is needed, and with that it works.
case_small-budget() {
    local size least
    for size in 4K 1M 4M; do
        call 120 "${RUN[@]}" --memory-max $size --swap-dir "$SWAP" -- "$WORKLOAD" hog --size 32M
        code_is 125 && says 'at least [0-9.]+ [KMG]iB' && clean || { WHY="$size: $WHY"; return; }
    done
    least=$(grep -oP 'at least \K[0-9]+(?=[.0-9]* MiB)' err)
    call 120 "${RUN[@]}" --memory-max "${least}M" --swap-dir "$SWAP" -- "$WORKLOAD" hog --size 32M
    code_is 0 && clean || WHY="$least MiB: $WHY"
}

case_no-command() {
    call 20 "${SPILL[@]}"
    code_is 125 && says || return
    call 20 "${SPILL[@]}" --
    code_is 125 && says && clean
}

case_not-executable() {
    echo text >text
    chmod 644 text
    local what
    for what in "$WORK/text" "$WORK"; do
        call 20 "${SPILL[@]}" -- "$what"
        code_is 126 && says && clean || return
    done
    # Nothing can be seen of a program that may be run and not read; the line says what would do.
    [ "$(id -u)" = 0 ] && have setpriv || return 0
    cp /bin/true unread && chmod 711 unread "$WORK"
    call 20 setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
        "${RUN[@]}" --memory-max $BUDGET --swap-dir /var/tmp -- "$WORK/unread"
    code_is 125 && says 'chmod \+r' && clean
}

case_not-found() {
    local what
    for what in no-such-command "$WORK/no-such-command" ""; do
        call 20 "${SPILL[@]}" -- "$what"
        code_is 127 && says && clean || return
    done
}

case_swap-dir() {
    refused --memory-max 64M --swap-dir "$WORK/none" || return
    echo >file
    refused --memory-max 64M --swap-dir "$WORK/file" || return
    mkdir -p closed
    if [ "$(id -u)" = 0 ]; then
        mount -t tmpfs -o ro,size=1M none closed || { SKIP="cannot mount"; return; }
        refused --memory-max 64M --swap-dir "$WORK/closed"
        umount closed
    else
        chmod 555 closed
        refused --memory-max 64M --swap-dir "$WORK/closed"
    fi
    [ -z "$WHY" ] && clean
}

case_check() {
    local device
    for device in --swap="file:$WORK/device,fail=write@3000" --swap-dir="$SWAP"; do
        call 60 "${RUN[@]}" --memory-max 80M "$device" --check --verbose -- \
            "$WORKLOAD" mutate --size 160M --threads 3 --seconds $((3 + 2 * FULL))
        code_is 0 || return
        checked || return
        clean || return
    done
}

case_stats-json() {
    call 60 "${SPILL[@]}" --stats-json stats.json -- "$WORKLOAD" hog --size 160M
    code_is 0 || return
    $PYTHON -c 'import json, sys; json.load(open("stats.json"))' 2>/dev/null ||
        { no "stats.json is not JSON"; return; }
    [ ! -s err ] || { no "something on stderr: $(tail -n 1 err)"; return; }
    clean
}

# A line that cannot be written (a full disk, a reader that is gone) ends nothing.
case_stderr-full() {
    local grow=(run --memory-max 48M --swap ram:,size=16M --on-full=grow --verbose -- "$WORKLOAD" hog \
        --size 120M --contents random)
    call 60 bash -c 'exec "$@" 2>/dev/full' - "$MEMSPILL" "${grow[@]}"
    code_is 0 || return
    call 60 bash -c '{ "$@" 2>&3 | cat; exit ${PIPESTATUS[0]}; } 3> >(:)' - "$MEMSPILL" "${grow[@]}"
    code_is 0 || return
    call 20 bash -c 'exec "$@" 2>/dev/full' - "${RUN[@]}" --memory-max x -- true
    code_is 125 || return
    call 20 bash -c 'exec "$@" 2>/dev/full' - "${SPILL[@]}" -- no-such-command
    code_is 127 && clean
}
