# Limits of the system on memspill, on its target, and on both.
# Cases of robustness.sh.

# Threads map the pool to read it: that takes no addresses from a program that may have few.
case_address-limit() {
    local limit expected job='import resource
def mapped():
    lines = [line.split() for line in open("/proc/self/maps") if "memspill-pool" in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    return sum(end - start for start, end in ends) >> 20
before, memory = mapped(), bytearray(b"x" * (120 << 20))
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
print(before, mapped(), memory.count(b"x"), memory.count(b"x"))'
    for limit in unlimited 6000000; do
        expected="0 0"
        [[ "${MEMSPILL_ARGS[*]}" != *mode=agent* ]] || expected="1032 8"
        [ "$expected" = "0 0" ] || [ $limit = unlimited ] || expected="8 8"
        call 60 "${SPILL[@]}" -- bash -c "ulimit -S -v $limit; exec $PYTHON -c '$job'"
        code_is 0 && clean || { WHY="ulimit -v $limit: $WHY"; return; }
        [ "$(cat out)" = "$expected 125829120 125829120" ] ||
            { no "ulimit -v $limit: not $expected but $(cat out)"; return; }
    done
}

# limited CODE WORDS LIMIT... [-- OPTION...]: a program of 96 MiB under these limits, which memspill
# inherits. It works, or 125 and one line say which limit it is.
limited() {
    local code=$1 words=$2 limits=() spill=("${SPILL[@]}")
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do limits+=("$1"); shift; done
    [ $# -le 1 ] || { shift; spill=("${RUN[@]}" --memory-max $BUDGET "$@"); }
    call 60 bash -c "ulimit ${limits[*]} && exec \"\$@\"" - "${spill[@]}" -- $PYTHON \
        -c 'print(sum(bytearray(96 << 20)))'
    code_is "$code" || { WHY="ulimit ${limits[*]}: $WHY"; return 1; }
    if [ "$code" = 0 ]; then
        [ "$(cat out)" = 0 ] && [ ! -s err ] ||
            { no "ulimit ${limits[*]}: it prints $(cat out err)"; return 1; }
    else
        says "$words" && [ "$(wc -l <err)" = 1 ] || { no "ulimit ${limits[*]}: $(cat err)"; return 1; }
    fi
    clean
}

case_limits() {
    limited 0 '' -f 1000000 && limited 0 '' -S -f 1 && limited 125 'ulimit -f' -f 1 &&
        limited 125 'ulimit -f' -f 1000 || return
    limited 125 'ulimit -f' -f 1000000 -- --swap file:"$SWAP/device",size=8G &&
        limited 125 'ulimit -f' -f 1 -- --swap ram: || return
    limited 0 '' -f 1000 -- --swap ram: && limited 0 '' -f 100000 -- --swap file:"$SWAP/device" || return
    limited 0 '' -v 1000000 && limited 0 '' -v 640000 && limited 125 'ulimit -v' -v 400000 &&
        limited 0 '' -S -v 400000 || return
    limited 0 '' -v 640000 -- --swap ram: && limited 0 '' -d 640000 -- --swap ram: || return
    limited 0 '' -d 640000 && limited 125 'ulimit -d' -d 400000 && limited 0 '' -S -d 400000 || return
    limited 0 '' -S -n 20 && limited 0 '' -n 128 || return
    # It does not matter which descriptor it is that cannot be had.
    local files
    for ((files = 4; files <= 36; files += FULL ? 1 : 4)); do
        limited 125 'ulimit -n' -n "$files" || return
    done
    limited 0 '' -s 512 && limited 0 '' -l 0 && limited 0 '' -i 0 && limited 0 '' -t 60
}

# The program has the limits, the signals and the mask that it would have without memspill, and dies of its
# limits alike.
case_limits-of-the-target() {
    local show='ulimit -Sa; ulimit -Ha; grep -E "^Sig(Blk|Ign|Cgt)" /proc/self/status'
    local over='head -c 2000000 /dev/zero >"$0"; echo $?'
    local with
    for with in "trap '' XFSZ" "trap '' USR1; ulimit -S -f 8000" \
        "ulimit -S -v 8000000 -d 7000000 -n 40 -u 5000" "ulimit -H -c 0 -f 100000 -s 4096"; do
        bash -c "$with; exec bash -c '$show'" >without 2>/dev/null
        call 20 bash -c "$with; exec \"\$@\"" - "${SPILL[@]}" -- bash -c "$show"
        code_is 0 || return
        diff out without >differs || { no "under '$with': $(head -n 3 differs | tr '\n' ' ')"; return; }
    done
    call 20 bash -c 'ulimit -S -f 1000; exec "$@"' - "${SPILL[@]}" -- bash -c "$over" "$WORK/over"
    code_is 0 || return
    [ "$(tail -n 1 out)" = 153 ] && [ "$(stat -c %s over)" = 1024000 ] ||
        { no "a file over the limit: $(cat out), $(stat -c %s over)"; return; }
    rm over
    call 20 bash -c 'ulimit -S -t 1; exec "$@"' - "${SPILL[@]}" -- bash -c 'while :; do :; done'
    code_is 152 && clean
}

# A process that may have few descriptors is managed with those that it can have, numbered low.
case_few-descriptors() {
    local files job='print(sum(bytearray(96 << 20)))'
    for files in 90 20; do
        call 60 "${SPILL[@]}" -- bash -c "ulimit -n $files; $PYTHON -c '$job' && exec $PYTHON -c '$job'"
        code_is 0 && [ "$(tr '\n' ' ' <out)" = '0 0 ' ] && [ ! -s err ] ||
            { no "with $files descriptors: $(cat out err)"; return; }
    done
    clean
}

# LeakSanitizer, by itself or in AddressSanitizer, stops all threads, the evictor too, and reads the whole
# heap.
case_sanitizers() {
    local kind
    for kind in leak address; do
        gcc -O1 -fsanitize=$kind -o sanitized "$TESTS/programs/sanitized.c" 2>/dev/null &&
            ./sanitized >out 2>err ||
            { DID="no -fsanitize=$kind here"; continue; }
        call 120 "${SPILL[@]}" --check -- ./sanitized
        code_is 0 || { WHY="-fsanitize=$kind: $WHY"; return; }
        [ "$(cat out)" = "0 wrong" ] || { no "-fsanitize=$kind: it says $(tail -n 1 out)"; return; }
        clean || return
    done
    [[ $DID != *leak* ]] || SKIP=$DID
}
