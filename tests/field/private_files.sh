# Private mappings of files, written: such pages stay, in every mode. Cases of field.sh.
CASES+=(private_file_stays private_file_grows)

# stays MIB: the program writes so many MiB of a file. The run ends within 10 s after the first 180 of them,
# and the line names the file.
stays() {
    local began
    build private_file || return
    began=$(now)
    ends 60 "$MEMSPILL" run "${HOW[@]}" -m 192M --swap-dir "$WORK/swap" -- \
        "$WORK/bin/private_file" "$1" 180 16
    DID="$(since "$began") s"
    [ "$CODE" = 137 ] || { no "it ends with $CODE: $(lines | head -n 3)"; return; }
    said 'MiB of written private file mappings \(/tmp/private_file_.* raise --memory-max, or have the program'
}

# They leave so little of the budget that the rest of the program comes and goes without end.
case_private_file_stays() { stays 188; }
# They alone are more than the budget.
case_private_file_grows() { stays 400; }
