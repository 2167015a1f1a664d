#!/usr/bin/env python3
"""Measures how long a notebook's interrupt takes, with and without gc.freeze().

    python3 benchmarks/notebook_interrupt.py target/release/memspill [--limit 110M] [--mode agent]

A cell fills a list with 1.5 million strings, 270 MiB. Another walks over one of a
thousand, without end, and is interrupted. IPython builds a traceback then, which allocates, so Python starts
full collections; each reads the header of every string. `gc.freeze()` takes what is there out of these
collections. Only the first interrupt is measured: the second finds the headers in memory.

Needs jupyter_client and ipykernel in the Python that runs it.
"""

import argparse
import statistics
import sys
import tempfile
import time

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

TIMEOUT_S = 300
FILL = "x = [str(i) * 20 for i in range(1_500_000)]\n"
FOREVER = "s = 0\nwhile True:\n    for i in range(0, len(x), 1000): s += len(x[i])\n"


def interrupt_s(prefix, freezes):
    """Seconds from the interrupt to the end of its cell."""
    argv = prefix + [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(argv=argv, language="python", interrupt_mode="message")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT_S)
        fill = FILL + ("import gc; gc.freeze()\n" if freezes else "")
        reply = client.execute_interactive(fill, timeout=TIMEOUT_S, output_hook=lambda _: None)
        if reply["content"]["status"] != "ok":
            sys.exit(f"the first cell fails: {reply['content']}")
        sent = client.execute(FOREVER)
        time.sleep(3)
        began = time.monotonic()
        manager.interrupt_kernel()
        while True:
            reply = client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == sent and reply["msg_type"] == "execute_reply":
                break
        if reply["content"].get("ename") != "KeyboardInterrupt":
            sys.exit(f"the cell ends otherwise: {reply['content']}")
        return time.monotonic() - began
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("memspill")
    parser.add_argument("--limit", default="110M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", default="auto")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as swap:
        run = [asked.memspill, "run", f"--mode={asked.mode}", "-m", asked.limit, "--swap-dir", swap, "--"]
        rows = [("alone", [], False), ("in the budget", run, False), ("in the budget, frozen", run, True)]
        taken = {name: [] for name, _, _ in rows}
        for round_number in range(asked.rounds):
            print(f"round {round_number + 1} of {asked.rounds}", file=sys.stderr)
            for name, prefix, freezes in rows:
                taken[name].append(interrupt_s(prefix, freezes))
    for name, seconds in taken.items():
        print(f"{name}: {statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})")


main()
