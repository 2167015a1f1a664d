#!/usr/bin/env python3
"""Programs at half of their peak with the default swap, everything counted, beside the program alone.

    benchmarks/default/compare.py [OPTION...] [ROW...]        each row: without memspill and with it, in turns
    sudo benchmarks/default/compare.py --kernel sort          and under zswap in front of a swap file

    --rounds N          of each row (3)
    --limit SECONDS     of each run (240); a run that takes longer is ended, and said
    --memspill BIN      target/release/memspill unless it is said
    --with 'OPTIONS'    of `memspill run`, such as '--swap ram:'
    --against BIN       another memspill, in the same turns
    --against-with 'OPTIONS'    its options; without --against, the same binary with other options
    --kernel            the kernel's swap too: zswap in front of a swap file, in a memory cgroup with the same
                        limit (under cgroup v1 the pool comes on top); root
    --dir DIR           where that swap file is (/var/tmp)
    --not-alone         leaves out the program alone
    --json FILE         keeps the figures of all runs; rows of a file that is there are added to
    --list              the rows

Each round runs a row's sides in an order that changes from round to round. Times are medians (range); what is
counted hardly depends on what else the machine does, times do: the load at the start of each run is kept. All
outputs of a row must be the same, else the exit code is 1. Ctrl-C shows what there is, and switches the
kernel's swap off again.
"""
import contextlib
import json
import os
import pathlib
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from kernel_swap import KernelSwap, Refused  # noqa: E402
from programs import (MEMSPILL, PROGRAMS, Run, end_on_sigterm, half_of_peak, java, make_input,  # noqa: E402
                      make_java, node, print_table, python, say, short, spread, sqlite)

COUNTS = {
    "pgmajfault": "major faults",
    "swap_read_ios": "file reads",
    "swap_write_ios": "write requests",
    "swap_file_written_pages": "pages written",
}
KERNEL_SWAP_MIB = 4096


class Row:
    """A program: how it is run in the folder `work`, what makes its input there, and its time at half of its
    peak (or at `budget_mib`) that memspill is to reach."""

    def __init__(self, goal_s, command, make=None, budget_mib=None):
        self.goal_s, self.command, self.make, self.budget_mib = goal_s, command, make, budget_mib


def sort(work):
    return ["env", "LC_ALL=C", "sort", "-S", "400M", "--parallel=2", "-T", work, work / "lines"]


def make_lines(work):
    if not (work / "lines").exists():
        make_input(work / "lines", "lines.py", 130)


def make_hash_map(work):
    subprocess.run(["g++", "-O2", "-o", work / "hash_map", PROGRAMS / "hash_map.cpp"], check=True)


def make_cpp(work):
    make_input(work / "templates.cpp", "make_cpp.py", 11)


def go_is_alone(work):
    """Static programs, and nothing kept from the time before."""
    os.environ.update(CGO_ENABLED="0", GO111MODULE="off", GOCACHE=str(work / "go-cache"))


def make_go(work):
    go_is_alone(work)
    subprocess.run(["go", "build", "-o", work / "go-job", PROGRAMS / "job.go"], check=True)


ROWS = {
    "java": Row(5, lambda work: java(work, 10), make_java),
    "node": Row(20, lambda work: node(20)),
    "dicts": Row(30, lambda work: python("dicts.py", 11)),
    "sqlite": Row(9, lambda work: sqlite(400_000)),
    "g++": Row(None, lambda work: ["g++", "-std=c++17", "-O2", "-S", "-o", "/dev/stdout",
                                   work / "templates.cpp"], make_cpp),
    "numpy": Row(4.5, lambda work: python("numpy_job.py", 330)),
    "sort": Row(25, sort, make_lines),
    "sort-100M": Row(45, sort, make_lines, 100),
    "hash-map": Row(120, lambda work: [work / "hash_map", "900000"], make_hash_map),
    "go": Row(None, lambda work: [work / "go-job", "400000"], make_go),
    "go-build": Row(None, lambda work: ["go", "build", "-a", "-trimpath", "-o", "/dev/stdout",
                                        PROGRAMS / "job.go"], go_is_alone),
    "dicts-small": Row(None, lambda work: python("dicts.py", 5)),
    "hash-map-small": Row(None, lambda work: [work / "hash_map", "250000"], make_hash_map),
    "sqlite-small": Row(None, lambda work: sqlite(200_000)),
}


class Alone:
    def command(self, work, budget_mib, command):
        return command

    def look(self, _pid):
        pass

    def figures(self, work):
        return {}


class Memspill(Alone):
    def __init__(self, binary, options):
        self.binary, self.options = pathlib.Path(binary).resolve(), shlex.split(options)
        if not os.access(self.binary, os.X_OK):
            sys.exit(f"no memspill at {self.binary}: build it (cargo build --release) or say --memspill BIN")

    def command(self, work, budget_mib, command):
        (work / "stats.json").unlink(missing_ok=True)
        options = ["-m", f"{budget_mib}M", "--stats-json", work / "stats.json", *self.options]
        return [self.binary, "run", *options, "--", *command]

    def figures(self, work):
        file = work / "stats.json"
        counted = json.loads(file.read_text()) if file.exists() else {}
        return {name: value for name, value in counted.items() if isinstance(value, (int, float))}


class Kernel(Alone):
    def __init__(self, swap):
        self.swap = swap

    def command(self, work, budget_mib, command):
        return self.swap.command(budget_mib, command)

    def look(self, _pid):
        self.swap.look()

    def figures(self, work):
        return self.swap.figures()


def run(side, work, budget_mib, command, limit_s):
    """The figures of a run, and what it printed; with "failed" where it did not end well."""
    load = os.getloadavg()[0]
    done = Run(work, side.command(work, budget_mib, command), limit_s, side.look)
    figures = {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "load": load,
               "pgmajfault": done.major_faults, **side.figures(work)}
    if not done.in_time:
        figures["failed"] = f"not done after {limit_s:.0f} s"
    elif done.code != 0:
        figures["failed"] = done.why_failed()
    return figures, done.out


def said(figures):
    counts = [f"{short(figures[name])} {words}" for name, words in COUNTS.items() if figures.get(name)]
    return ", ".join([figures.get("failed") or f"{figures['seconds']:.1f} s", *counts])


def measure(name, row, sides, words, work, kept, keep):
    """All rounds of a row. True if all outputs were the same."""
    if row.make:
        row.make(work)
    command = row.command(work)
    budget_mib = row.budget_mib or half_of_peak(work, command)
    kept["budget_mib"], printed, same = budget_mib, None, True
    names = list(sides)
    for number in range(words["rounds"]):
        turn = number % len(names)
        figures = {}
        kept.setdefault("rounds", []).append(figures)
        for side in names[turn:] + names[:turn]:
            figures[side], out = run(sides[side], work, budget_mib, command, words["limit_s"])
            say(f"{name} ({budget_mib} MiB), round {number + 1}, {side}: {said(figures[side])}")
            if "failed" not in figures[side]:
                if printed not in (None, out):
                    figures[side]["failed"], same = "another output", False
                    say(f"{name}, {side}: THE OUTPUT DIFFERS")
                printed = out if printed is None else printed
            keep()
    return same


def cells(runs, goal_s):
    """Columns of one side in one row."""
    well = [one for one in runs if "failed" not in one]
    failed = [one["failed"] for one in runs if "failed" in one]
    seconds = [one["seconds"] for one in well]
    met = ""
    if goal_s and well:
        met = f"{goal_s} {'met' if statistics.median(seconds) <= goal_s else 'missed'}"
    counts = [statistics.median(one[name] for one in well) if well and name in well[0] else None
              for name in COUNTS]
    requests, pages = counts[-2:]
    share = f"{requests / pages:.3f}" if requests and pages else ""
    return [f"{len(well)} of {len(runs)}", spread(seconds) if well else "; ".join(dict.fromkeys(failed)), met,
            *("" if count is None else short(count) for count in counts), share]


def table(kept, sides):
    rows = []
    for name, row in kept.items():
        for side in sides:
            runs = [one[side] for one in row["rounds"] if side in one]
            goal_s = ROWS[name].goal_s if side == "memspill" else None
            if runs:
                rows.append([f"{name}, {row['budget_mib']} MiB", side, *cells(runs, goal_s)])
    print_table(["row", "side", "runs", "seconds", "goal", *COUNTS.values(), "requests a page"], rows)


def parse(words):
    parsed = {"rounds": 3, "limit_s": 240.0, "memspill": MEMSPILL, "with": "", "against": None,
              "against-with": None, "kernel": False, "dir": "/var/tmp", "alone": True, "json": None,
              "rows": []}
    while words:
        word = words.pop(0)
        if word in ("-h", "--help", "--list"):
            print(*ROWS if word == "--list" else [__doc__])
            sys.exit()
        elif word == "--kernel":
            parsed["kernel"] = True
        elif word == "--not-alone":
            parsed["alone"] = False
        elif word in ("--rounds", "--limit") and words:
            name, read = ("rounds", int) if word == "--rounds" else ("limit_s", float)
            try:
                parsed[name] = read(words.pop(0))
            except ValueError:
                sys.exit(f"{word} takes a number")
        elif word.startswith("--") and word[2:] in parsed and words:
            parsed[word[2:]] = words.pop(0)
        elif word in ROWS:
            parsed["rows"].append(word)
        else:
            sys.exit(f"'{word}' is no option and no row ({', '.join(ROWS)})\n\n{__doc__}")
    return parsed


def sides_of(words, stack):
    sides = {"alone": Alone()} if words["alone"] else {}
    sides["memspill"] = Memspill(words["memspill"], words["with"])
    if words["against"] or words["against-with"] is not None:
        sides["against"] = Memspill(words["against"] or words["memspill"], words["against-with"] or "")
    if words["kernel"]:
        swap = stack.enter_context(KernelSwap(words["dir"], KERNEL_SWAP_MIB))
        say(f"the kernel's zswap compresses with {swap.compressor}")
        sides["kernel"] = Kernel(swap)
    return sides


def main():
    end_on_sigterm()
    words = parse(sys.argv[1:])
    file = pathlib.Path(words["json"]).resolve() if words["json"] else None
    kept = json.loads(file.read_text()) if file and file.exists() else {"machine": {}, "rows": {}}
    kept["machine"] = {"uname": " ".join(platform.uname()), "cpus": os.cpu_count(),
                       "date": time.strftime("%Y-%m-%d"), "command": sys.argv[1:]}
    measured, same = {}, True

    def keep():
        if file:
            file.write_text(json.dumps(kept, indent=1) + "\n")

    with contextlib.ExitStack() as stack:
        work = pathlib.Path(tempfile.mkdtemp(prefix="memspill-default."))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        try:
            sides = sides_of(words, stack)
            for name in words["rows"] or ROWS:
                measured[name] = kept["rows"].setdefault(name, {"rounds": []})
                same &= measure(name, ROWS[name], sides, words, work, measured[name], keep)
        except Refused as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            say("interrupted")
            same = False
        table({name: row for name, row in measured.items() if row["rounds"]}, sides)
    sys.exit(0 if same else 1)


main()
