#!/usr/bin/env python3
"""Measures swap on an NBD server (nbdkit, memory, a unix socket) beside swap on a file.

    benchmarks/nbd.py [--rounds N] [--memspill BIN] [--dir DIR] [ROW...]

    reads       pages from the server, one at a time and 32 at a time on one connection, without memspill
    fault       random reads of one thread, three of four from behind the pool: median touch, own memory
    node, sqlite, dicts     a program at a third of its peak
    stopped     the server stands still for 30 s under random reads, of which a tenth are its

All but reads and stopped are pairs, the file and the server in turns; the ratio is of each pair, above 1 if
the server is faster. Loopback has no network in it: what is measured is protocol, client and server. The file
is the default device, in DIR (/var/tmp); so both have a pool in front.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from programs import (MEMSPILL, REPO, WORKLOAD, Run, end_on_sigterm, half_of_peak, node, python,  # noqa: E402
                      say, spread, sqlite)

LIMIT_S = 300
FAULTS = [WORKLOAD, "pmbench", "--size", "320M", "--contents", "random", "--threads", "1",
          "--read-percent", "100", "--seconds", "12"]
PROGRAMS = {"node": node(4), "sqlite": sqlite(80_000), "dicts": python("dicts.py", 2)}
ROWS = ["reads", "fault", *PROGRAMS, "stopped"]


class Server:
    """nbdkit with memory, or another one, for as long as it is entered."""

    def __init__(self, work, size, by=None):
        self.socket = work / "server.sock"
        self.command = [*by, "-k", self.socket] if by else ["nbdkit", "-f", "-U", self.socket, "memory", size]

    def __enter__(self):
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(self.command)
        while not self.socket.exists():
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def options(self, words=""):
        return ["--swap", f"nbd+unix:///?socket={self.socket}{words}"]


class Own:
    """Memory of the supervisor that is no pool, as it was last seen."""

    def __init__(self, memspill):
        self.memspill, self.bytes, self.next = memspill, 0, 0

    def look(self, pid):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + 1
        command = [self.memspill, "ctl", "--pid", str(pid), "stats", "--json"]
        answer = subprocess.run(command, capture_output=True, text=True)
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            return  # it has just ended
        anonymous = re.search(r"RssAnon:\s+(\d+) kB", status)
        if answer.returncode == 0 and anonymous:
            self.bytes = int(anonymous[1]) * 1024 - json.loads(answer.stdout)["swap_ram_bytes"]


def run(words, work, budget_mib, options, command):
    """Seconds, statistics and own memory of one run."""
    own, stats = Own(words.memspill), work / "stats.json"
    stats.unlink(missing_ok=True)
    limits = ["-m", f"{budget_mib}M", "--stats-json", stats]
    done = Run(work, [words.memspill, "run", *limits, *options, "--", *command], LIMIT_S, own.look)
    if done.code != 0 or not done.in_time:
        sys.exit(f"{command[0]} {done.why_failed()}")
    return done.seconds, json.loads(stats.read_text()), own.bytes, done.out


def pairs(words, work, budget_mib, command, figure):
    """(file, server) of each round, what `figure` makes of a run."""
    found, printed = [], set()
    for number in range(words.rounds):
        pair = {}
        for side in ["file", "server"] if number % 2 == 0 else ["server", "file"]:
            if side == "file":
                done = run(words, work, budget_mib, ["--swap-dir", words.dir], command)
            else:
                with Server(work, "2G") as server:
                    done = run(words, work, budget_mib, server.options(), command)
            pair[side] = figure(done)
            printed.add(done[3] if command[0] != WORKLOAD else b"")
            load = os.getloadavg()[0]
            say(f"round {number + 1}, {side}: {pair[side]}, load {load:.1f}")
        found.append((pair["file"], pair["server"]))
    if len(printed) > 1:
        sys.exit("THE OUTPUTS DIFFER")
    return found


def reads(words, work):
    build = ["cargo", "build", "--release", "--quiet", "-p", "memspill-backing", "--example", "export"]
    subprocess.run(build, cwd=REPO, check=True)
    with Server(work, "1G") as server:
        command = [REPO / "target/release/examples/export", server.socket, str(words.rounds)]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="")


def fault(words, work):
    def figure(done):
        servers = done[1]["devices"][0]["servers"]
        touch_us = json.loads(done[3].splitlines()[-1])["p50_ns"] / 1e3
        return (touch_us, done[2] / 2**20, servers[0]["round_trip_us"] if servers else 0, done[1]["pgfault"])
    found = pairs(words, work, 64, FAULTS, figure)
    for name, at in (("median touch, us", 0), ("own memory, MiB", 1), ("faults", 3)):
        file, server = (spread([pair[side][at] for pair in found]) for side in (0, 1))
        print(f"{name:24} file {file}, server {server}")
    print(f"{'a read of a page, us':24} server {spread([s[2] for _, s in found])}")


def program(words, work, name):
    third_mib = max(half_of_peak(work, PROGRAMS[name]) * 2 // 3, 24)
    found = pairs(words, work, third_mib, PROGRAMS[name], lambda done: round(done[0], 2))
    print(f"{name:8} {third_mib} MiB: file {spread([f for f, _ in found])} s, "
          f"server {spread([s for _, s in found])} s, ratio {spread([f / s for f, s in found])}")


def stopped(words, work):
    # Only what fits neither into the pool nor on the file of a higher priority is the server's.
    command = [WORKLOAD, "pmbench", "--size", "160M", "--contents", "random", "--threads", "2",
               "--seconds", "20"]
    # nbdkit 1.32 may abort on waking, as its clients of before have gone; so it is qemu-nbd.
    disk = work / "disk"
    with open(disk, "wb") as file:
        file.truncate(2 << 30)
    for seconds in (0, 30):
        with Server(work, "2G", ["qemu-nbd", "-t", "-e", "16", "-f", "raw", disk]) as server:
            file = f"file:{words.dir}/memspill-nbd,size=90M,prio=9"
            options = ["--swap", file, *server.options(",prio=5,overwrite")]
            began = time.monotonic()

            def stand_still(_pid, server=server, began=began, seconds=seconds):
                if seconds and not server.process.poll() and 8 < time.monotonic() - began < 9:
                    server.process.send_signal(signal.SIGSTOP)
                    time.sleep(seconds)
                    server.process.send_signal(signal.SIGCONT)

            stats = work / "stats.json"
            limits = ["-m", "60M", "--stats-json", stats]
            done = Run(work, [words.memspill, "run", *limits, *options, "--", *command], LIMIT_S, stand_still)
            counted = json.loads(stats.read_text())
            received = counted["devices"][-1]["servers"][0]["received_bytes"]
            share = received / 4096 / max(counted["pswpin"], 1)
            print(f"server stopped for {seconds} s: ends with {done.code} after {done.seconds:.1f} s; "
                  f"{share:.0%} of the pages that came were its")


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--memspill", type=pathlib.Path, default=MEMSPILL)
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    words = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="memspill-nbd.") as work:
        work = pathlib.Path(work)
        for row in words.rows or ROWS:
            say(row)
            if row in PROGRAMS:
                program(words, work, row)
            else:
                {"reads": reads, "fault": fault, "stopped": stopped}[row](words, work)


if __name__ == "__main__":
    main()
