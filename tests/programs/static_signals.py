"""Static programs that are stopped, continued and sent other signals while they start.

usage: static_signals.py PROGRAM TIMES; `PROGRAM 1 exit` ends with 7, whatever of these signals it gets.
"""
import os
import random
import signal
import subprocess
import sys
import threading
import time

SIGNALS = [signal.SIGWINCH, signal.SIGCONT, signal.SIGSTOP, signal.SIGCHLD, signal.SIGURG]
WAIT_S = 20
program, times = sys.argv[1], int(sys.argv[2])
wrong = []


def start_some(seed):
    draw = random.Random(seed)
    for _ in range(times):
        # With close_fds it is a fork, else a vfork.
        child = subprocess.Popen([program, "1", "exit"], stdout=subprocess.DEVNULL,
                                 close_fds=draw.random() < 0.5)
        for _ in range(draw.randrange(4)):
            time.sleep(draw.random() * 0.004)
            which = draw.choice(SIGNALS)
            # Not waited for yet, so its number is nobody else's.
            os.kill(child.pid, which)
            if which == signal.SIGSTOP:
                time.sleep(draw.random() * 0.002)
                os.kill(child.pid, signal.SIGCONT)
        try:
            code = child.wait(WAIT_S)
            if code != 7:
                wrong.append(f"it ends with {code}")
        except subprocess.TimeoutExpired:
            wrong.append(f"it hangs: {open(f'/proc/{child.pid}/wchan').read()}")
            child.kill()


threads = [threading.Thread(target=start_some, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(wrong) or "ready")
sys.exit(bool(wrong))
