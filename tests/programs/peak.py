"""Runs a command and records the peak of the anonymous memory of its whole process tree.

    peak.py RESULT-FILE -- COMMAND ...

Writes the peak in KiB, sampled ten times a second; pages that processes share since a fork count once, where
the kernel lets us see that (Pss_Anon). Signals that ask this process to end go on to the command; its exit
code is passed on.
"""
import os
import signal
import subprocess
import sys
import threading


def tree(root):
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    parents.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(name))
            except (OSError, IndexError):
                pass
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def anonymous(pid):
    for name, field in (("smaps_rollup", "Pss_Anon:"), ("status", "RssAnon:")):
        try:
            with open(f"/proc/{pid}/{name}") as f:
                for line in f:
                    if line.startswith(field):
                        return int(line.split()[1])
        except OSError:
            pass
    return 0


def main():
    result, command = sys.argv[1], sys.argv[3:]
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: child.send_signal(got))
    peak = 0
    done = threading.Event()

    def sample():
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, sum(anonymous(pid) for pid in tree(child.pid)))

    thread = threading.Thread(target=sample)
    thread.start()
    code = child.wait()
    done.set()
    thread.join()
    with open(result, "w") as f:
        f.write(f"{peak}\n")
    sys.exit(code if code >= 0 else 128 - code)


main()
