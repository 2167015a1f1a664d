"""The second SIGINT or SIGTERM to memspill ends the tree at once, whatever state it is in.

    second_signal.py MEMSPILL WORKLOAD [FREEZER...]

FREEZER is a folder of a cgroup v1 or v2 hierarchy in which a group can be made and frozen.
"""
import os
import pty
import signal
import subprocess
import sys
import time

MEMSPILL, WORKLOAD, FREEZERS = sys.argv[1], sys.argv[2], sys.argv[3:]
TERM, INT = signal.SIGTERM, signal.SIGINT
group = None
DEAF = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, %s)
memory = bytearray(120 << 20)
print("up", flush=True)
while True:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
"""
IGNORES = [sys.executable, "-c", DEAF % "signal.SIG_IGN"]
CATCHES = [sys.executable, "-c", DEAF % "lambda *_: print('caught', flush=True)"]


class Run:
    def __init__(self, command, *options, **keywords):
        keywords.setdefault("stdout", subprocess.PIPE)
        self.memspill = subprocess.Popen([MEMSPILL, "run", "-m", "64M", *options, "--", *command], **keywords)

    def up(self):
        assert self.memspill.stdout.readline().strip() == b"up"
        time.sleep(0.3)
        return self

    def tree(self):
        below, new = [], [self.memspill.pid]
        while new:
            alive = [pid for pid in new if os.path.exists(f"/proc/{pid}")]
            children = [open(f"/proc/{pid}/task/{pid}/children").read() for pid in alive]
            new = [int(pid) for line in children for pid in line.split()]
            below += [pid for pid in new if open(f"/proc/{pid}/comm").read() != "memspill-guard\n"]
        return below

    def twice(self, name, first=TERM, second=TERM, code=None):
        tree = self.tree()
        self.memspill.send_signal(first)
        time.sleep(0.4)
        assert self.memspill.poll() is None, f"{name}: the first signal ended it: {self.memspill.returncode}"
        begun = time.monotonic()
        self.memspill.send_signal(second)
        self.ends(name, begun, tree, code or 128 + second)

    def ends(self, name, begun, tree, code):
        try:
            self.memspill.wait(10)
        except subprocess.TimeoutExpired:
            sys.exit(f"{name}: not ended after 10 s")
        took = time.monotonic() - begun
        alive = [pid for pid in tree if os.path.exists(f"/proc/{pid}")]
        left = [pid for pid in alive if b"Z" != state(pid) and not frozen(pid)]
        ended_with = self.memspill.returncode
        assert ended_with == code, f"{name}: exit code {ended_with} instead of {code}"
        assert took < 2, f"{name}: it took {took:.1f} s"
        assert not left, f"{name}: left are {left}"


def state(pid):
    try:
        return open(f"/proc/{pid}/stat", "rb").read().rsplit(b")", 1)[1].split()[0]
    except OSError:
        return b"Z"


def frozen(pid):
    """A process that is frozen in a cgroup of version 1 ends when it thaws."""
    procs = f"{group}/cgroup.procs"
    return os.path.exists(procs) and str(pid) in open(procs).read().split()


def freeze(freezer, pids):
    global group
    group = f"{freezer}/memspill-test-{os.getpid()}"
    os.mkdir(group)
    for pid in pids:
        open(f"{group}/cgroup.procs", "w").write(str(pid))
    v2 = os.path.exists(f"{group}/cgroup.freeze")
    open(f"{group}/cgroup.freeze" if v2 else f"{group}/freezer.state", "w").write("1" if v2 else "FROZEN")
    time.sleep(0.2)


def thaw():
    v2 = os.path.exists(f"{group}/cgroup.freeze")
    open(f"{group}/cgroup.freeze" if v2 else f"{group}/freezer.state", "w").write("0" if v2 else "THAWED")
    for _ in range(200):
        try:
            return os.rmdir(group)
        except OSError:
            time.sleep(0.01)


def ignores():
    for first, second in ((TERM, TERM), (INT, INT), (INT, TERM), (TERM, INT)):
        Run(IGNORES).up().twice(f"a program that ignores {first} and {second}", first, second)


def stopped():
    run = Run(CATCHES).up()
    for pid in run.tree():
        os.kill(pid, signal.SIGSTOP)
    run.twice("a stopped program")


def frozen_group():
    for freezer in FREEZERS:
        run = Run(CATCHES).up()
        freeze(freezer, run.tree())
        try:
            run.twice(f"a program frozen in {freezer}")
        finally:
            thaw()


def stopped_while_others_wait():
    stopped = f"{WORKLOAD} spin-touch --size 100M >/dev/null & sleep 1.5; kill -STOP $!"
    script = f"trap : TERM INT; {stopped}; echo up; {WORKLOAD} spin-touch --size 300M; wait"
    Run(["bash", "-c", script]).up().twice("faults that wait for a stopped process")


def left_behind():
    """The command is gone; the first signal ends what it left behind, as ever."""
    run = Run(["bash", "-c", "trap '' TERM; setsid sleep 1000 >/dev/null & echo up"]).up()
    begun, tree = time.monotonic(), run.tree()
    assert tree, "nothing was left behind"
    run.memspill.send_signal(TERM)
    run.ends("what the command left behind", begun, tree, 0)


def end_phase():
    """Nobody reads what the run says at its end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    run = Run(["true"], "--stats", stderr=writer)
    time.sleep(0.5)
    if run.memspill.poll() is not None:
        sys.exit("it has ended, although nobody reads its statistics")
    run.twice("statistics that nobody reads")
    os.close(reader)


def terminal(command, keys, expect):
    """^C from a terminal. Returns the exit code, or None where the tree goes on."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(MEMSPILL, [MEMSPILL, "run", "-m", "64M", "--", *command])
    said = b""
    while b"up" not in said:
        said += os.read(terminal, 1000)
    time.sleep(0.5)
    for pause in keys:
        os.write(terminal, b"\x03")
        time.sleep(pause)
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(status) if ended else None
    assert code == expect, f"{command[-1][:40]!r} and ^C after {keys} s: {code} instead of {expect}"


def terminals():
    terminal(IGNORES, [0.5], None)
    terminal(IGNORES, [3, 1.5], 130)
    terminal(CATCHES, [0.5, 1.5], 130)
    quiet = "\n".join([
        "import signal, time",
        "signal.signal(signal.SIGINT, lambda *_: 0)",
        "print('up', flush=True)",
        "while True: time.sleep(9)",
    ])
    terminal([sys.executable, "-c", quiet], [2.5, 2.5, 1], None)
    at_a_prompt = "import sys, tty\ntty.setcbreak(0)\n" + quiet
    terminal([sys.executable, "-c", at_a_prompt], [0.5, 0.5, 1], None)


def from_timeout():
    """timeout(1) sends its signal to its child and to its group: that is one request."""
    handler = "print('had its time', flush=True), sys.exit(7)"
    code = f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), {handler}))\n"
    code += "while True: time.sleep(9)"
    command = [MEMSPILL, "run", "-m", "64M", "--", sys.executable, "-c", "import signal, sys, time\n" + code]
    done = subprocess.run(["timeout", "2", *command], stdout=subprocess.PIPE)
    assert b"had its time" in done.stdout, "the program was killed by the signals of timeout(1)"


for case in (
    ignores, stopped, frozen_group, stopped_while_others_wait, left_behind, end_phase, terminals, from_timeout
):
    case()
print("all right")
