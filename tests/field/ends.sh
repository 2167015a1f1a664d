# How runs end, and what they do not begin with. Cases of field.sh.
CASES+=(hops daemon children_ignored swap_held swap_mounted doctor_directory)

# in_budget BUDGET COMMAND...: the command alone decides when it has ended, and others of its tree go on.
in_budget() {
    local budget=$1
    shift
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m "$budget" --swap-dir "$WORK/swap" "${MEMSPILL_ARGS[@]}" -- "$@"
    [ "$CODE" = 0 ] || { no "exit code $CODE: $(lines | head -n 1)"; return; }
    gone 5 || { no "left: $(ours | tr '\n' ' ')"; kill_ours; return 1; }
}

# Processes that hand over to the next one without a pause are waited for.
case_hops() {
    build hops && in_budget 24M bin/hops 300 && [ "$(cat out)" = "the last of 300" ] ||
        no "the last process of the chain was not waited for"
}

# The starter of memspill may have told the kernel to forget the ends of children, which programs inherit.
case_children_ignored() {
    ends 20 env --ignore-signal=CHLD "$MEMSPILL" run "${HOW[@]}" -m 24M --swap-dir "$WORK/swap" \
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

# swap_to FILE[,OPTION]: a run that swaps there. CODE and `err` are what it says.
swap_to() {
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m 24M --swap "file:$1" "${MEMSPILL_ARGS[@]}" -- true
}

# refused FILE WHAT: it holds this, and stays as it is.
refused() {
    local before
    before=$(md5sum <"$1")
    swap_to "$1"
    [ "$CODE" = 125 ] && said "holds $2, " || { no "$2: exit code $CODE: $(lines | head -n 1)"; return; }
    [ "$(md5sum <"$1")" = "$before" ] || no "$2 was written to"
}

# Data on the disk are named and kept, and lost only on request.
case_swap_held() {
    local file=$WORK/swap/image-$MODE
    as_of() { rm -f "$file" && truncate -s "$1" "$file" && chmod 666 "$file"; }
    as_of 16M
    PATH=$PATH:/usr/sbin:/sbin
    have mkfs.ext4 || { SKIP="no mkfs.ext4"; return; }
    mkfs.ext4 -q "$file" && refused "$file" ext4 || return
    swap_to "$file,overwrite"
    [ "$CODE" = 0 ] || { no "overwrite: exit code $CODE: $(lines | head -n 1)"; return; }
    swap_to "$file"
    [ "$CODE" = 0 ] || { no "what memspill has left: exit code $CODE: $(lines | head -n 1)"; return; }
    as_of 16M
    put_at() { printf %s "$1" | dd of="$file" bs=1 seek="$2" conv=notrunc status=none; }
    put_at CD001 32769 && refused "$file" "ISO 9660" || return
    as_of 16M
    put_at _BHRfS_M 65600 && refused "$file" btrfs || return
    if have mkfs.btrfs; then
        as_of 128M
        mkfs.btrfs -q "$file" >/dev/null 2>&1 && refused "$file" btrfs || return
    fi
    as_of 16M
    put_at x 15000000 && refused "$file" data || return
    # Zeros, and what mkswap makes, are nobody's.
    as_of 0
    dd if=/dev/zero of="$file" bs=1M count=8 conv=notrunc status=none
    swap_to "$file"
    [ "$CODE" = 0 ] || { no "zeros: exit code $CODE: $(lines | head -n 1)"; return; }
    have mkswap || return 0
    as_of 8M
    mkswap "$file" >/dev/null 2>&1 && swap_to "$file"
    [ "$CODE" = 0 ] || no "mkswap: exit code $CODE: $(lines | head -n 1)"
}

# A device that is mounted is in use, whatever is said of what it holds.
case_swap_mounted() {
    local file=$WORK/mounted-$MODE device
    [ "$MODE" = kernel ] || { SKIP="devices are root's"; return; }
    PATH=$PATH:/usr/sbin:/sbin
    have losetup && have mkfs.ext4 || { SKIP="no losetup or mkfs.ext4"; return; }
    truncate -s 16M "$file" && mkfs.ext4 -q "$file" && mkdir -p mounted || return
    device=$(losetup --find --show "$file" 2>/dev/null) || { SKIP="no loop device can be had"; return; }
    if mount "$device" mounted 2>/dev/null; then
        for swap in "$device" "$device,overwrite"; do
            swap_to "$swap"
            [ "$CODE" = 125 ] && said "in use: mounted" || no "$swap: exit code $CODE: $(lines | head -n 1)"
        done
        umount mounted
    else
        SKIP="it cannot be mounted"
    fi
    [ -n "$WHY$SKIP" ] || refused "$device" ext4
    losetup --detach "$device"
}

# doctor says what a run with the same directory would.
case_doctor_directory() {
    ends 20 "$MEMSPILL" doctor --swap-dir "$WORK/is-not-there"
    [ "$CODE" = 1 ] && grep -q "no such directory" out || no "exit code $CODE: $(tail -n 1 out)"
}
