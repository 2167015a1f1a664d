# Memory that may not be written, or not be touched, at the moment: heaps of collectors with a write barrier,
# code of compilers, pages that a program has closed. Cases of field.sh.
if [ "$MODE" = kernel ]; then CASES+=(protected_stays); else CASES+=(rights barrier flips children guards); fi

case_rights() { same 20M protection rights 10 && left 3000; }
case_barrier() { same 12M protection barrier 16 && left 2000; }
case_flips() { same 16M protection flips 16 && left 2000; }
case_children() { same 24M protection children 12 && left 2000; }
# With all of it brought at once it took a minute.
case_guards() { same 16M -s 20 protection guards 32 && left 4000; }

# The kernel moves no such pages. A run that needs more of them than its budget ends, and says what they are,
# though something else of it can always be had.
case_protected_stays() {
    build protection || return
    ends 60 "$MEMSPILL" run --mode=kernel -m 16M --swap-dir "$WORK/swap" -- "$WORK/bin/protection" flips 24
    [ "$CODE" = 137 ] || { no "it ends with $CODE: $(lines | head -n 3)"; return; }
    said 'MiB read-only or without access'
}
