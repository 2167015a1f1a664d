"""Agents that lie to memspill, in a process of its tree (without an agent of its own). The argument says
about what.

waits   the userfaultfd is one that waits when it is read
memory  the evictor is this process's, the userfaultfd its child's: what memspill takes out of the one it puts
        into the other. (Here both run the same program. The one might have more rights.)
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time

from protocol import MAGIC, RUNS_AT

KIND_EXEC = 0
OP_MOVE, OP_POPULATE = 1, 2
USERFAULTFD_IOC_NEW, O_CLOEXEC, O_NONBLOCK = 0xAA00, 0o2000000, 0o4000
PAGE = 4096
SECRET = b"another process's memory".ljust(32, b".")
# Staging, doorbells, ident, private; then what is to be managed.
REGION, REGION_PAGES = 1 << 44, 256 + 16 + 1 + 16
DATA, DATA_BYTES = 1 << 45, 96 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]


def map_at(addr, size, fd=-1):
    flags = 0x100000 | (1 if fd >= 0 else 0x22)  # FIXED_NOREPLACE, SHARED or PRIVATE | ANONYMOUS
    assert libc.mmap(addr, size, 3, flags, fd, 0) == addr, "mmap"


def make(device, flags):
    """fcntl.ioctl shows the result of an ioctl."""
    return fcntl.ioctl(device, USERFAULTFD_IOC_NEW, flags)


def connect():
    """The socket, the control page and /dev/userfaultfd."""
    name, token = os.environ["MEMSPILL_AGENT"].split(":")
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.connect(b"\0" + name.encode())
    agent.send(struct.pack("<IIII32s16s", MAGIC, KIND_EXEC, os.getpid(), 0, token.encode(), b""))
    words, fds, _, _ = socket.recv_fds(agent, 100, 4)
    assert struct.unpack("<II", words) == (MAGIC, 0) and len(fds) == 2, (words, fds)
    return agent, fds[0], fds[1]


def ready(agent, control, uffd, evictor):
    """True: it was let in."""
    doorbells = REGION + 256 * PAGE
    ident = doorbells + 16 * PAGE
    private = ident + PAGE
    control_page = private + 16 * PAGE
    map_at(control_page, PAGE, control)
    addresses = [REGION, doorbells, ident, private, 16 * PAGE, control_page, private, PAGE]
    socket.send_fds(agent, [struct.pack("<Ii12QII", MAGIC, 0, *addresses, 0, 0, 0, 0, evictor, 0)], [uffd])
    return struct.unpack("<Ii", agent.recv(100)) == (MAGIC, 0)


def thread():
    """The id of a thread of this process that does nothing."""
    started = threading.Event()
    waiting = threading.Thread(target=lambda: (started.set(), time.sleep(1000)), daemon=True)
    waiting.start()
    started.wait()
    return waiting.native_id


def waits():
    """As many as memspill has threads that could be held up."""
    count = min(8, len(os.sched_getaffinity(0)))
    reader, writer = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            waits_one(writer)
    assert sum(len(os.read(reader, 1)) for _ in range(count)) == count
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    print("let in", flush=True)
    os.wait()


def waits_one(tell):
    map_at(REGION, REGION_PAGES * PAGE)
    agent, control, device = connect()
    uffd = make(device, O_CLOEXEC)
    assert ready(agent, control, uffd, thread()), "refused"
    threading.Thread(target=lambda: answer(agent, control, lambda addr, pages: 0), daemon=True).start()
    os.write(tell, b"y")
    while True:
        flags = fcntl.fcntl(uffd, fcntl.F_GETFL)
        fcntl.fcntl(uffd, fcntl.F_SETFL, flags & ~O_NONBLOCK)
        time.sleep(0.001)


def answer(agent, control, move):
    """As an evictor does. `move` says how many pages of a run it has moved."""
    page = mmap.mmap(control, PAGE)
    while command := agent.recv(100):
        op, seq, count, _ = struct.unpack("<IIII", command)
        for at in range(RUNS_AT, RUNS_AT + 24 * count, 24) if op == OP_MOVE else ():
            addr, pages = struct.unpack("<QI", page[at : at + 12])
            moved = move(addr, pages)
            page[at + 16 : at + 24] = struct.pack("<II", moved, 0 if moved == pages else errno.EINVAL)
        if op in (OP_MOVE, OP_POPULATE):
            agent.send(struct.pack("<II", seq, count))


def memory():
    map_at(REGION, REGION_PAGES * PAGE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        look(theirs)
    map_at(DATA, DATA_BYTES)
    agent, control, device = connect()
    socket.send_fds(ours, [b"device"], [device])
    _, (uffd,), _, _ = socket.recv_fds(ours, 100, 1)
    assert ready(agent, control, uffd, thread()), "refused"
    ctypes.memmove(REGION, SECRET * (256 * PAGE // len(SECRET)), 256 * PAGE)
    for page in range(DATA, DATA + DATA_BYTES, PAGE):
        ctypes.memset(page, 1, 8)
    ours.send(b"look")

    def pretend(addr, pages):
        if DATA <= addr < DATA + DATA_BYTES:
            libc.madvise(ctypes.c_void_p(addr), pages * PAGE, 4)  # DONTNEED: they are gone, as if moved
        return pages

    answer(agent, control, pretend)


def look(parent):
    map_at(DATA, DATA_BYTES)
    _, (device,), _, _ = socket.recv_fds(parent, 100, 1)
    socket.send_fds(parent, [b"userfaultfd"], [make(device, O_CLOEXEC | O_NONBLOCK)])
    os.close(device)
    parent.recv(100)
    time.sleep(3)
    for page in range(DATA, DATA + DATA_BYTES, PAGE):
        if ctypes.string_at(page, len(SECRET)) == SECRET:
            print("LEAKED: one process sees another one's memory", flush=True)
            break
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(0)


{"waits": waits, "memory": memory}[sys.argv[1]]()
