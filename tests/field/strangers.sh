# Programs that are strange to memspill: of another C library, confined by themselves, in namespaces of their
# own, with another LD_PRELOAD. Cases of field.sh.
CASES+=(musl musl-child)

# Another C library than the GNU one passes nothing to constructors.
case_musl() {
    same 20M musl 40 8 && left 4096
}

# As a child, and where the agent finds no address in the environment.
case_musl-child() {
    build musl || return
    same 20M sh -c '"$0" 40 8; echo $?; env -u MEMSPILL_AGENT "$0" 8 2; echo $?' "$WORK/bin/musl" && left 4096
}
