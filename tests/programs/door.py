"""Strangers that connect to the agents' socket of a run, and are none of its processes.

Arguments: a case and `memspill run ...`.

While they are there the run's own processes must be let in as fast as ever, and afterwards too.
"""

import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time

from protocol import MAGIC

CASE, COMMAND = sys.argv[1], sys.argv[2:]
KIND_EXEC, UFFD_NONE = 0, 3
NOBODY = 65534
# Each line is answered when a process was forked and a program started.
# (`true` alone would end before it joins.)
TARGET = 'echo "$MEMSPILL_AGENT"; while read -r; do /bin/sleep 0 || exit 1; echo through; done'


class Run:
    def __init__(self, before=()):
        with open("door.err", "w") as err:
            self.process = subprocess.Popen(
                [*before, *COMMAND, "--", "bash", "-c", TARGET],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
        name, self.token = self.answer(10).split(":")
        self.address = b"\0" + name.encode()
        self.token = self.token.encode()

    def answer(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().decode().strip() if ready else ""

    def ask(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def join(self, beside):
        start = time.time()
        for _ in range(5):
            self.ask()
            assert self.answer(3) == "through", f"beside {beside} no process is let in: {self.lines()}"
        assert time.time() - start < 3, f"beside {beside} 5 programs took {time.time() - start:.1f} s"

    def connect(self):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(3)
        caller.connect(self.address)
        return caller

    def lines(self):
        with open("door.err") as err:
            return err.read()

    def end(self, lines=""):
        self.process.stdin.close()
        code = self.process.wait(10)
        assert code == 0, f"exit code {code}: {self.lines()}"
        assert self.lines().count("\n") == lines.count("\n"), f"it says: {self.lines()}"
        assert lines.strip() in self.lines(), f"it says: {self.lines()}"


def is_closed(caller):
    try:
        return caller.recv(100) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True
    except TimeoutError:
        return False


def hello(token):
    return struct.pack("<IIII32s16s", MAGIC, KIND_EXEC, os.getpid(), 0, token, b"")


def others(count, body):
    """Starts `count` processes that do this and stay; gives a function that ends them: could all?"""
    there, tell = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                body()
                os.write(tell, b"y")
                time.sleep(100)
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(tell)
    for _ in pids:
        assert os.read(there, 1) == b"y", "a stranger has failed"

    def end():
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

    return end


def strangers():
    run = Run()
    if os.getuid() == 0:

        def another_user():
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            global kept
            kept = [run.connect() for _ in range(100)]

        end = others(1, another_user)
        run.join("another user")
        end()

        def is_sent_away():
            os.setresuid(NOBODY, NOBODY, NOBODY)
            assert is_closed(run.connect()), "another user is waited for"

        others(1, is_sent_away)()

    mine = [run.connect() for _ in range(300)]
    run.join("300 silent connections of a process")
    for caller in mine[:-1]:
        assert is_closed(caller), "a process has two places"

    def one():
        global kept
        kept = run.connect()

    end = others(64, one)
    run.join("64 silent processes")
    end()

    reader, writer = os.pipe()
    for message in [b"", b"x", b"x" * 48, b"x" * 60000, hello(b"0" * 32), hello(run.token)[:-1]]:
        with run.connect() as caller:
            if message:
                socket.send_fds(caller, [message], [writer] * 8)
            else:
                caller.shutdown(socket.SHUT_WR)
            assert is_closed(caller), message[:60]
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "a stranger's descriptors were kept"
    run.join("nonsense")

    # This process knows the token, and is not below memspill.
    with run.connect() as caller:
        caller.send(hello(run.token))
        words, fds, _, _ = socket.recv_fds(caller, 100, 4)
        assert (words, fds) == (struct.pack("<II", MAGIC, UFFD_NONE), []), f"{words}, {len(fds)} descriptors"
    run.join("one who knows the token")
    run.end(
        f"memspill: process {os.getpid()} runs outside the budget: its agent was refused: it is not below\n"
    )


def namespace():
    """The run is in a pid namespace, and this process is not: it has no number there."""
    run = Run(["unshare", "-pf", "--mount-proc"])
    for _ in range(100):
        assert is_closed(run.connect())
    with run.connect() as caller:
        try:
            caller.send(hello(run.token))
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert is_closed(caller)
    run.join("a process that has no number")
    run.end()


def descriptors():
    """Suddenly memspill can have no more descriptors, or too few to let anybody in; then it can."""
    run = Run()
    pid = run.process.pid

    def ticks():
        with open(f"/proc/{pid}/stat") as stat:
            return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))

    def used(most=1000):
        """Descriptors in use, once they are no more than this: an ended process gives its own back."""
        end = time.time() + 10
        while len(os.listdir(f"/proc/{pid}/fd")) > most:
            assert time.time() < end, f"more than {most} descriptors stay: {os.listdir(f'/proc/{pid}/fd')}"
            time.sleep(0.02)
        return set(map(int, os.listdir(f"/proc/{pid}/fd")))

    # One for the control page of whoever comes next.
    most = len(used()) + 1
    run.join("nobody")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    for few in (0, 1, 2, 5, 9):
        # One or two more may be free: that page's; and one is kept for whoever comes to the control socket,
        # whose thread waits in accept.
        limit = sorted(set(range(1000)) - used(most))[few] if few else 3
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limits[1]))
        before = ticks()
        run.ask()
        assert run.answer(1) == "", f"it was let in with {few} descriptors: {run.lines()}"
        assert ticks() - before < 30, f"{ticks() - before} ticks in a second: the door spins"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert run.answer(3) == "through", f"it is not let in: {run.lines()}"
        run.join("descriptors")
    waits = "memspill: new processes wait: Too many open files (os error 24)"
    run.end(f"{waits}; the limit on open files (ulimit -n)\n")


globals()[CASE]()
