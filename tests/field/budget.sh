# The budget is kept, as seen from outside: at most 5 % and 16 MiB more. Cases of field.sh.
CASES+=(refill_dontneed refill_free refill_pieces refill_map refill_over refill_brk)

refill() { same 60M -c refill "$@" && left 4096 && peak_below 79; }
case_refill_dontneed() { refill dontneed 120 3; }
case_refill_free() { refill free 120 3; }
case_refill_pieces() { refill pieces 120 3; }
case_refill_map() { refill map 120 3; }
case_refill_over() { refill over 120 3; }
case_refill_brk() { refill brk 120 3; }
