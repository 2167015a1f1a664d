#!/bin/bash
# nbdkit in the foreground ends when the thread that started it ends, though nobody asked for that.
#
# Version: nbdkit 1.32.5-1 of Debian 12.
# Behaviour: --exit-with-parent is an option, and its manual says that it implies --foreground. The other way
#   round is true as well: with --foreground alone the server asks the kernel for SIGTERM at its parent's
#   death (PR_SET_PDEATHSIG). The kernel means the thread, not the process. So a server that a worker thread
#   has started shuts down when that thread is done, with code 0, while the program lives. In the background
#   it stays.
# One would have guessed: without the option the server outlives whoever has started it.
# Why it matters: a memory export is gone with its server, and with it what was swapped there. Test frameworks
#   and thread pools start servers from threads that end.
# Cause: prctl(2) counts the thread that has forked as the parent. Why the option is on was not found out.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get -qq download nbdkit=1.32.5-1
dpkg-deb -x nbdkit_*.deb root
cat >start.py <<'END'
import os, subprocess, threading, time
PLUGIN = "root/usr/lib/x86_64-linux-gnu/nbdkit/plugins/nbdkit-memory-plugin.so"

def lives(*options):
    """Is the server there a second after the thread has ended that started it?"""
    def start():
        command = ["root/usr/bin/nbdkit", *options, "-U", "socket", "-P", "pid", PLUGIN, "size=1M"]
        child = subprocess.Popen(command)
        while not os.path.exists("pid"):
            time.sleep(0.05)
        if "--foreground" not in options:
            child.wait()
        children.append(child)
    children = []
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(1)
    server = int(open("pid").read())
    code = children[0].poll()
    is_there = code is None if "--foreground" in options else os.path.exists(f"/proc/{server}")
    if is_there:
        os.kill(server, 15)
    children[0].wait()
    os.unlink("pid")
    if os.path.exists("socket"):
        os.unlink("socket")
    return is_there, code

foreground, code = lives("--foreground")
background, _ = lives()
print(f"in the foreground: {'lives' if foreground else f'has ended with code {code}'}")
print(f"in the background: {'lives' if background else 'has ended'}")
raise SystemExit(not (not foreground and code == 0 and background))
END
python3 start.py || { echo "changed: it is not as the header says" >&2; exit 1; }
