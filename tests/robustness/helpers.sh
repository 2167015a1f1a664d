# What the cases have in common: how a run is started, waited for and asked, and what must be left of it.

WHY=
no() { WHY=${WHY:-$1}; return 1; } # the first thing that went wrong

# start COMMAND...: in the background as a job; PID is its process and its group.
start() {
    : >out
    : >err
    "$@" </dev/null >out 2>err &
    PID=$!
}

# Each thread of ours, and what it waits for in the kernel (root sees the stacks).
where_it_hangs() {
    local pid task
    for pid in "$PID" $(ours | grep -vx "$PID"); do
        echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
        for task in "/proc/$pid/task"/*; do
            echo "  $(cat "$task/comm"): $(grep '^State' "$task/status") $(cat "$task/wchan"):" \
                "$(tr '\n' ' ' <"$task/stack")"
        done
    done 2>/dev/null
}

# ends SECONDS: waits for PID; CODE is its exit code, or "hung".
ends() {
    local end=$((SECONDS + $1 + 1))
    while kill -0 $PID 2>/dev/null; do
        if [ $SECONDS -ge $end ]; then
            CODE=hung
            where_it_hangs >&2
            kill_ours
            wait $PID 2>/dev/null
            return
        fi
        sleep 0.02
    done
    wait $PID 2>/dev/null
    CODE=$?
}

# call SECONDS COMMAND...: runs to its end.
call() {
    local limit=$1
    shift
    start "$@"
    ends "$limit"
}

code_is() { [ "$CODE" = "$1" ] || no "exit code $CODE instead of $1: $(tail -n 1 err)"; }

# The reason is one line on stderr, nothing on stdout.
says() {
    [ "$(grep -c '^memspill: ' err)" -ge 1 ] || { no "no line 'memspill: ...' on stderr"; return 1; }
    [ ! -s out ] || { no "something on stdout"; return 1; }
    [ -z "${1:-}" ] || grep -qiE -- "$1" err || no "the line does not say '$1': $(tail -n 1 err)"
}

clean() {
    ! grep -q 'BAD PAGE' err || { no "$(grep -m 1 'BAD PAGE' err)"; return 1; }
    if ! gone 2; then
        no "left after 2 s: $(for p in $(ours); do tr '\0' ' ' </proc/$p/cmdline; echo "($p);"; done)"
        kill_ours
        return 1
    fi
    [ -z "$(ls -A "$SWAP")" ] || {
        no "left in the swap directory: $(ls -A "$SWAP")"
        rm -rf "${SWAP:?}"/*
        return 1
    }
    [ -z "$(shared_left)" ] || { no "left: $(shared_left)"; return 1; }
    [ -z "$(agents_left)" ] || no "left: $(agents_left)"
}

# Files of shared memory that the suite's programs have made: other programs of the machine make some too.
shared_left() { compgen -G "/dev/shm/memspill-*-$$*"; }

# Files of agents that have a name.
agents() {
    local file
    for file in {/run,/tmp,/var/tmp}/memspill-agent-*; do [ ! -e "$file" ] || echo "$file"; done
}
# The agents' files that were left behind: a run that lives has a lock on its own.
agents_left() { agents | while read -r file; do ! flock --nonblock "$file" true || echo "$file"; done; }

targets() { # processes of ours that are the workload, the first one first
    local pid
    for pid in $(ours | sort -n); do [ "$(readlink /proc/$pid/exe)" = "$WORKLOAD" ] && echo $pid; done
}

# while_it_runs SECONDS WORDS COMMAND...: until the command is true; the run must go on meanwhile.
while_it_runs() {
    local end=$((SECONDS + $1)) words=$2
    shift 2
    until "$@"; do
        kill -0 $PID 2>/dev/null || { no "it ended by itself: $(tail -n 1 err)"; return 1; }
        [ $SECONDS -lt $end ] || { no "$words"; return 1; }
        sleep 0.02
    done
}

# running COUNT: until so many targets are there.
running() { while_it_runs 10 "the target did not start" are_there "$1"; }
are_there() { [ "$(targets | wc -l)" -ge "$1" ]; }

# populated COUNT: until so many processes have said that all their memory is written.
populated() { while_it_runs 60 "not populated after 60 s" are_ready "$1"; }
are_ready() { [ "$(grep -c ready out)" -ge "$1" ]; }

moment() { sleep "$(awk "BEGIN { srand($RANDOM); print rand() * ${1:-2} }")"; } # up to so many seconds

refused() { # ARGS...: memspill must refuse with 125 and a line, without running anything
    call 20 "$MEMSPILL" run "$@" -- touch "$WORK/ran"
    [ ! -e ran ] || { rm -f ran; no "ran with: $*"; return 1; }
    code_is 125 && says || { WHY="with '$*': $WHY"; return 1; }
    [ "$(wc -l <err)" -le 2 ] || no "with '$*': more than two lines on stderr"
}

# is_swapped WHO: whose 96 MiB or more, all there at one time, had 32 to leave of (BUDGET is 64M). The order
# in which threads run decides what leaves beyond that: of ./static 96 it may be as little again.
is_swapped() {
    local pages
    pages=$(awk '$2 == "pswpout" { print $3 }' err)
    [ "${pages:-0}" -ge 8192 ] || { no "$1: only ${pages:-0} pages were swapped out"; return 1; }
}

until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1 + 1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

ctl() { "$MEMSPILL" ctl --pid $PID "$@" >ctl.out 2>&1; }
ctl_ok() { ctl "$@" || { no "ctl $1: $(tail -n 1 ctl.out)"; return 1; }; }
# answers: until the run can be asked.
answers() {
    while_it_runs 10 "it does not answer" ctl swaps || { WHY="$WHY; ctl says: $(cat ctl.out)"; return 1; }
}
open_files() { ls -l /proc/$PID/fd 2>/dev/null | grep -c -- "-> $1\$"; }
# used NAME: KiB that the device holds.
used() { ctl swaps; awk -v name="$1" '$1 == name && $6 != "off" { print $4 }' ctl.out; }
# away SECONDS KIB NAME: until the device holds so much.
away() { while_it_runs $(($1 + 1)) "$3 was not used" holds "$2" "$3"; }
holds() { [ "$(used "$2")" -ge "$1" ] 2>/dev/null; }

# of_mode AGENT KERNEL: what goes with the mode of the runs.
of_mode() {
    case " ${MEMSPILL_ARGS[*]} " in
    *" --mode=agent "*) echo "$1" ;;
    *) echo "$2" ;;
    esac
}

# peak_below MIB: the largest number that the program has printed.
peak_below() {
    code_is 0 || return
    [[ "$(tail -n 1 out)" =~ ^[0-9]+$ ]] && [ "$(tail -n 1 out)" -le "$1" ] ||
        no "its anonymous memory is $(tail -n 1 out) MiB instead of $1"
}

# At the end it is always checked once, even if it never was before.
checked() { grep -qE -- '--check: ([3-9]|[1-9][0-9]+) checks, nothing found' err ||
    no "not checked: $(tail -n 1 err)"; }

# A group that is made for this, wherever the machine has a freezer.
freezer() {
    local folder
    for folder in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/freezer; do
        FROZEN=$folder/memspill-test-$$
        mkdir "$FROZEN" 2>/dev/null || continue
        { [ -e "$FROZEN/cgroup.freeze" ] || [ -e "$FROZEN/freezer.state" ]; } && echo $folder
        rmdir "$FROZEN"
    done
}

command_of_run() {
    local pid
    for pid in $(cat /proc/$PID/task/$PID/children); do
        [ "$(readlink /proc/$pid/exe)" = "$WORKLOAD" ] && echo $pid
    done
}
rss() { awk '/^RssAnon/ { print $2 * 1024 }' /proc/"$(command_of_run)"/status; } # in bytes
