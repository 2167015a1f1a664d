"""Runs a command in a place that has neither userfaultfd nor io_uring, as containers have it: a seccomp
filter answers EPERM. usage: without_userfaultfd.py COMMAND..."""
import ctypes
import os
import struct
import sys

REFUSED = [323, 425, 426, 427]  # userfaultfd, io_uring_setup, _enter, _register of x86-64
EPERM = 1
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000

code = [(LOAD, 0, 0, 0)]
for place, number in enumerate(REFUSED):
    code.append((IF_EQUAL, len(REFUSED) - place, 0, number))
code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)]
packed = b"".join(struct.pack("HBBI", *insn) for insn in code)
filter_at = ctypes.create_string_buffer(packed, len(packed))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter_at))
program_at = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None, use_errno=True)
for args in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
             (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program_at), 0, 0)]:
    if libc.prctl(*(ctypes.c_ulong(arg) for arg in args)) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
if libc.syscall(ctypes.c_long(323), ctypes.c_long(1)) != -1 or ctypes.get_errno() != EPERM:
    sys.exit("the filter does not hold")
os.execvp(sys.argv[1], sys.argv[1:])
