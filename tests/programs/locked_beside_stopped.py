"""A process stands still with most of the memory; another one locks some, in shared memory that is managed
already, and works in what is left. Then the first one goes on. Both check each page.

    locked_beside_stopped.py STOPPED_MIB LOCKED_MIB MIB
"""
import ctypes
import mmap
import os
import signal
import sys
import time


def fill(memory):
    for at in range(0, len(memory), 4096):
        memory[at:at + 8] = at.to_bytes(8, "little")


def check(memory, whose):
    for at in range(0, len(memory), 4096):
        if memory[at:at + 8] != at.to_bytes(8, "little"):
            print(f"BAD PAGE at {at} of the {whose}", file=sys.stderr)
            os._exit(3)


def stopped(mib):
    memory = bytearray(mib << 20)
    fill(memory)
    os.kill(os.getpid(), signal.SIGSTOP)
    check(memory, "stopped process")


def locking(locked_mib, mib):
    libc = ctypes.CDLL(None, use_errno=True)
    locked = mmap.mmap(-1, locked_mib << 20)
    fill(locked)
    # It is managed by then.
    time.sleep(0.3)
    start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(locked)))
    if libc.mlock(start, ctypes.c_size_t(len(locked))):
        sys.exit(f"mlock: {os.strerror(ctypes.get_errno())}")
    memory = bytearray(mib << 20)
    fill(memory)
    check(memory, "process that locks")
    check(locked, "process that locks")


def in_child(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid


def succeeded(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main():
    stopped_mib, locked_mib, mib = map(int, sys.argv[1:])
    first = in_child(stopped, stopped_mib)
    os.waitpid(first, os.WUNTRACED)
    if not succeeded(in_child(locking, locked_mib, mib)):
        os.kill(first, signal.SIGKILL)
        sys.exit(1)
    print("it got on", flush=True)
    os.kill(first, signal.SIGCONT)
    sys.exit(0 if succeeded(first) else 1)


main()
