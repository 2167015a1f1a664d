# Memory that a program fills and reads, and what must go on beside it: locks, registers, signals, changes.
# Cases of field.sh.
CASES+=(walk locks registers handlers heap-top soft-dirty)

case_walk() { same 24M -c walk 48 4 && left 4096 && peak_below 42; }
case_locks() { same 10M locks && left 4096; }
case_registers() {
    grep -qw avx /proc/cpuinfo || { SKIP="needs AVX"; return; }
    same 10M registers && left 4096
}
case_handlers() { same 10M handlers && left 4096; }
case_heap-top() { same 10M heap_top && left 4096; }
case_soft-dirty() {
    same 10M soft_dirty && left 4096 || return
    # The program relies on this where the kernel keeps such bits; this kernel may not.
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m 64M --swap-dir swap -- sh -c 'echo 1 >/proc/self/clear_refs'
    [ "$CODE" != 0 ] && grep -qi 'permission denied' err || no "/proc/self/clear_refs can be written"
    # Another file of that name can be; each mode runs as another user, so each has its own.
    local other=swap/$MODE.clear_refs
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m 64M --swap-dir swap -- sh -c "echo 1 >$other"
    [ "$CODE" = 0 ] && [ -s "$other" ] || no "nor can another file of that name"
    rm -f "$other"
}
