#!/usr/bin/env python3
"""What `memspill size` answers, against a sweep by hand.

    benchmarks/size/sweep.py [--rounds N] [--within PERCENT] [--from PERCENT] [--to PERCENT] [--step PERCENT]
                             [--lock FILE] [--json FILE] [ROW...]                       --list: the rows

For each row `memspill size` says which budget is enough. Then the command runs with each budget from --from
to --to percent of what it takes, in steps; in each round all of them once, in an order drawn anew, between
runs without a limit under memspill, which is what `size` compares with; and one without memspill. A run is
taken as so many times the mean of the runs without a limit before and after it, and stopped at twice what is
allowed. The sweep's answer is the smallest budget from which on the medians are within --within percent; the
two should be no more than a step apart, and where they are further apart it ends with 1.

--lock holds that file's lock (flock) for `size` and for each round, for those who measure on one machine.
--json keeps all times; a file that is there already is added to.
"""
import contextlib
import fcntl
import itertools
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = REPO / "tests" / "programs"
MEMSPILL = REPO / "target" / "release" / "memspill"
WORKLOAD = REPO / "target" / "release" / "memspill-workload"
PYTHON = "/usr/bin/python3"
MIB = 1 << 20
STOPPED_AT = 2
# The number of runs with a budget between two without.
BETWEEN = 3

ROWS = {
    "python": [PYTHON, PROGRAMS / "dicts.py", "14"],
    "sqlite": ["sqlite3", ":memory:", "create table size(n); insert into size values(450000)",
               f".read {PROGRAMS}/job.sql"],
    "numpy": [PYTHON, PROGRAMS / "numpy_job.py", "130"],
    "normal": [WORKLOAD, "pmbench", "--size", "192M", "--seconds", "60", "--ops", "4000000", "--pattern",
               "normal", "--stddev", "5000", "--contents", "half"],
}


@contextlib.contextmanager
def alone(lock):
    if not lock:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def size_says(command, within):
    """Its answer and what the command takes, in bytes."""
    words = [MEMSPILL, "size", "--json", f"--within={within}%", "--", *command]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = next(table["rows"] for table in json.loads(said)["tables"] if table["id"] == "answer")
    return [int(row["cells"]["memory_max_bytes"]["median"]) for row in rows]


def timed(command, limit_s=None):
    """Seconds; infinite where it was stopped or failed."""
    start = time.monotonic()
    # memspill ends what it started at the second signal, and writes nothing more.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as child:
        try:
            said = child.communicate(timeout=limit_s)[1]
        except subprocess.TimeoutExpired:
            child.terminate()
            time.sleep(0.05)
            child.terminate()
            child.communicate()
            return math.inf
        if child.returncode != 0:
            print(f"  ends with {child.returncode}: {said.decode()[-200:]}", file=sys.stderr)
            return math.inf
    return time.monotonic() - start


def one_round(command, budgets, peak, within):
    """Seconds: natively, and for each budget of a run with it and of the free runs around it."""
    under = lambda budget: [str(MEMSPILL), "run", "-m", str(budget), "--", *command]
    native, free, found = timed(command), timed(under(4 * peak)), {}
    order = random.sample(budgets, len(budgets))
    for start in range(0, len(order), BETWEEN):
        some = order[start:start + BETWEEN]
        limit_s = free * (1 + within / 100) * STOPPED_AT
        took = [timed(under(budget), limit_s) for budget in some]
        before, free = free, timed(under(4 * peak))
        found.update({budget: [seconds, (before + free) / 2] for budget, seconds in zip(some, took)})
    return {"native": [native, free], **found}


def sweep(name, asked):
    command = [str(word) for word in ROWS[name]]
    with alone(asked["lock"]):
        print(f"{name}: memspill size", file=sys.stderr)
        peak, answer = size_says(command, asked["within"])
    budgets = [math.ceil(peak * percent / 100 / MIB) * MIB
               for percent in range(asked["from"], asked["to"] + 1, asked["step"])]
    times = {str(key): [] for key in ["native", *budgets]}
    for number in range(asked["rounds"]):
        print(f"{name}: round {number + 1}", file=sys.stderr)
        with alone(asked["lock"]):
            for key, pair in one_round(command, budgets, peak, asked["within"]).items():
                times[str(key)].append(pair)
    return {"peak_bytes": peak, "answer_bytes": answer, "step_bytes": peak * asked["step"] // 100,
            "seconds_and_free": times}


def show(name, kept, within):
    """Whether `size` is no more than a step from the sweep."""
    ratios = {key: [took / free for took, free in pairs] for key, pairs in kept["seconds_and_free"].items()}
    medians = {key: statistics.median(values) for key, values in ratios.items()}
    budgets = sorted((int(key) for key in medians if key.isdigit()), reverse=True)
    is_fast = lambda budget: medians[str(budget)] <= 1 + within / 100
    fast = list(itertools.takewhile(is_fast, budgets))
    is_right = bool(fast) and abs(fast[-1] - kept["answer_bytes"]) <= kept["step_bytes"] + MIB
    free = [free for pairs in kept["seconds_and_free"].values() for _, free in pairs]
    print(f"\n{name}: {statistics.median(free):.2f} s without a limit ({min(free):.2f} to {max(free):.2f}),",
          f"{kept['peak_bytes'] / MIB:.0f}M; size says {kept['answer_bytes'] / MIB:.0f}M, the sweep",
          f"{fast[-1] / MIB:.0f}M" if fast else "none", "" if is_right else "(MORE THAN A STEP)")
    print("\n| budget | of what it takes | times that without a limit, median (least to most) |")
    print("|---|---|---|")
    for key, values in ratios.items():
        of_peak = f"{int(key) / kept['peak_bytes']:.0%}" if key.isdigit() else ""
        budget = f"{int(key) / MIB:.0f}M" if key.isdigit() else "without memspill"
        words = ["stopped" if value == math.inf else f"{value:.2f}" for value in
                 (medians[key], min(values), max(values))]
        print(f"| {budget} | {of_peak} | {words[0]} ({words[1]} to {words[2]}) |", flush=True)
    return is_right


def main():
    asked = {"rounds": 3, "within": 20, "from": 60, "to": 115, "step": 5, "lock": None, "json": None}
    words, names = sys.argv[1:], []
    while words:
        word = words.pop(0)
        if word == "--list":
            return print(*ROWS)
        if word in ("-h", "--help"):
            return print(__doc__)
        if word in ROWS:
            names.append(word)
        elif word[:2] == "--" and word[2:] in asked and words:
            key, value = word[2:], words.pop(0)
            asked[key] = value if key in ("lock", "json") else int(value)
        else:
            sys.exit(__doc__)
    file = pathlib.Path(asked["json"]) if asked["json"] else None
    kept = json.loads(file.read_text()) if file and file.exists() else {}
    all_right = True
    for name in names or ROWS:
        kept[name] = sweep(name, asked)
        if file:
            file.write_text(json.dumps(kept, indent=1) + "\n")
        all_right &= show(name, kept[name], asked["within"])
    sys.exit(0 if all_right else 1)


main()
