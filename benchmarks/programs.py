"""What the comparisons in this folder share: how programs are made, how large they are, how they are run, and
how figures are shown. It knows no row and no side.
"""
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time

REPO = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = REPO / "tests" / "programs"
MEMSPILL = REPO / "target" / "release" / "memspill"
WORKLOAD = REPO / "target" / "release" / "memspill-workload"
PYTHON = "/usr/bin/python3"
BUDGET_MIB_MIN = 24
GRACE_S = 5


def java(work, rounds):
    return ["java", "-Xmx300m", "-cp", work, "Job", str(rounds)]


def node(rounds):
    return ["node", PROGRAMS / "job.js", str(rounds)]


def python(program, *words):
    return [PYTHON, PROGRAMS / program, *map(str, words)]


def sqlite(rows):
    return ["sqlite3", ":memory:", f"create table size(n); insert into size values({rows})",
            f".read {PROGRAMS}/job.sql"]


def make_java(work):
    subprocess.run(["javac", "-d", work, PROGRAMS / "Job.java"], check=True)


def make_input(spot, program, *words):
    """A file of what one of tests/programs prints."""
    with open(spot, "w") as out:
        subprocess.run(python(program, *words), stdout=out, check=True)


def half_of_peak(work, command):
    """Half of the command's peak of anonymous memory, in MiB."""
    spot = work / "peak"
    spot.unlink(missing_ok=True)
    measured = [PYTHON, PROGRAMS / "peak.py", spot, "--", *map(str, command)]
    done = Run(work, measured, math.inf)
    if done.code != 0:
        sys.exit(f"without memspill, `{shlex.join(map(str, command))}` {done.why_failed()}")
    return max(int(spot.read_text()) // 2048, BUDGET_MIB_MIN)


class Run:
    """One run of a command, in a session of its own, which is killed when the time is over or the caller is
    interrupted. It runs in `folder`, or in `work`, where its output goes. `look` is called ten times a second
    meanwhile, with the command's process id."""

    def __init__(self, work, command, limit_s, look=lambda pid: None, folder=None):
        self.in_time = True
        with open(work / "out", "w+b") as out, open(work / "err", "w+b") as err:
            start = time.monotonic()
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, cwd=folder or work, start_new_session=True)
            ended = threading.Event()
            watch = threading.Thread(target=self._watch, args=(child.pid, start + limit_s, ended, look))
            watch.start()
            try:
                # Left as a zombie, its number is nobody else's while it may still be killed.
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                self.seconds = time.monotonic() - start
            finally:
                kill_session(child.pid)
                ended.set()
                watch.join()
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
            self.code = child.returncode
            self.cpu_seconds = usage.ru_utime + usage.ru_stime
            self.major_faults = usage.ru_majflt
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read(), err.read()

    def _watch(self, session, end, ended, look):
        while not ended.wait(0.1):
            look(session)
            if time.monotonic() > end:
                self.in_time = False
                # First a signal after which memspill still writes its statistics.
                os.kill(session, signal.SIGTERM)
                if not ended.wait(GRACE_S):
                    kill_session(session)
                return

    def why_failed(self):
        if self.code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return "killed"
        last = self.err[-200:].decode(errors="replace").strip().splitlines()[-1:]
        return f"ends with {self.code}: {''.join(last)}"


def kill_session(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_on_sigterm():
    """As on Ctrl-C: what was set up is taken down."""
    def interrupted(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, interrupted)


def say(text):
    print(text, file=sys.stderr, flush=True)


def short(number):
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def spread(values):
    """Median (least to most)."""
    if not values:
        return "-"
    if len(values) == 1:
        return short(values[0])
    return f"{short(statistics.median(values))} ({short(min(values))} to {short(max(values))})"


def print_table(heads, rows):
    print("|", " | ".join(heads), "|")
    print("|---" * len(heads) + "|")
    for row in rows:
        print("|", " | ".join(row), "|")
