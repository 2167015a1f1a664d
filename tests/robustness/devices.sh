# Swap devices that are full, fail, or return other bytes.
# Cases of robustness.sh.

full() { # SPEC
    call 120 "${RUN[@]}" --memory-max 48M --swap "$1" -- "$WORKLOAD" hog --size 300M --contents random
    code_is 137 && says 'swap|--memory-max' || return
    [ "$(grep -c '^memspill: ' err)" = 1 ] || { no "more than one line: $(cat err)"; return; }
    clean
}
case_swap-full-ram() { full ram:,size=16M; }
case_swap-full-zstd() { full ram:,size=16M,compress=zstd; }
case_swap-full-ram-disk() { full ram:size=16M,compress=none; }
case_swap-full-file() { full file:"$SWAP/device",size=16M; }
case_swap-full-grow() {
    call 120 "${RUN[@]}" --memory-max 48M --swap ram:,size=16M --on-full=grow -- \
        "$WORKLOAD" hog --size 200M --contents random
    code_is 0 || return
    grep -q '^memspill: ' err || { no "no warning"; return; }
    clean
}

# The disk fills up from elsewhere while the swap file on it is in use.
case_disk-full() {
    [ "$(id -u)" = 0 ] || { SKIP="needs root, to mount a small file system"; return; }
    mkdir -p disk
    truncate -s 96M image
    mkfs.ext4 -q -F image && mount -o loop image disk 2>/dev/null ||
        { SKIP="cannot mount a file system"; return; }
    start "${RUN[@]}" --memory-max 48M --disk-free 0 --swap-dir "$WORK/disk" -- \
        "$WORKLOAD" hog --size 400M --contents random
    sleep 0.2
    head -c 90M /dev/zero >disk/other 2>/dev/null
    ends 120
    # If the budget had been reserved on the disk beforehand it is refused at once, which is as good.
    case $CODE in
    125 | 137) says 'swap|disk|space|full' ;;
    *) no "exit code $CODE instead of 137: $(tail -n 1 err)" ;;
    esac
    rm -f disk/other
    [ -n "$WHY" ] || [ "$(find disk -type f | wc -l)" = 0 ] || no "left on the disk: $(find disk -type f)"
    gone 2 || { no "processes are left"; kill_ours; }
    # The kernel lets go of a ring's files some time after the process has ended.
    local try
    for try in $(seq 50); do umount disk 2>/dev/null && break; sleep 0.1; done
    ! mountpoint -q disk || no "the file system is still in use"
    [ -z "$WHY" ] && clean
}

# A swap file that was not there leaves neither a name nor disk space, however memspill ends.
case_swap-file-new() {
    local n device=file:$SWAP/device,size=1G
    call 60 "${RUN[@]}" --memory-max 48M --swap "$device" -- "$WORKLOAD" hog --size 160M --contents random
    code_is 0 && clean || return
    for n in 1 2 3; do
        start "${RUN[@]}" --memory-max 48M --swap "$device" -- "${SPIN[@]}"
        populated 1 || return
        [ -z "$(ls -A "$SWAP")" ] || { no "it has a name: $(ls "$SWAP")"; return; }
        kill -9 $PID
        ends 10
        code_is 137 && clean || return
    done
}

# One that was there keeps its length, and nothing else.
case_swap-file-old() {
    local file=$WORK/old args
    truncate -s 20M "$file"
    for args in "hog --size 160M --contents random" "no-such-workload"; do
        call 60 "${RUN[@]}" --memory-max 48M --swap "file:$file,size=1G" -- "$WORKLOAD" $args
        [ "$(stat -c '%s %b' "$file")" = "20971520 0" ] ||
            { no "size and blocks: $(stat -c '%s %b' "$file")"; return; }
    done
    # As it is after a kill, it can be used again.
    start "${RUN[@]}" --memory-max 48M --swap "file:$file,size=1G" -- "${SPIN[@]}"
    populated 1 || return
    kill -9 $PID
    ends 10
    call 60 "${RUN[@]}" --memory-max 48M --swap "file:$file,size=1G" -- "$WORKLOAD" hog --size 160M
    code_is 0 || return
    [ "$(stat -c %b "$file")" = 0 ] || { no "disk space is in use"; return; }
    rm "$file"
    clean
}

# A device that fails at page 1000. The program checks all that it reads.
failing() { # CODE WORDS LINES COUNTER DEVICE...
    local code=$1 words=$2 lines=$3 counter=$4 device devices=()
    shift 4
    for device; do devices+=(--swap "$device"); done
    call 120 "${RUN[@]}" --memory-max 64M "${devices[@]}" --stats-json stats.json \
        -- "$WORKLOAD" hog --size 160M --contents random
    code_is "$code" || return
    grep -q "^memspill: swap device file:.* $words" err ||
        { no "the line is not there: $(tail -n 1 err)"; return; }
    [ "$(grep -c '^memspill: ' err)" = "$lines" ] ||
        { no "not $lines lines: $(grep '^memspill: ' err)"; return; }
    [ "$($PYTHON -c "import json; print(json.load(open('stats.json'))['$counter'] > 0)")" = True ] ||
        { no "$counter does not count it"; return; }
    clean
}
# SIGBUS, or, where threads bring pages by themselves, the process's end and a line that says why. Without
# readahead: a page that came along, and that nobody has touched, is only read again.
NO_READAHEAD=(--tune readahead=auto --tune page-cluster=0)
case_read-error() {
    local RUN=("${RUN[@]}" "${NO_READAHEAD[@]}")
    failing "$(of_mode 137 135)" 'has a read error: Input/output error' "$(of_mode 2 1)" read_errors \
        "file:$WORK/device,fail=read@1000"
}
case_wrong-bytes() {
    local RUN=("${RUN[@]}" "${NO_READAHEAD[@]}")
    failing "$(of_mode 137 135)" 'has a read error: checksum mismatch' "$(of_mode 2 1)" read_errors \
        "file:$WORK/device,fail=flip@1000"
}
# A page that is not written stays in memory, and is written later.
case_write-error() { failing 0 'has a write error: Input/output error' 1 write_errors \
    "file:$WORK/device,fail=write@1000"; }
# Nothing can be written any more: that is an answer, not a hang, and not a program in more than its budget.
case_write-error-all() {
    failing 137 'has a write error: Input/output error' 2 write_errors \
        "file:$WORK/device,fail=write@1000+" || return
    grep -q '^memspill: killed: nothing can be written to swap device file:' err ||
        no "the last line: $(tail -n 1 err)"
}
# Another device takes what the failing one does not.
case_write-error-other() {
    failing 0 'has a write error: Input/output error' 1 write_errors \
        "file:$WORK/device,prio=9,fail=write@1000+" "file:$WORK/other"
}

# The same of a device for which there is no memory just then: nothing is lost, read or written, and it is
# said once.
case_no-memory() {
    failing 0 'cannot be used just now: Cannot allocate memory' 1 read_again \
        "file:$WORK/device,fail=nomem@1000" || return
    grep -q '"read_errors": 0,' stats.json || no "it counts as a read error"
}
