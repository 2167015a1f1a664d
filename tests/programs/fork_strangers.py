"""A process of the tree says false things of forks at the door, and does no harm to others by it.

Run as a command of memspill, with --mode=agent. It has an agent; what it starts without LD_PRELOAD has none.
"""

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from protocol import MAGIC, constant

KIND_FORKS, KIND_CHILD = constant("KIND_FORKS"), constant("KIND_CHILD")
MIB = 1 << 20


def connect(kind, fork=b""):
    name, token = os.environ["MEMSPILL_AGENT"].rsplit(":", 1)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(20)
    caller.connect("\0" + name)
    caller.send(struct.pack("<IIII32s16s", MAGIC, kind, os.getpid(), 0, token.encode(), fork))
    return caller


def prepared(caller):
    """(errno, the fork's number)."""
    message, fds, _, _ = socket.recv_fds(caller, 100, 2)
    for fd in fds:
        os.close(fd)
    magic, error, fork = struct.unpack("<Ii16s", message)
    assert magic == MAGIC
    return error, fork


def forked(caller, error=0):
    try:
        caller.send(struct.pack("<Ii", MAGIC, error))
    except (BrokenPipeError, ConnectionResetError):
        pass


def stranger(*words):
    """This program without an agent."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([sys.executable, __file__, *words], env=env, timeout=60).returncode


def as_stranger(word, fork):
    if word == "forks":
        error, _ = prepared(connect(KIND_FORKS))
        assert error == errno.ESRCH, f"a process without an agent may fork by it: {error}"
        return
    caller = connect(KIND_CHILD, bytes.fromhex(fork))
    # Welcome; then a Ready that says that all is well, with nothing behind it.
    caller.recv(100)
    ready = [MAGIC, 0] + [0x10000 * n for n in range(1, 5)] + [4096, 0x50000, 0x60000, 4096, os.getpid(), 0]
    try:
        caller.send(struct.pack("<Ii8QII", *ready))
        answer = caller.recv(100)
    except (BrokenPipeError, ConnectionResetError):
        answer = b""
    assert not answer or struct.unpack("<Ii", answer)[1] != 0, "a stranger is taken in"


def away_and_back():
    """Memory goes, comes back, and is what it was; a fork works."""
    area = bytearray(os.urandom(MIB)) * 96
    once = bytes(area[:MIB])
    for at in range(0, len(area), MIB):
        assert area[at : at + MIB] == once, "wrong bytes"
    pid = os.fork()
    if pid == 0:
        same = all(area[at : at + MIB] == once for at in range(0, len(area), MIB))
        os._exit(0 if same else 9)
    assert os.waitpid(pid, 0)[1] == 0, "the child has other memory"


def main():
    away_and_back()
    assert stranger("forks") == 0
    assert stranger("child", os.urandom(16).hex()) == 0
    # Forks that are never made, or told of twice, or in the middle of another.
    for _ in range(20):
        caller = connect(KIND_FORKS)
        while prepared(caller)[0] == errno.EAGAIN:
            caller = connect(KIND_FORKS)
        other = connect(KIND_FORKS)
        assert prepared(other)[0] == errno.EAGAIN, "two forks of a process at once"
        other.close()
        forked(caller)
        forked(caller)
        forked(caller, errno.EPERM)
        caller.close()
    away_and_back()
    # A child that is none: it has a number that was given to this process.
    caller = connect(KIND_FORKS)
    error, fork = prepared(caller)
    while error == errno.EAGAIN:
        caller = connect(KIND_FORKS)
        error, fork = prepared(caller)
    forked(caller)
    for _ in range(2):
        assert stranger("child", fork.hex()) == 0
    caller.close()
    away_and_back()
    # One that keeps everything, and is killed.
    pid = os.fork()
    if pid == 0:
        caller = connect(KIND_FORKS)
        prepared(caller)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    time.sleep(0.2)
    away_and_back()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    away_and_back()


if len(sys.argv) > 1:
    as_stranger(sys.argv[1], "".join(sys.argv[2:]))
else:
    main()
