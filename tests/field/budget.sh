# The budget is kept, as seen from outside: at most 5 % and 16 MiB more. Cases of field.sh.
CASES+=(refill_dontneed refill_free refill_pieces refill_map refill_over refill_brk)
CASES+=(copies_written copies_read)
# By guard pages writes to what is shared are not held up.
[ "$MODE" = agent-guard ] || CASES+=(copies_of_many copies_at_once)

refill() { same 60M -c refill "$@" && left 4096 && peak_below 79; }
case_refill_dontneed() { refill dontneed 120 3; }
case_refill_free() { refill free 120 3; }
case_refill_pieces() { refill pieces 120 3; }
case_refill_map() { refill map 120 3; }
case_refill_over() { refill over 120 3; }
case_refill_brk() { refill brk 120 3; }

# Most of it: what they bring while they write has no room kept for it.
case_copies_written() {
    same 64M -c -s 120 copies 3 50 100 && left 4096 || return
    peak_below "$([ "$MODE" = agent-guard ] && echo 100 || echo 83)"
}
# Eight children write five times the budget.
case_copies_of_many() { same 64M -c -s 120 copies 8 40 100 && left 4096 && peak_below 83; }
# Memory is not tight when they are forked.
case_copies_at_once() { same 100M -c -s 120 copies 3 60 100 && left 4096 && peak_below 121; }
# Nothing is counted twice: it fits, and nothing leaves.
case_copies_read() {
    same 100M -c copies 6 50 0 && peak_below 75 || return
    [ "$PSWPOUT" = 0 ] || no "$PSWPOUT pages were swapped out, of memory that fits"
}
