#!/usr/bin/env python3
"""What a shell makes of TAB: complete.py SHELL SCRIPT LINE EXPECTED [LINE EXPECTED]...

SHELL is bash, zsh or fish, SCRIPT what `memspill completions SHELL` printed (for zsh in a file _memspill). A
shell of its own, on a terminal of its own and without the user's settings, is given each LINE and two TABs;
EXPECTED must come on the screen. Ends with 1 and what is on the screen where it does not.
"""
import os
import pty
import re
import select
import shutil
import signal
import sys
import tempfile
import time

READY = "ready-to-type> "
PROGRAMS = {"bash": ["bash", "--norc", "--noprofile"], "zsh": ["zsh", "-f"], "fish": ["fish"]}
# The prompt is taken apart, so that the line that sets it is not taken for it when it is echoed.
SETUPS = {
    "bash": ". /usr/share/bash-completion/bash_completion; . {script}; PS1='ready-to''-type> '",
    "zsh": "fpath=({directory} $fpath); autoload -Uz compinit; compinit -u -D; PS1='ready-to''-type> '",
    "fish": "source {script}; function fish_prompt; printf %s%s 'ready-to' '-type> '; end",
}
PATIENCE_S = 30
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|[\x00\x07\x0e\x0f]")


def until(terminal, expected):
    """What came on the screen, up to EXPECTED; None at the end if that never came."""
    out, end = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            out += os.read(terminal, 65536)
        shown = ESCAPES.sub("", out.decode(errors="replace"))
        if expected in shown:
            return shown, True
    return ESCAPES.sub("", out.decode(errors="replace")), False


def check(terminal, line, expected):
    os.write(terminal, line.encode() + b"\t\t")
    shown, found = until(terminal, expected)
    if not found:
        sys.exit(f"{line!r} and TAB: no {expected!r} in {shown!r}")
    # ^U: another line.
    os.write(terminal, b"\x03\x15\n")
    until(terminal, READY)


def main():
    shell, script, *words = sys.argv[1:]
    script, home = os.path.abspath(script), tempfile.mkdtemp()
    pid, terminal = pty.fork()
    if pid == 0:
        keep = {name: os.environ[name] for name in ["PATH"]}
        os.execvpe(shell, PROGRAMS[shell], keep | {"HOME": home, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    try:
        setup = SETUPS[shell].format(script=script, directory=os.path.dirname(script))
        os.write(terminal, setup.encode() + b"\n")
        if not until(terminal, READY)[1]:
            sys.exit(f"{shell} shows no prompt")
        for line, expected in zip(words[::2], words[1::2]):
            check(terminal, line, expected)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shutil.rmtree(home, ignore_errors=True)


main()
