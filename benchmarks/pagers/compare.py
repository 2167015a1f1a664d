#!/usr/bin/env python3
"""The modes against each other, and against the program without memspill, in turns.

    sudo benchmarks/pagers/compare.py [--rounds N] [--modes M,...] [--json FILE] [ROW...]   --list: the rows

Each round runs a row's program in each mode: natively, in kernel mode (as root), and in agent
mode with either kind of holes (as user 65534, without any privilege), in an order that changes from
round to round. A row says what is compared: the time that the whole run takes, or figures that the program
prints (calls.c).

The table has medians with their ranges, and the medians of the ratios within rounds, which are above 1 where
the first is slower. The last lines are geometric means over the rows that are run at half of their peak. With
--json the figures of all runs are kept; a file that is there already is added to. ^C ends it with the table
of the rounds that are complete.
"""
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from programs import (MEMSPILL, WORKLOAD, Run, half_of_peak, java, make_input, make_java, node,  # noqa: E402
                      print_table, python, spread, sqlite)

MODES = ("native", "kernel", "userfaultfd", "guard")
RATIOS = (("guard", "kernel"), ("userfaultfd", "kernel"), ("guard", "userfaultfd"),
          ("kernel", "native"), ("guard", "native"), ("userfaultfd", "native"))
UNPRIVILEGED = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all",
                "--bounding-set=-all", "--no-new-privs"]
LIMIT_S = 120

work = pathlib.Path(tempfile.mkdtemp(prefix="memspill-modes."))
calls = work / "calls"


def shell(script):
    return ["bash", "-c", script]


def redis(clients):
    return shell(f"""d=$(mktemp -d) && cd "$d" || exit 1
        redis-server --port 0 --unixsocket s --save '' --daemonize no >log 2>&1 & server=$!
        for i in $(seq 200); do redis-cli -s s ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done
        redis-benchmark -s s -q --csv -n 40000 -r 10000 -t set,get -c {clients} | tr -d '"' |
            awk -F, '/^[SG]ET/ {{ print "redis_" tolower($1) "_ns", 1e9 / $2 }}'
        redis-cli -s s shutdown nosave; wait $server; rm -rf "$d" """)


# What a script of autoconf's does again and again.
CONFIGURE = """for i in $(seq 100); do
    x=$(echo abc$i | sed s/b/x/); y=$(expr $i + 1)
    test -n "$x" && case $(basename /a/b$i) in b*) ;; esac
    echo $y | grep -q 1
done"""

# NAME: (budget in MiB; "half": half of the program's peak, command, whether it prints its figures)
ROWS = {
    "cpu": (1024, [WORKLOAD, "cpu", "--seconds-worth", "4"], False),
    "fresh": (1536, [calls, "fresh", "1024"], True),
    "calls": (1024, [calls, "4"], True),
    "calls-pressed": (64, [calls, "128"], True),
    "dd": (1024, shell("dd if=/dev/zero of=/dev/null bs=512 count=300000 2>/dev/null"), False),
    # Two thirds are away, more than the pool holds: three of four faults read the file.
    "faults-1": (64, [calls, "faults", "192", "1"], True),
    "faults-2": (64, [calls, "faults", "192", "2"], True),
    # All that is away is in the pool.
    "faults-pool-1": (160, [calls, "faults", "192", "1"], True),
    "redis": (1024, redis(8), True),
    "forks": (256, shell("for i in $(seq 200); do /bin/true; done"), False),
    "configure": (256, shell(CONFIGURE), False),
    "numpy": ("half", python("numpy_job.py", 120), False),
    "python": ("half", python("dicts.py", 4), False),
    "sqlite": ("half", sqlite(150_000), False),
    "gcc": ("half", ["gcc", "-O2", "-c", work / "big.c", "-o", "/dev/null"], False),
    "node": ("half", node(5), False),
    "java": ("half", java(work, 6), False),
}


def prepare(names):
    work.chmod(0o755)
    subprocess.run(["gcc", "-O2", "-pthread", "-o", calls, HERE / "calls.c"], check=True)
    if "gcc" in names:
        make_input(work / "big.c", "make_c.py", 500, 1)
    if "java" in names:
        make_java(work)


def run(mode, budget, command, prints):
    """Figures of one run: NAME: number; {} where it failed."""
    if mode != "native":
        how = "--mode=kernel" if mode == "kernel" else f"--holes={mode}"
        command = [MEMSPILL, "run", "-m", f"{budget}M", how, "--", *command]
    if mode != "kernel":
        command = UNPRIVILEGED + command
    done = Run(work, command, LIMIT_S)
    if not done.in_time or done.code != 0:
        why = done.why_failed() if done.in_time else f"not done after {LIMIT_S} s"
        print(f"  {mode}: {why}", file=sys.stderr)
        return {}
    if not prints:
        return {"seconds": done.seconds}
    figures = {}
    for line in done.out.decode().splitlines():
        if len(words := line.split()) == 2:
            figures[words[0]] = float(words[1])
    return figures


def ratios(rounds, figure, one, other):
    """One mode's figure by another's, in each round that has both."""
    pairs = ((of.get(one, {}).get(figure), of.get(other, {}).get(figure)) for of in rounds)
    return [a / b for a, b in pairs if a is not None and b]


def table(rows, modes):
    compared = [pair for pair in RATIOS if set(pair) <= set(modes)]
    heads = ["row", "figure", *modes, *(f"{one} / {other}" for one, other in compared)]
    lines = []
    means = {pair: [] for pair in compared}
    for name, row in rows.items():
        rounds = row["rounds"]
        for figure in dict.fromkeys(figure for one in rounds for run in one.values() for figure in run):
            of = [[one[mode][figure] for one in rounds if figure in one.get(mode, {})] for mode in modes]
            by = {pair: ratios(rounds, figure, *pair) for pair in compared}
            title = f"{name}, {row['budget_mib']} MiB"
            lines.append([title, figure, *map(spread, of), *map(spread, by.values())])
            if ROWS[name][0] == "half":
                for pair, values in by.items():
                    means[pair] += [math.log(statistics.median(values))] if values else []
    print_table(heads, lines)
    for (one, other), logs in means.items():
        if logs:
            mean = math.exp(sum(logs) / len(logs))
            print(f"at half of the peak, {one} / {other}: geometric mean of {len(logs)} rows {mean:.2f}")


def main():
    words, names, rounds, file, modes = sys.argv[1:], [], 5, None, MODES
    while words:
        word = words.pop(0)
        if word == "--rounds":
            rounds = int(words.pop(0))
        elif word == "--json":
            file = pathlib.Path(words.pop(0)).resolve()
        elif word == "--modes":
            modes = tuple(words.pop(0).split(","))
            if not set(modes) <= set(MODES):
                sys.exit(f"modes are {', '.join(MODES)}")
        elif word == "--list":
            return print(*ROWS)
        elif word in ("-h", "--help"):
            return print(__doc__)
        elif word in ROWS:
            names.append(word)
        else:
            sys.exit(__doc__)
    names = names or list(ROWS)
    kept = json.loads(file.read_text()) if file and file.exists() else {}
    prepare(names)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(names, rounds, modes, kept, file)
    except KeyboardInterrupt:
        print("stopped: what follows is of the rounds that are complete", file=sys.stderr)
    table({name: kept[name] for name in names if name in kept}, modes)


def measure(names, rounds, modes, kept, file):
    """Each round is kept as soon as it is complete: all rows take an hour."""
    for name in names:
        budget, command, prints = ROWS[name]
        budget = half_of_peak(work, command) if budget == "half" else budget
        kept[name] = {"budget_mib": budget, "rounds": []}
        for number in range(rounds):
            turn = number % len(modes)
            order = modes[turn:] + modes[:turn]
            print(f"{name}, round {number + 1}", file=sys.stderr)
            kept[name]["rounds"].append({mode: run(mode, budget, command, prints) for mode in order})
            if file:
                file.write_text(json.dumps(kept, indent=1) + "\n")


try:
    main()
finally:
    shutil.rmtree(work, ignore_errors=True)
