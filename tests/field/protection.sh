# Memory that may not be written, or not be touched, at the moment: heaps of collectors with a write barrier,
# code of compilers, pages that a program has closed. Cases of field.sh.
CASES+=(rights barrier flips children guards beside)

case_rights() { same 20M protection rights 10 && left 3000; }
case_barrier() { same 12M protection barrier 16 && left 2000; }
case_flips() { same 16M protection flips 16 && left 2000; }
case_children() { same 24M protection children 12 && left 2000; }
# With all of it brought at once it took a minute.
case_guards() { same 16M -s 20 protection guards 32 && left 4000; }
# Under the kernel's pager all of its threads stand still while such memory leaves, and do not notice it.
case_beside() { same 16M -s 90 protection beside 24 && left 4000; }
