#!/bin/bash
# Small programs, one for each kind of thing that programs do with memory, threads, children and calls: each
# prints and ends under memspill as it does alone, in every mode.
#
#   kernel               as root
#   agent, agent-guard   as a normal user: 65534, without capabilities, where this runs as root
#
# The programs are tests/field/*.c: they check themselves and print the same at each run. The cases are in
# tests/field/*.sh, by topic. A topic that has nothing to say in a mode does not list its cases there ($MODE).
#
# With --real the cases are those of tests/field/real/: whole programs (browsers, collectors, servers) in half
# of the memory that they take alone. They take a long time, and each says what it took.

HELP="usage: tests/field.sh [--real] [--mode=kernel|agent|agent-guard] [--memspill BIN] [--with 'ARGS']
                      [--keep] [NAME...]
  --real       whole programs; what is not installed is skipped, with the package that has it
  --mode=MODE  this mode alone; may be given again. Default: all that can be here
  --list       names of the cases"
LIST=0
TOPICS=
MODES=()
words=()
for word; do
    case $word in
    --mode=kernel | --mode=agent | --mode=agent-guard) MODES+=("${word#--mode=}") ;;
    --list) LIST=1 ;;
    --real) TOPICS=/real ;;
    *) words+=("$word") ;;
    esac
done
. "$(dirname "$0")/common.sh"
parse_options "${words[@]}"
FIELD=$TESTS/field$TOPICS
[ ${#MODES[@]} -gt 0 ] || MODES=(kernel agent agent-guard)
# Job control: a job gets a process group of its own, and its signals are not ignored.
set -m
cd "$WORK" || exit 2
mkdir bin alone swap && chmod 755 "$WORK" bin && chmod 1777 swap || exit 2

# no WHY: the case has failed; the first reason counts.
no() { WHY=${WHY:-$1}; return 1; }

# build PROGRAM: tests/field/PROGRAM.c as bin/PROGRAM, once. A line `// cc: FLAGS` in it adds flags,
# `// compiler: NAME` names another compiler than cc.
build() {
    [ ! -e "bin/$1" ] || return 0
    local source compiler flags
    for source in "$FIELD/$1.c" "$TESTS/field/$1.c"; do [ ! -e "$source" ] || break; done
    compiler=$(sed -n 's|^// compiler: ||p' "$source")
    flags=$(sed -n 's|^// cc: ||p' "$source")
    have "${compiler:=cc}" || { SKIP="no $compiler"; return 1; }
    $compiler -O1 -pthread -o "bin/$1" "$source" $flags 2>"bin/$1.said" ||
        no "${source#"$REPO"/} does not compile: $(head -n 1 "bin/$1.said")"
}

# ends SECONDS COMMAND...: as the mode's user, behind WATCH. Its output goes to `out` and `err`; CODE is its
# exit code, or "hung".
ends() {
    local limit=$1 began=$SECONDS
    shift
    timeout -k 5 "$limit" "${WATCH[@]}" "${AS[@]}" "$@" </dev/null >out 2>err
    CODE=$?
    [ $CODE != 124 ] && { [ $CODE != 137 ] || [ $((SECONDS - began)) -lt "$limit" ]; } || CODE=hung
}

# same BUDGET [-o OPTIONS] [-s SECONDS] [-c] COMMAND...: the command prints and ends in a budget as it does
# alone. A command without a slash is tests/field/COMMAND.c where there is one. OPTIONS are for
# `memspill run`; SECONDS (60) is the most that it may take, alone and in the budget. With -c the run is in a
# memory cgroup of its own, and PEAK_KIB is the most anonymous and shared memory that it had, or empty where
# there is none. BUDGET may be `half`, of what the command has alone in such a cgroup.
# Leaves `out`, `err`, CODE, and PSWPOUT, the pages that were swapped out.
same() {
    local budget=$1 options=() limit=60 watch= alone began code alone_s alone_kib
    shift
    while :; do
        case $1 in
        -o) read -ra options <<<"$2"; shift ;;
        -s) limit=$2; shift ;;
        -c) watch=1 ;;
        *) break ;;
        esac
        shift
    done
    if [[ $1 != */* && -e $FIELD/$1.c ]]; then
        build "$1" || return
        set -- "$WORK/bin/$1" "${@:2}"
    fi
    PSWPOUT=0
    [ "$budget" != half ] || watch=1
    alone=alone/$(printf '%s\n' "$([ "$MODE" = kernel ] || echo user)" "$@" | md5sum | cut -c1-32)
    if [ ! -e "$alone" ]; then
        began=$(now)
        ALONE=1 ends_watched "$watch" "$limit" "$@" || return
        [ "$CODE" != hung ] && [ "$CODE" -lt 126 ] ||
            { no "alone it ends with $CODE, in $limit s at most: $(tail -n 1 out err)"; return; }
        echo "$CODE $(since "$began") $PEAK_KIB" >"$alone.took"
        mv out "$alone"
    fi
    read -r code alone_s alone_kib <"$alone.took"
    if [ "$budget" = half ]; then
        [ -n "$alone_kib" ] || { SKIP="half of what it has alone needs a memory cgroup, and root"; return; }
        budget=$((alone_kib / 2048))M
    fi
    began=$(now)
    ends_watched "$watch" "$limit" "$MEMSPILL" run "${HOW[@]}" --memory-max "$budget" \
        --swap-dir "$WORK/swap" --stats=all "${options[@]}" "${MEMSPILL_ARGS[@]}" -- "$@" || return
    DID="$(since "$began") s, alone $alone_s${PEAK_KIB:+; had $((PEAK_KIB >> 10)) MiB of $budget}"
    PSWPOUT=$(awk '$2 == "pswpout" { print $3 }' err)
    [ "$CODE" != hung ] || { no "it does not end in $limit s; last: $(tail -n 1 out)"; kill_ours; return 1; }
    [ "$CODE" = "$code" ] || { no "exit code $CODE instead of $code: $(lines | head -n 3)"; return; }
    cmp -s out "$alone" ||
        { no "it prints $(diff "$alone" out | grep '^[<>]' | head -n 4 | tr '\n' ' ')"; return; }
    gone 5 || { no "left: $(ours | tr '\n' ' ')"; kill_ours; return 1; }
}

# ends_watched WATCH SECONDS COMMAND...: as `ends`; where WATCH says so, in a memory cgroup, if there is one.
ends_watched() {
    local watch=$1
    shift
    PEAK_KIB= WATCH=()
    if [ -n "$watch" ] && [ "$(id -u)" = 0 ]; then
        build cgroup_peak || return
        WATCH=(bin/cgroup_peak peak)
        rm -f peak
    fi
    ends "$@"
    [ ${#WATCH[@]} = 0 ] || PEAK_KIB=$(cat peak 2>/dev/null)
    WATCH=()
}

# What the last run said, but for its statistics.
lines() { grep -vE '^memspill: [A-Za-z0-9_.-]+( [a-z]+)? {2,}[a-z0-9]' err; }

# left PAGES: at least so many were swapped out in the last run.
left() { [ "${PSWPOUT:-0}" -ge "$1" ] || no "only ${PSWPOUT:-0} pages were swapped out"; }

# said PATTERN: the last run said so on stderr.
said() { lines | grep -qE -- "$1" || no "no line says '$1'"; }

# peak_below MIB: the last run, with -c, never had more.
peak_below() {
    [ -n "$PEAK_KIB" ] || { SKIP="no memory cgroup here"; return; }
    [ "$PEAK_KIB" -le $(($1 << 10)) ] || no "it had $((PEAK_KIB >> 10)) MiB, which is more than $1"
}

# can_be MODE: whether this machine has it; why not is in WHY.
can_be() {
    MODE=$1 AS=() HOW=(--mode="${1%-guard}")
    [ "$MODE" != agent-guard ] || HOW+=(--holes=guard)
    if [ "$MODE" = kernel ]; then
        [ "$(id -u)" = 0 ] || { WHY="needs root"; return 1; }
    elif [ "$(id -u)" = 0 ]; then
        AS=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all
            --no-new-privs)
        "${AS[@]}" test -x "$MEMSPILL" || { WHY="user 65534 cannot read $MEMSPILL"; return 1; }
    fi
    ends 20 "$MEMSPILL" run "${HOW[@]}" -m 64M --swap-dir "$WORK/swap" -- true
    [ "$CODE" = 0 ] || { WHY=$(head -n 1 err); return 1; }
}

WATCH=()
for MODE in "${MODES[@]}"; do
    WHY=
    can_be "$MODE" || { skip "$MODE" "$WHY"; continue; }
    CASES=()
    for file in "$FIELD"/*.sh; do . "$file"; done
    [ $LIST = 0 ] || { printf '%s\n' "${CASES[@]}"; continue; }
    for name in "${NAMES[@]}"; do
        [[ " ${CASES[*]} " == *" $name "* ]] || skip "$name, $MODE" "no case of this mode"
    done
    for name in "${CASES[@]}"; do
        wanted "$name" || continue
        WHY= SKIP= DID=
        "case_$name" || no "it failed"
        if [ -n "$SKIP" ]; then
            skip "$name, $MODE" "$SKIP"
        elif [ -n "$WHY" ]; then
            fail "$name, $MODE" "$WHY${DID:+; $DID}"
            kill_ours
        else
            ok "$name, $MODE" "$DID"
        fi
    done
done
[ $LIST = 0 ] || exit 0
finish
