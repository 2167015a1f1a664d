"""Callers of a run's control socket (its abstract name is the argument) that say nothing, nonsense or too much."""

import os
import random
import socket
import sys
import time

NAME = b"\0" + sys.argv[1].encode()


def connect():
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(15)
    caller.connect(NAME)
    return caller


def ask(message):
    with connect() as caller:
        caller.send(message)
        return caller.recv(1 << 17)


def hangs_up(caller):
    try:
        return caller.recv(1 << 17) == b""
    except ConnectionResetError:
        return True


rng = random.Random(1)
for length in [1, 2, 100, 8191, 8192, 8193, 60000]:
    for message in [b"\0" * length, b"a" * length, rng.randbytes(length)]:
        assert ask(message)[:1] == b"r", f"{length} bytes of nonsense were not refused"
for message in [b"limit\0" + b"9" * 100, b"limit\0-1", b"swapon\0", b"swapoff\0\0", b"pageout"]:
    assert ask(message)[:1] == b"r", message
connect().close()
with connect() as caller:
    caller.send(b"swaps")  # and does not wait

# More silent ones than are served at a time; they are let go after a while, and meanwhile the run runs.
silent = [connect() for _ in range(12)]
full = [caller for caller in silent[8:] if b"others are being served" in caller.recv(1 << 17)]
assert len(full) == 4, f"{len(full)} were told to come again"
start = time.time()
assert all(hangs_up(caller) for caller in silent[:8]), "who said nothing was not let go"
assert time.time() - start < 10, "it took too long"
assert ask(b"swaps")[:1] == b"d"

# Another user.
if os.getuid() == 0:
    pid = os.fork()
    if pid == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            with connect() as caller:
                caller.send(b"swaps")
                os._exit(0 if hangs_up(caller) else 1)
        except (ConnectionError, BrokenPipeError):
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "another user was answered"
