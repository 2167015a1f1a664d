# Memory that a program fills and reads. Cases of field.sh.
CASES+=(walk)

case_walk() { same 24M -c walk 48 4 && left 4096 && peak_below 42; }
