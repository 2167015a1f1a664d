# `memspill ctl` while a run is at work, and groups with budgets of their own.
# Cases of robustness.sh.

# Two programs share a budget, one of them in a group of 40 MiB: each gets its own pages back, the group keeps
# its maximum.
case_groups() {
    cp "$WORKLOAD" inner-job
    call 60 "${RUN[@]}" -m 300M --check --swap-dir "$SWAP" --group 'inner,comm=inner-*,memory.max=40M' \
        --stats-json stats.json -- \
        bash -c './inner-job populate --size 200M & "$0" populate --size 120M && wait $! && sleep 0.5' \
        "$WORKLOAD"
    code_is 0 || return
    [ "$(grep -c '"bad_pages":0' out)" = 2 ] || no "a program did not check its pages" || return
    $PYTHON - stats.json <<'PY' || no "the group's figures are not as they should be: $(tail -n 3 stats.json)"
import json, sys
stats = json.load(open(sys.argv[1]))
(inner,) = stats["groups"]
# Slots of a process that has just ended are being freed for some ms: it had half a second.
assert inner["name"] == "inner" and inner["swap.current"] <= 64 << 10, inner
assert 30 << 20 < inner["memory.peak"] < 44 << 20, inner
assert stats["pswpout"] > 30000, stats["pswpout"]
PY
}

# The job's pages go to the file, all others to compressed RAM, which is asked first.
case_groups-devices() {
    cp "$WORKLOAD" inner-job
    local ram=(--swap ram:,prio=9) file=$SWAP/job job=inner,comm=inner-*,swap=file:*
    local both=("${ram[@]}" --swap "file:$file,size=300M,prio=5")
    start "${RUN[@]}" -m 200M "${both[@]}" --check --verbose --group "$job,memory.max=40M" \
        -- ./inner-job random --size 100M --seconds 3 --check full
    away 20 32768 "file:$file" || return
    [ "$(used ram:)" = 0 ] || { no "its pages are elsewhere: $(cat ctl.out)"; return; }
    ends 60
    code_is 0 && checked || return
    start "${RUN[@]}" -m 60M "${both[@]}" --group "$job" \
        -- "$WORKLOAD" random --size 100M --seconds 3 --check full
    away 20 32768 ram: || return
    [ "$(used "file:$file")" = 0 ] || { no "another's pages are there: $(cat ctl.out)"; return; }
    ends 60
    code_is 0 || return
    call 60 "${RUN[@]}" -m 300M "${ram[@]}" --swap "file:$file,size=20M,prio=5" \
        --group "$job,memory.max=40M" -- ./inner-job populate --size 200M
    code_is 137 || return
    local why='may swap to file:\* only, where no room is left|is full; raise its memory.max'
    grep -qE "memspill: killed: group inner ($why)" err || no "not told why: $(tail -n 1 err)" || return
    call 20 "${RUN[@]}" -m 300M "${ram[@]}" --group "$job" -- true
    code_is 125 && says 'swap=file:\* names no swap device: there is ram:' && clean
}

case_groups-full() {
    cp "$WORKLOAD" inner-job
    call 60 "${RUN[@]}" -m 300M --swap-dir "$SWAP" \
        --group 'inner,comm=inner-*,memory.max=40M,swap.max=50M' \
        -- ./inner-job populate --size 200M
    code_is 137 || return
    # Either of the two may be seen first.
    local why='has used up its swap.max; raise its swap.max|is full; raise its memory.max or swap.max'
    grep -qE "memspill: killed: group inner ($why)" err || no "not told why: $(tail -n 1 err)"
}

# A device goes off and on, again and again, while everything changes. When it is off, its file is closed.
case_ctl-swapoff() {
    local one=$WORK/one two=$WORK/two
    : >"$one" >"$two"
    start "${RUN[@]}" --memory-max 80M --swap "file:$one,prio=9" --swap "file:$two,prio=5" --check \
        --verbose -- \
        "$WORKLOAD" mutate --size 160M --threads 3 --seconds $((8 + 4 * FULL))
    for ((DID = 1; DID <= 3 + 2 * FULL; DID++)); do
        away 20 8192 "file:$one" || return
        [ "$(open_files "$one")" = 1 ] || { no "the file is not open"; return; }
        ctl_ok swapoff "file:$one" || return
        grep -q ' is off, [1-9][0-9]* pages moved' ctl.out || { no "it says: $(cat ctl.out)"; return; }
        [ "$(open_files "$one")" = 0 ] || { no "the file is still open"; return; }
        [ "$(stat -c %b "$one")" = 0 ] || { no "the file holds something"; return; }
        rm "$one" && : >"$one"
        ctl_ok swapon "file:$one,prio=9" || return
    done
    DID="$((DID - 1)) times"
    ends 60
    code_is 0 || return
    checked || return
    rm "$one" "$two"
    clean
}

# From one form of swap in RAM to the next; a RAM disk is outside of the budget, and shown by itself.
case_ctl-swapoff-ram() {
    start "${RUN[@]}" --memory-max 80M --swap ram:,compress=zstd --check --verbose -- \
        "$WORKLOAD" random --size 128M --seconds 10 --check full
    away 20 8192 ram:zstd || return
    ctl swapon ram:size=999T,compress=none && { no "a RAM disk of 999T is taken"; return; }
    grep -q 'does not fit into .* of RAM here: give a smaller size=' ctl.out ||
        { no "it says: $(cat ctl.out)"; return; }
    ctl_ok swapon ram:size=512M,compress=none || return
    ctl_ok swapoff ram:zstd || return
    away 20 8192 ram:none || return
    ctl_ok stats --json || return
    $PYTHON -c 'import json; s = json.load(open("ctl.out"))
assert s["swap_ram_bytes"] == 0 and 8 << 20 < s["swap_ram_disk_bytes"] <= 512 << 20' ||
        { no "stats: $(grep swap_ram ctl.out)"; return; }
    ctl_ok swapon ram: || return
    ctl_ok swapoff ram:none || return
    grep -q ' is off, [1-9][0-9]* pages moved' ctl.out || { no "it says: $(cat ctl.out)"; return; }
    ends 60
    code_is 0 || return
    checked || return
    clean
}

# More swapons than a run can have devices at a time: what is off makes room, and takes few descriptors.
case_ctl-swapon-many() {
    local one=$WORK/one two=$WORK/two before=0 times=0 open many=$((20 + 20 * FULL))
    : >"$one" >"$two"
    start "${RUN[@]}" --memory-max 80M --swap "file:$two,prio=5" --check --verbose -- \
        "$WORKLOAD" mutate --size 160M --threads 3 --seconds $((9 + 9 * FULL))
    away 20 8192 "file:$two" || return
    while [ $times -lt $many ]; do
        ctl swapon "file:$one,prio=9" || break
        sleep 0.05
        ctl swapoff "file:$one" || break
        times=$((times + 1))
        open=$(ls /proc/$PID/fd 2>/dev/null | wc -l)
        [ $times = 1 ] && before=$open
        # The children of the program's forks come and go with three each; a device that stayed open would
        # have ten.
        [ "$open" -le $((before + 30 + 2 * times)) ] ||
            { no "$open descriptors after $times times, $before after the first"; return; }
    done
    DID="$times times"
    [ $times -ge $((many / 2)) ] || { no "it says: $(cat ctl.out)"; return; }
    [ $times -lt $many ] || [ "$(ctl swaps && grep -c '' ctl.out)" -le 17 ] ||
        { no "more than 16 devices are listed"; return; }
    ends 60
    code_is 0 || return
    checked || return
    rm "$one" "$two"
    clean
}

# ^C, a caller that is killed, a device without room: the device is on again.
case_ctl-swapoff-stop() {
    local one=$WORK/one two=$WORK/two caller
    : >"$one" >"$two"
    start "${RUN[@]}" --memory-max 48M --swap "file:$one,prio=9" --swap "file:$two,prio=5,size=16M" -- \
        "$WORKLOAD" random --size 224M --seconds 12 --contents random --check full
    away 30 131072 "file:$one" || return
    ctl swapoff "file:$one" && { no "256 MiB fit into 16"; return; }
    grep -q 'have no room .* it is on again' ctl.out || { no "it says: $(cat ctl.out)"; return; }
    ctl_ok swapon "file:$WORK/three,prio=1" || return
    for signal in INT KILL; do
        "$MEMSPILL" ctl --pid $PID swapoff "file:$one" >ctl.out 2>&1 &
        caller=$!
        sleep 0.05
        kill -$signal $caller 2>/dev/null
        wait $caller
        if [ $? = 0 ]; then
            DID="swapoff was faster than the signal"
            ctl_ok swapon "file:$one,prio=9" || return
        fi
        if [ $signal = INT ] && [ -z "$DID" ]; then
            grep -q 'stopped; it is on again' ctl.out || { no "it says: $(cat ctl.out)"; return; }
        fi
    done
    sleep 0.3
    ctl_ok swaps || return
    grep -qE "$one .* (on|full) " ctl.out || { no "it is not on again: $(cat ctl.out)"; return; }
    ends 60
    code_is 0 || return
    rm "$one" "$two"
    clean
}

case_ctl-limit() {
    start "${RUN[@]}" --memory-max 160M --swap-dir "$SWAP" --stats-json stats.json -- \
        "$WORKLOAD" random --size 128M --seconds 12 --check full
    answers || return
    ctl limit 1M && { no "a budget of 1 MiB is taken"; return; }
    grep -q 'too small: at least 8.0 MiB' ctl.out || { no "it says: $(cat ctl.out)"; return; }
    lower_to_64M || return
    local end=$((SECONDS + 6)) bytes=
    until [ "${bytes:-0}" -gt 0 ] && [ "$bytes" -le $((72 << 20)) ]; do
        [ $SECONDS -ge $end ] && { no "it uses $bytes bytes of 64 MiB"; return; }
        sleep 0.1
        bytes=$(rss)
    done
    ctl_ok stats --json || return
    $PYTHON -c 'import json; s = json.load(open("ctl.out"))
assert s["memory_max_bytes"] == 64 << 20 and s["exit_code"] is None' ||
        { no "stats: $(head -c 200 ctl.out)"; return; }
    ctl_ok limit 160M || return
    local before after
    before=$(rss)
    ctl_ok pageout "$(command_of_run)" || return
    after=$(rss)
    grep -qE '^[1-9][0-9]{3,} pages of process' ctl.out || { no "pageout says: $(cat ctl.out)"; return; }
    ctl pageout 1 && { no "init is paged out"; return; }
    # The pages that it has touched since are in memory again.
    end=$((SECONDS + 6))
    until [ "$(rss)" -gt $((32 << 20)) ]; do
        [ $SECONDS -ge $end ] && { no "it has only $(rss) bytes back"; return; }
        sleep 0.1
    done
    ctl_ok cold "$(command_of_run)" || return
    grep -qE '^[1-9][0-9]{3,} pages of process' ctl.out || { no "cold says: $(cat ctl.out)"; return; }
    ctl cold 1 && { no "init is made cold"; return; }
    [ "$after" -lt $((before / 2)) ] || { no "pageout: $((before >> 20)) to $((after >> 20)) MiB"; return; }
    DID="pageout: $((before >> 20)) to $((after >> 20)) MiB"
    ends 60
    code_is 0 && clean || return
    # While it fills its memory, what it has taken a moment ago counts too.
    local time
    for time in 1 2 3 4 5 6 7 8; do
        start "${RUN[@]}" --memory-max 160M --swap-dir "$SWAP" -- \
            "$WORKLOAD" random --size 128M --seconds 20
        answers || return
        sleep 0.0$((time % 6))
        lower_to_64M || { WHY="while it fills: $WHY"; return; }
        kill $PID
        ends 10
        code_is 143 && clean || return
    done
}
lower_to_64M() {
    ctl_ok limit 64M || return
    # It has waited until the rest had left.
    ctl_ok stats --json || return
    $PYTHON -c 'import json; assert json.load(open("ctl.out"))["memory_bytes"] <= 66 << 20' ||
        { no "over the new budget: $(grep memory_bytes ctl.out)"; return 1; }
}
