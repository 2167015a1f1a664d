"""Callers of a run's control socket (its abstract name is the argument): silence, nonsense, or too much."""

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


def last_words(caller):
    """The answer; nothing if it is let go."""
    try:
        return caller.recv(1 << 17)
    except ConnectionResetError:
        return b""


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
# (The callers above may still be on their way out when these come, so it may be one more that is sent away.)
start = time.time()
silent = [connect() for _ in range(12)]
ends = [last_words(caller) for caller in silent]
sent_away = sum(b"others are being served" in words for words in ends)
assert sent_away >= 4, f"{sent_away} of 12 were told to come again"
assert all(words == b"" or b"others" in words for words in ends), "who said nothing was answered"
assert time.time() - start < 12, "it took too long to let them go"
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
                os._exit(0 if last_words(caller) == b"" else 1)
        except (ConnectionError, BrokenPipeError):
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "another user was answered"
