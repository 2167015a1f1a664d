# How runs end, and what they do not begin with. Cases of field.sh.
CASES+=(hops daemon children_ignored)

# in_budget BUDGET COMMAND...: the command alone decides when it has ended, and others of its tree go on.
in_budget() {
    local budget=$1
    shift
    ends 60 "$MEMSPILL" run --pager="$MODE" -m "$budget" --swap-dir "$WORK/swap" "${MEMSPILL_ARGS[@]}" -- "$@"
    [ "$CODE" = 0 ] || { no "exit code $CODE: $(lines | head -n 1)"; return; }
    gone 5 || { no "left: $(ours | tr '\n' ' ')"; kill_ours; return 1; }
}

# Processes that hand over to the next one without a pause are waited for.
case_hops() {
    build hops && in_budget 24M bin/hops 300 && [ "$(cat out)" = "the last of 300" ] ||
        no "the last process of the chain was not waited for"
}

# Whoever starts memspill may have told the kernel to forget the ends of children, which programs inherit.
case_children_ignored() {
    ends 20 env --ignore-signal=CHLD "$MEMSPILL" run --pager="$MODE" -m 24M --swap-dir "$WORK/swap" \
        "${MEMSPILL_ARGS[@]}" -- bash -c 'grep SigIgn /proc/self/status; exit 3'
    [ "$CODE" = 3 ] || { no "exit code $CODE instead of 3"; return; }
    # Bit 16 is that of signal 17.
    [[ $(cat out) =~ [13579bdf]....$ ]] || no "the program does not inherit it: $(cat out)"
}

# So are daemons: they are seen, swapped out, and left to end by themselves.
case_daemon() {
    local file=$WORK/swap/daemon-$MODE
    build daemon && in_budget 12M bin/daemon 20 10 "$file" && [ "$(cat "$file")" = "ended well" ] ||
        no "the daemon was not waited for"
}
