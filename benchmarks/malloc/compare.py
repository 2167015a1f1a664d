#!/usr/bin/env python3
"""Measures the memory that malloc gets from the kernel while memory is tight, and how fast.

    sudo benchmarks/malloc/compare.py --rounds 3
    sudo benchmarks/malloc/compare.py --against OLD --json malloc.json fill-threads churn

`fill` rows: 512 MiB are filled as fast as possible, in small blocks (malloc's heap), in large ones (which
malloc maps by themselves), by one thread or two (whose heaps malloc opens by mprotect). Shown are the most
memory that the run's cgroup has had, memspill and files included (as root; v1 or v2), and seconds. `churn`
rows: a block is made, filled and freed again and again, alone, with memspill and all the memory it wants, and
in 64M beside 96 MiB that are filled; shown are microseconds of one. Sides take turns.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from programs import MEMSPILL, Run, end_on_sigterm, print_table, say, spread  # noqa: E402

LIMIT_S = 300
V1, V2 = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
# Name: what is filled, and the budgets.
FILLS = {
    "fill-heap": ["512", "4000", "1"],
    "fill-mapped": ["512", "300000", "1"],
    "fill-threads": ["512", "4000", "2"],
    "fill-threads-mapped": ["512", "300000", "2"],
}
FILL_BUDGETS = ["32M", "128M"]
CHURNS = {"churn-200k": ["200000", "5000"], "churn": ["2000000", "1000"], "churn-20M": ["20000000", "100"]}


class Group:
    """A memory cgroup for one run; without the right to make one, none."""

    def __init__(self):
        v1 = (V1 / "memory.limit_in_bytes").exists()
        self.peak_file = "memory.max_usage_in_bytes" if v1 else "memory.peak"
        self.path = (V1 if v1 else V2) / f"memspill-malloc-{os.getpid()}"

    def __enter__(self):
        try:
            self.path.mkdir()
        except OSError:
            self.path = None
        return self

    def command(self, command):
        if self.path is None:
            return command
        return ["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', self.path, *command]

    def peak_mib(self):
        file = self.path and self.path / self.peak_file
        return int(file.read_text()) / 2**20 if file and file.exists() else None

    def __exit__(self, *_):
        if self.path:
            self.path.rmdir()


def run_one(work, command):
    """(seconds, most MiB or None, what was printed)"""
    with Group() as group:
        run = Run(work, group.command(command), LIMIT_S)
        peak_mib = group.peak_mib()
    if run.code != 0:
        sys.exit(f"malloc: {run.why_failed()}")
    return run.seconds, peak_mib, run.out.decode().strip()


def measure(work, program, sides, names, rounds):
    """Figures by (row, side): lists of [seconds or microseconds, MiB or None]."""
    figures = {}

    def note(row, side, figure):
        figures.setdefault((row, side), []).append(figure)
        say(f"{row}, {side}: {figure}")

    for _ in range(rounds):
        for name in names:
            words = [program, "fill" if name in FILLS else "churn"]
            if name in CHURNS:
                note(name, "alone", [int(run_one(work, [*words, "1", *CHURNS[name]])[2]) / 1000, None])
            for side, memspill in sides.items():
                if name in FILLS:
                    for budget in FILL_BUDGETS:
                        command = [memspill, "run", "-m", budget, "--", *words, *FILLS[name]]
                        note(f"{name} in {budget}", side, list(run_one(work, command)[:2]))
                    continue
                for row, budget, ballast in [(name, "2G", "1"), (f"{name} in 64M", "64M", "96")]:
                    command = [memspill, "run", "-m", budget, "--", *words, ballast, *CHURNS[name]]
                    note(row, side, [int(run_one(work, command)[2]) / 1000, None])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memspill", type=pathlib.Path, default=MEMSPILL, help="the build that is measured")
    parser.add_argument("--against", type=pathlib.Path, help="another one, in turns with it")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there")
    parser.add_argument("rows", nargs="*", help=f"of {' '.join([*FILLS, *CHURNS])}; all")
    args = parser.parse_args()
    names = args.rows or [*FILLS, *CHURNS]
    if unknown := set(names) - {*FILLS, *CHURNS}:
        parser.error(f"unknown rows: {' '.join(sorted(unknown))}")
    end_on_sigterm()
    sides = {"memspill": args.memspill.resolve()}
    if args.against:
        sides["against"] = args.against.resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        source = pathlib.Path(__file__).resolve().parent / "malloc.c"
        build = ["gcc", "-O1", "-fno-builtin", "-pthread", "-o", work / "malloc", source]
        subprocess.run(build, check=True)
        try:
            figures = measure(work, work / "malloc", sides, names, args.rounds)
        except KeyboardInterrupt:
            sys.exit("interrupted")
    rows = [[row, side, spread([first for first, _ in got]), spread([mib for _, mib in got if mib])]
            for (row, side), got in figures.items()]
    print_table(["row", "side", "seconds (fill), us (churn)", "most memory, MiB"], rows)
    if args.json:
        kept = [{"row": row, "side": side, "figures": got} for (row, side), got in figures.items()]
        args.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
