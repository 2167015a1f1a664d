"""A tracer that stops the evictor alone, again and again, at any point of its work, while its process goes on
and changes its mappings.

    stop_evictor.py PID SECONDS    how often it was stopped, and how often with a command under way

It goes on for longer until it has met it at work a few times, and ends earlier where the process does.
"""
import ctypes
import os
import random
import sys
import time

ATTACH, DETACH, WALL = 16, 17, 0x40000000
ENOUGH = 3
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid, seconds = int(sys.argv[1]), float(sys.argv[2])


def evictor():
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        if tid != pid and open(f"/proc/{pid}/task/{tid}/comm").read() == "memspill\n":
            return tid
    sys.exit("no evictor is found")


def at_work(tid):
    """Waiting for a command it is in recvfrom."""
    return open(f"/proc/{pid}/task/{tid}/syscall").read().split()[0] != "45"


def wait_for_work(tid):
    until = time.monotonic() + 0.25
    while not at_work(tid) and time.monotonic() < until:
        pass


end, stops, under_way = time.monotonic() + seconds, 0, 0
tid = evictor()
try:
    while time.monotonic() < end or under_way < ENOUGH:
        # On a busy machine it would hardly be met at work by chance.
        if random.random() < 0.75:
            wait_for_work(tid)
        if libc.ptrace(ATTACH, tid, None, None):
            code = ctypes.get_errno()
            raise OSError(code, f"PTRACE_ATTACH: {os.strerror(code)}")
        os.waitpid(tid, WALL)
        stops += 1
        under_way += at_work(tid)
        time.sleep(random.choice([0, 0.002, 0.02, 0.02, 0.1]))
        libc.ptrace(DETACH, tid, None, None)
        time.sleep(random.random() * 0.02)
except (FileNotFoundError, ProcessLookupError):
    pass  # its process has ended: whoever started that sees how
print(stops, under_way)
