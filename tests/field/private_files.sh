# Private mappings of files, written: such pages stay, in every mode. Cases of field.sh.
CASES+=(private_file_stays)

# They leave so little of the budget that the rest of the program comes and goes without end. The run ends
# before the program does, which would take 20 s, and the line names the file.
case_private_file_stays() {
    build private_file || return
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m 192M --swap-dir "$WORK/swap" -- "$WORK/bin/private_file" 188 16
    [ "$CODE" = 137 ] && [ ! -s out ] || { no "it ends with $CODE: $(cat out) $(lines | head -n 3)"; return; }
    said 'MiB of written private file mappings \(/tmp/private_file_.* raise --memory-max, or have the program'
}
