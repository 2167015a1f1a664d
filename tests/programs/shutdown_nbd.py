"""An NBD server in memory that says ESHUTDOWN to one request of a kind in a hundred, and goes on. Its clients
hang up at each, and nbdkit 1.32.5 may abort then.

usage: shutdown_nbd.py SOCKET BYTES pread|pwrite|trim FLAG [hang-up]: all goes well before the file FLAG is
there. hang-up: the server hangs up at the first request of that kind, and at each for the same page.
"""

import itertools
import os
import socket
import struct
import sys
import threading

PATH, BYTES, FLAG = sys.argv[1], int(sys.argv[2]), sys.argv[4]
READ, WRITE, DISCONNECT, TRIM = 0, 1, 2, 4
FAILS = {"pread": READ, "pwrite": WRITE, "trim": TRIM}[sys.argv[3]]
ESHUTDOWN, EVERY = 108, 100
GO, ACK, INFO, UNSUPPORTED = 7, 1, 3, 0x80000001
# It has flags, knows TRIM, and several connections see each other's writes.
FLAGS = 1 | 1 << 5 | 1 << 8

HANGS_UP = sys.argv[5:] == ["hang-up"]
memory = bytearray(BYTES)
bad_at = None
counted = itertools.count(1)


def take(stream, count):
    got = stream.recv(count, socket.MSG_WAITALL) if count else b""
    if len(got) < count:
        raise EOFError
    return got


def shake_hands(stream):
    stream.sendall(b"NBDMAGICIHAVEOPT\0\3")
    take(stream, 4)
    option = None
    while option != GO:
        _, option, length = struct.unpack(">QII", take(stream, 16))
        take(stream, length)
        export = struct.pack(">HQH", 0, BYTES, FLAGS)
        for kind, words in [(INFO, export), (ACK, b"")] if option == GO else [(UNSUPPORTED, b"")]:
            stream.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(words)) + words)


def is_bad(at, length):
    """The first page that is asked for, but for the mark in front."""
    global bad_at
    if bad_at is None and at > 0:
        bad_at = at
    return bad_at is not None and at <= bad_at < at + length


def answer(stream):
    _, _, kind, cookie, at, length = struct.unpack(">IHHQQI", take(stream, 28))
    if kind == DISCONNECT:
        raise EOFError
    data = take(stream, length) if kind == WRITE else bytes(length)
    errno, back = 0, b""
    if HANGS_UP and kind == FAILS and os.path.exists(FLAG) and is_bad(at, length):
        raise EOFError
    if not HANGS_UP and kind == FAILS and os.path.exists(FLAG) and next(counted) % EVERY == 0:
        errno = ESHUTDOWN
    elif kind == READ:
        back = memory[at : at + length]
    else:
        memory[at : at + length] = data
    stream.sendall(struct.pack(">IIQ", 0x67446698, errno, cookie) + back)


def serve(stream):
    try:
        shake_hands(stream)
        while True:
            answer(stream)
    except (EOFError, OSError):
        stream.close()


server = socket.socket(socket.AF_UNIX)
server.bind(PATH)
server.listen()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
