# Programs that are strange to memspill: of another C library, confined by themselves, in namespaces of their
# own, with another LD_PRELOAD. Cases of field.sh.
CASES+=(musl musl-child seccomp preload preload-child process-madvise limits own-userfaultfd doors)
[ "$MODE" != kernel ] || CASES+=(other-network)

# Another C library than the GNU one passes nothing to constructors.
case_musl() {
    same 20M musl 40 8 && left 4096
}

# As a child, and where the agent finds no address in the environment.
case_musl-child() {
    build musl || return
    same 20M sh -c '"$0" 40 8; echo $?; env -u MEMSPILL_AGENT "$0" 8 2; echo $?' "$WORK/bin/musl" && left 4096
}

# Filters of the program's own. Under the kernel pager nobody can tell a second thread of one.
case_seccomp() {
    local one=
    [ "$MODE" != kernel ] || one=one
    same 20M seccomp 32 $one && left 4096
}

# Another malloc, the way people take one: it is the program's LD_PRELOAD, in place of what was there.
has_jemalloc() {
    JEMALLOC=$(ldconfig -p | awk '$1 == "libjemalloc.so.2" { print $NF; exit }')
    [ -n "$JEMALLOC" ] && build preload || { SKIP=${WHY:-no libjemalloc.so.2}; return 1; }
}

case_preload() {
    has_jemalloc || return 0
    same 24M env LD_PRELOAD="$JEMALLOC" "$WORK/bin/preload" 48 && left 4096
}

case_preload-child() {
    has_jemalloc || return 0
    same 24M bash -c 'LD_PRELOAD=$1 "$0" 48; LD_PRELOAD="$1 $1" env "$0" 2; LD_PRELOAD= "$0" 2' \
        "$WORK/bin/preload" "$JEMALLOC" && left 4096
}

# Advice that a program gives itself in the way of those who give it to others.
case_process-madvise() { same 20M process_madvise 40 && left 4096; }

# Children in other network namespaces. In a user namespace too they reach memspill in no way.
case_other-network() { same 20M other_network 32 && left 2048; }

# Memory that is locked within the limit, and a limit of addresses.
case_limits() { same 24M limits 32 && left 1024; }

# A program that waits for faults of its own hears of them, or is told that it will not.
case_own-userfaultfd() { same 24M -s 20 own_userfaultfd 48 && left 4096; }

# Calls and variables by which the agent's own tests use it: here they are nothing.
case_doors() {
    build doors &&
        same 24M env MEMSPILL_DISPATCH=1 MEMSPILL_WINDOWS=1 "$WORK/bin/doors" && left 1024
}
