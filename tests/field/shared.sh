# Memory that several processes share, of each sort. Cases of field.sh.
#
# Memory that is counted and not swapped leaves the budget to private memory, which makes room for it; a line
# names it. Under `kernel` shared anonymous memory is swapped.
CASES+=(shared_memfd shared_shm shared_file shared_sysv shared_anonymous)
CASES+=(shared_too_much_memfd shared_too_much_shm shared_too_much_file shared_too_much_sysv)
[ "$MODE" = kernel ] || CASES+=(shared_too_much_anonymous)
[ "$MODE" != kernel ] || CASES+=(shared_swapped_allocated shared_swapped_whole)
CASES+=(shared_allocated shared_uncounted shared_from_before shared_pieces)

# The most shared memory that the last run has counted, in MiB.
shared_counted() {
    awk '$2 == "shared_peak_bytes" { print int($3 * ($4 == "GiB" ? 1024 : $4 == "MiB" ? 1 : 0)) }' err
}

# 24 MiB are shared by two processes, beside 36 MiB of private memory: counted once, they leave 16 of 40 MiB
# to it.
shared_fits() {
    local counted
    same 40M -s 150 -c shared "$1" 24 36 3 && left 4096 && peak_below 58 || return
    counted=$(shared_counted)
    [ "${counted:-0}" -ge 23 ] && [ "$counted" -le 27 ] || no "$counted MiB of it were counted, not 24"
    [ "$1$MODE" = anonymouskernel ] ||
        said "of the budget of 40 MiB are of shared memory that is not swapped: $2"
}
case_shared_memfd() { shared_fits memfd 'memfd field-heap'; }
case_shared_shm() { shared_fits shm '/dev/shm/field-shared-'; }
case_shared_file() { shared_fits file '/dev/shm/field-shared-'; }
case_shared_sysv() { shared_fits sysv 'System V shared memory'; }
case_shared_anonymous() { shared_fits anonymous 'shared anonymous memory'; }

# 60 MiB do not fit in 40: the run ends within seconds, and the line says who has what, and what to do.
shared_does_not_fit() {
    build shared || return
    ends 60 "$MEMSPILL" run "${HOW[@]}" --memory-max 40M --swap-dir "$WORK/swap" "${MEMSPILL_ARGS[@]}" \
        -- "$WORK/bin/shared" "$1" 60 4 30
    [ "$CODE" = 137 ] || { no "exit code $CODE instead of 137: $(lines | head -n 3)"; return; }
    said "the budget is 40 MiB: process [0-9]+ \(shared\).*$2 [0-9]+ MiB.*raise --memory-max"
}
case_shared_too_much_memfd() { shared_does_not_fit memfd 'memfd field-heap' && shared_way_out; }
case_shared_too_much_shm() { shared_does_not_fit shm '/dev/shm/field-shared-[0-9]+' && shared_way_out; }
case_shared_too_much_file() { shared_does_not_fit file '/dev/shm/field-shared-[0-9]+' && shared_way_out; }
case_shared_too_much_sysv() { shared_does_not_fit sysv 'System V shared memory'; }
case_shared_too_much_anonymous() {
    shared_does_not_fit anonymous 'shared anonymous memory' && shared_way_out
}
shared_way_out() { [ "$MODE" = kernel ] && said --shared=all || said --mode=kernel; }

# With --shared=none it is as if it were not there.
case_shared_uncounted() {
    same 40M -o --shared=none shared memfd 60 4 || return
    [ "$(shared_counted)" = 0 ] || no "it is counted"
}

# A file that was there before the run is not the run's, though it reads it: only what has come since.
case_shared_from_before() {
    local file=/dev/shm/field-before-$$ counted
    (umask 0; head -c 60M /dev/zero >"$file") || { SKIP="no room in /dev/shm"; return; }
    # The times of files on tmpfs are compared by seconds.
    until [ "$(stat -c %W "$file")" -lt "$(date +%s)" ]; do sleep 0.05; done
    same 40M sh -c "exec 3<>$file; for k in 1 2 3 4; do
        cksum <&3; dd bs=1M count=2 if=/dev/zero >>$file; truncate -s 60M $file; done 2>/dev/null"
    rm -f "$file"
    counted=$(shared_counted)
    [ "${counted:-99}" -le 3 ] || no "$counted MiB of it were counted"
}

# One memfd, mapped in pieces at several places of one process, as collectors map their heaps.
case_shared_pieces() {
    same 48M -c memfd_heap 30 3 stays && peak_below 66 || return
    [ "$(shared_counted)" -ge 29 ] && [ "$(shared_counted)" -le 33 ] || no "it is not counted once"
}

# Pages that fallocate makes of a memfd come when they are touched. With --shared=all it is swapped.
case_shared_allocated() { same 48M memfd_heap 30 2 allocated && said 'the heap has 0 KiB'; }
case_shared_swapped_allocated() {
    same 24M -s 150 -o --shared=all memfd_heap 36 2 allocated && left 3000 && said 'the heap has 0 KiB'
}
# Memory that a program allocates by its own instructions is in memory at once, and leaves afterwards: here it
# is too much before it is mapped.
case_shared_swapped_whole() { same 24M -s 150 -o --shared=all memfd_heap 36 1 whole && left 3000; }
