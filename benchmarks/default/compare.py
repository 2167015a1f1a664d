#!/usr/bin/env python3
"""Programs at half of their peak with the default swap, under one binary of memspill or two, in turns.

    benchmarks/default/compare.py [--rounds N] [--limit SECONDS] [--json FILE] BINARY [BINARY] [-- ROW...]
    benchmarks/default/compare.py --list

Each round runs a row's program without memspill, and under each binary, in an order that changes from
round to round. The table has medians of the time and of what was counted: major faults, pages read from and
written to slots, pages that moved from the pool to the file, requests to the file. Counts hardly depend on
what else the machine does; times do. All outputs of a row must be the same. A run that is not done within the
limit (300 s) is left out, and said. With --json the figures of all runs are kept.
"""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = REPO / "tests" / "programs"
PYTHON = "/usr/bin/python3"
COUNTS = ("pgmajfault", "pswpin", "pswpout", "written_back_pages", "swap_read_ios", "swap_write_ios")

work = pathlib.Path(tempfile.mkdtemp(prefix="memspill-default."))


def sqlite(rows):
    return ["sqlite3", ":memory:", f"create table size(n); insert into size values({rows})",
            f".read {PROGRAMS}/job.sql"]


def sort():
    return ["sort", "-S", "400M", "--parallel=2", "-T", work, work / "lines"]


ROWS = {
    "dicts": [PYTHON, PROGRAMS / "dicts.py", "11"],
    "hash-map": [work / "hash_map", "900000"],
    "sort": sort(),
    "node": ["node", PROGRAMS / "job.js", "20"],
    "sqlite": sqlite(400_000),
    "java": ["java", "-Xmx300m", "-cp", work, "Job", "10"],
    "numpy": [PYTHON, PROGRAMS / "numpy_job.py", "330"],
    "dicts-small": [PYTHON, PROGRAMS / "dicts.py", "5"],
    "hash-map-small": [work / "hash_map", "250000"],
    "sqlite-small": sqlite(200_000),
}


def prepare(names):
    if any(name.startswith("hash-map") for name in names):
        subprocess.run(["g++", "-O2", "-o", work / "hash_map", PROGRAMS / "hash_map.cpp"], check=True)
    if "java" in names:
        subprocess.run(["javac", "-d", work, PROGRAMS / "Job.java"], check=True)
    if "sort" in names:
        with open(work / "lines", "w") as lines:
            subprocess.run([PYTHON, PROGRAMS / "lines.py", "130"], stdout=lines, check=True)


def half_of_peak(command):
    """In MiB."""
    spot = work / "peak"
    measured = [PYTHON, PROGRAMS / "peak.py", spot, "--", *command]
    subprocess.run(measured, check=True, stdout=subprocess.DEVNULL)
    return max(int(spot.read_text()) // 2048, 24)


def run(binary, budget_mib, command, limit_s):
    """Seconds, counts, and what it printed; None where it was not done in time."""
    statistics_file = work / "stats.json"
    statistics_file.unlink(missing_ok=True)
    if binary:
        options = ["-m", f"{budget_mib}M", "--stats-json", statistics_file]
        command = [binary, "run", *options, "--", *command]
    start = time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    took = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"{command[0]} ends with {done.returncode}: {done.stderr[-500:].decode(errors='replace')}")
    counted = json.loads(statistics_file.read_text()) if binary else {}
    return {"seconds": took, **{name: counted[name] for name in COUNTS if name in counted}}, done.stdout


def table(kept, sides):
    heads = ["row", "MiB", "side", "runs", "seconds", *COUNTS]
    print("|", " | ".join(heads), "|")
    print("|---" * len(heads) + "|")
    for name, row in kept.items():
        for side in sides:
            runs = [one[side] for one in row["rounds"] if one.get(side)]
            if not runs:
                continue
            seconds = [one["seconds"] for one in runs]
            spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
            counts = [f"{statistics.median(one[of] for one in runs):.0f}" if of in runs[0] else ""
                      for of in COUNTS]
            print("|", " | ".join([name, str(row["budget_mib"]), side, str(len(runs)), spread, *counts]), "|")


def main():
    words, names, binaries, rounds, limit_s, file = sys.argv[1:], [], [], 3, 300, None
    if "--" in words:
        names = words[words.index("--") + 1:]
        words = words[:words.index("--")]
    while words:
        word = words.pop(0)
        if word == "--list":
            return print(*ROWS)
        elif word == "--rounds":
            rounds = int(words.pop(0))
        elif word == "--limit":
            limit_s = float(words.pop(0))
        elif word == "--json":
            file = pathlib.Path(words.pop(0)).resolve()
        else:
            binaries.append(word)
    names = names or list(ROWS)
    if not 1 <= len(binaries) <= 2 or not set(names) <= set(ROWS):
        sys.exit(__doc__)
    sides = {"alone": None, **{f"{at}: {binary}": binary for at, binary in enumerate(binaries, 1)}}
    prepare(names)
    kept = {}
    for name in names:
        budget_mib = half_of_peak(ROWS[name])
        kept[name] = {"budget_mib": budget_mib, "rounds": []}
        printed = None
        for number in range(rounds):
            order = list(sides)[number % len(sides):] + list(sides)[:number % len(sides)]
            figures = {}
            for side in order:
                done = run(sides[side], budget_mib, ROWS[name], limit_s)
                if done is None:
                    print(f"{name}, {side}: not done after {limit_s:.0f} s", file=sys.stderr)
                    continue
                figures[side], text = done
                if printed not in (None, text):
                    sys.exit(f"{name}, {side}: the output differs")
                printed = text
            kept[name]["rounds"].append(figures)
        if file:
            file.write_text(json.dumps(kept, indent=1) + "\n")
    table(kept, sides)


try:
    main()
finally:
    shutil.rmtree(work, ignore_errors=True)
