"""Budgets: blocks in which numpy allocates from an arena.

numpy's memory handler is a variable of the context, so a new thread has numpy's own again. While a block is
open, a thread that is started inside is given the block's handler before it runs.
"""

import ctypes
import json
import re
import threading

from memspill._library import COLD, WILLNEED, Error, Stats, call, handler_of, numpy_functions

SIZE = re.compile(r"([0-9]+)(?:\.([0-9]*))?([KMGTP]?)(iB|B|)", re.IGNORECASE)


def bytes_of(size):
    """A number of bytes, or a text as the command reads it: 512M, 2GiB, 1.5G; 10GB with powers of 1000."""
    if isinstance(size, int) and not isinstance(size, bool):
        bytes = size
    else:
        found = SIZE.fullmatch(size) if isinstance(size, str) else None
        if not found:
            raise Error(f"{size!r} is no size: give bytes, or such as '512M', '2GiB', '1.5G' or '10GB'")
        whole, fraction, unit, end = found.groups()
        base = 1000 if unit and end.upper() == "B" else 1024
        fraction = fraction or ""
        unit_bytes = base ** " KMGTP".index(unit.upper() or " ")
        bytes = int(whole + fraction) * unit_bytes // 10 ** len(fraction)
    if not 0 < bytes < 1 << 63:
        raise Error(f"a budget of {size!r} is no budget: give a size above zero, such as '2G'")
    return bytes


class Process:
    """What this process has: one supervisor, and one arena or a budget for everything."""

    def __init__(self):
        self.lock = threading.Lock()
        self.arena = None
        self.handler = None
        self.has_everything = False
        self.limit_bytes = 0
        # Blocks that are open, in all threads.
        self.open = 0
        self.thread_start = None

    def set_limit(self, bytes):
        if self.has_everything:
            call("memspill_limit_process", bytes)
        else:
            call("memspill_arena_limit", self.arena, bytes)
        self.limit_bytes = bytes

    def open_block(self, bytes):
        set_handler, get_handler = numpy_functions()
        with self.lock:
            if self.has_everything:
                raise Error("all of this process is within a budget: memspill.limit() changes it")
            if self.arena and get_handler() is self.handler:
                raise Error("a budget inside a budget: memspill.limit() changes the one that is there")
            if self.open and bytes != self.limit_bytes:
                raise Error("another thread has a budget of another size: a process has one budget")
            if not self.arena:
                self.arena = call("memspill_arena_create", bytes)
                self.handler = handler_of(self.arena)
                self.limit_bytes = bytes
            elif bytes != self.limit_bytes:
                self.set_limit(bytes)
            if not self.open:
                self.follow_threads()
            self.open += 1
            return set_handler(self.handler)

    def close_block(self, before):
        set_handler, _ = numpy_functions()
        with self.lock:
            set_handler(before)
            self.open -= 1
            if not self.open:
                self.leave_threads()

    def follow_threads(self):
        set_handler, get_handler = numpy_functions()
        handler, plain_start = self.handler, threading.Thread.start

        def start(thread, *arguments, **named):
            if get_handler() is handler:
                run = thread.run

                def run_inside():
                    del thread.run
                    set_handler(handler)
                    run()

                thread.run = run_inside
            return plain_start(thread, *arguments, **named)

        self.thread_start = (plain_start, start)
        threading.Thread.start = start

    def leave_threads(self):
        plain_start, start = self.thread_start
        # Others may have put theirs around ours meanwhile: it stays, and does nothing outside of a block.
        if threading.Thread.start is start:
            threading.Thread.start = plain_start

    def begin_everything(self, bytes):
        with self.lock:
            if self.arena or self.has_everything:
                raise Error("this process has a budget already: memspill.limit() changes it")
            call("memspill_budget_process", bytes)
            self.has_everything, self.limit_bytes = True, bytes


PROCESS = Process()


class Budget:
    """A budget, for one `with` block. One for everything holds from the call on, until the process ends."""

    def __init__(self, bytes, everything):
        self._bytes = bytes
        self._everything = everything
        self._before = None
        if everything:
            PROCESS.begin_everything(bytes)

    def __enter__(self):
        if not self._everything:
            if self._before is not None:
                raise Error("this budget is in use: make one for each block, with memspill.budget(...)")
            self._before = PROCESS.open_block(self._bytes)
        return self

    def __exit__(self, *_):
        if not self._everything:
            before, self._before = self._before, None
            PROCESS.close_block(before)


def budget(size, *, everything=False):
    return Budget(bytes_of(size), everything)


def checked():
    if not (PROCESS.arena or PROCESS.has_everything):
        raise Error("there is no budget yet: with memspill.budget('2G'): ...")
    return PROCESS


def limit(size=None):
    process = checked()
    if size is not None:
        bytes = bytes_of(size)
        with process.lock:
            process.set_limit(bytes)
    return process.limit_bytes


def stats():
    process = checked()
    found = json.loads(call("memspill_statistics"))
    if process.arena:
        sizes = Stats()
        call("memspill_arena_stats", process.arena, ctypes.byref(sizes))
        found["arena_bytes"] = sizes.allocated_bytes
    return found


def span(array):
    """The addresses of an array, from its first byte to its last."""
    low = high = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides):
        step = (length - 1) * stride
        low, high = low + min(step, 0), high + max(step, 0)
    return low, high + array.itemsize


def advise(array, advice):
    process = checked()
    if not hasattr(array, "__array_interface__"):
        kind = type(array).__name__
        raise Error(f"advice is for numpy's arrays, not for {kind}: give its .to_numpy() or .values")
    if advice not in ("cold", "willneed", "pin", "unpin"):
        raise Error(f"no such advice as {advice!r}: 'cold', 'willneed', 'pin' or 'unpin'")
    if not process.arena:
        raise Error("advice is for arrays that were made in a block with a budget, not for everything")
    if array.size == 0:
        return
    if advice in ("pin", "unpin"):
        while hasattr(array.base, "__array_interface__"):
            array = array.base
        call(f"memspill_arena_{advice}", process.arena, span(array)[0])
        return
    low, high = span(array)
    call("memspill_arena_advise", process.arena, low, high - low, COLD if advice == "cold" else WILLNEED)
