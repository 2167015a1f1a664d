#!/usr/bin/env python3
"""Measures the memory that memspill takes for itself while a program runs in a budget.

    benchmarks/own_memory.py --budget 36M -- python3 tests/programs/dicts.py 6
    benchmarks/own_memory.py --budget 64M --memspill OLD -- memspill-workload pmbench --size 128M

Twice a second, once memory is short: anonymous memory of the supervisor, and of that the pool with its
tables (`swap_ram_bytes`). The rest is memspill's own: page tables, buffers, stacks, and pages on their way
out. Printed are medians and ranges, in MiB, and the run's `tables_peak_bytes`.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from programs import MEMSPILL, Run, end_on_sigterm  # noqa: E402

LIMIT_S = 600


def anon_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


def statistics_of(memspill, pid):
    command = [memspill, "ctl", "--pid", str(pid), "stats", "--json"]
    got = subprocess.run(command, capture_output=True, text=True)
    return json.loads(got.stdout) if got.returncode == 0 else None


class Seen:
    """(anonymous, pool, tables, their pages) of the supervisor, twice a second."""

    def __init__(self, memspill):
        self.memspill, self.samples, self.next = memspill, [], 0

    def look(self, pid):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + 0.5
        try:
            counters, anon = statistics_of(self.memspill, pid), anon_bytes(pid)
        except (FileNotFoundError, TypeError, json.JSONDecodeError):
            return  # it has just ended
        if counters and counters["pswpout"] > 1000:
            names = ["swap_ram_bytes", "tables_peak_bytes", "tables_peak_pages"]
            self.samples.append((anon, *(counters[name] for name in names)))


def line(name, values):
    mib = [value / 2**20 for value in values]
    return f"{name:32} {statistics.median(mib):6.2f} ({min(mib):.2f} to {max(mib):.2f}) MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", required=True, help="as --memory-max has it")
    parser.add_argument("--memspill", default=MEMSPILL, help="another build")
    parser.add_argument("--with", dest="options", default="", help="further options of `memspill run`")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    end_on_sigterm()
    seen = Seen(args.memspill)
    command = [args.memspill, "run", "-m", args.budget, *args.options.split(), "--", *args.command]
    with tempfile.TemporaryDirectory() as work:
        run = Run(pathlib.Path(work), command, LIMIT_S, seen.look, folder=pathlib.Path.cwd())
    if run.code != 0 or not seen.samples:
        sys.exit(f"own_memory: {run.why_failed()}; memory was short in {len(seen.samples)} looks")
    seen = seen.samples
    print(line("pool and its tables", [pool for _, pool, _, _ in seen]))
    print(line("memspill beside it", [anon - pool for anon, pool, _, _ in seen]))
    *_, tables, pages = seen[-1]
    a_page = tables / max(pages, 1)
    print(f"{'tables, at their peak':32} {tables / 2**20:6.2f} MiB, {a_page:.0f} bytes a page")


main()
