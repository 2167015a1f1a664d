# Memory that may not be written, or not be touched, at the moment: heaps of collectors with a write barrier,
# code of compilers, pages that a program has closed. Cases of field.sh.
CASES+=(guards)
if [ "$MODE" != kernel ]; then CASES+=(rights barrier flips children); fi

case_rights() { same 20M protection rights 10 && left 3000; }
case_barrier() { same 12M protection barrier 16 && left 2000; }
case_flips() { same 16M protection flips 16 && left 2000; }
case_children() { same 24M protection children 12 && left 2000; }
# With all of it brought at once it took a minute.
case_guards() { same 16M -s 20 protection guards 32 && left 4000; }
