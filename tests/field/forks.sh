# Children of forks: when they join, and what they share with their parent. Cases of field.sh.
CASES+=(held_child late_forks fork_limit stopped_group)

# Each child is held up in its first steps for longer than it may be late.
case_held_child() { same 64M held_child; }

# While children come and go the tree comes near its budget, and passes it.
case_late_forks() { same 32M late_forks 1 40 6; }

# A child that cannot have its second thread is none: the fork fails.
case_fork_limit() { same 20M fork_limit 28 "$([ "$MODE" = kernel ] && echo 3 || echo 48)" && left 1024; }

# A group is stopped and continued again and again, the threads in it that swap out with it.
case_stopped_group() { same 24M stopped_group 4 40 && left 1024; }
