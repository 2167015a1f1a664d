"""Runs a command behind a seccomp filter that refuses something. usage: without.py WHAT COMMAND...
  userfaultfd    neither userfaultfd nor io_uring (EPERM), as in a container
  procmap-query  no PROCMAP_QUERY (ENOTTY), as before Linux 6.11"""
import ctypes
import os
import struct
import sys

EPERM, ENOTTY = 1, 25
USERFAULTFD, IOCTL = 323, 16  # of x86-64
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, REQUEST = 0, 24  # offsets in struct seccomp_data
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PROCMAP_QUERY = 0xC0686611

if sys.argv[1] == "userfaultfd":
    refused = [USERFAULTFD, 425, 426, 427]  # io_uring_setup, _enter, _register
    code = [(LOAD, 0, 0, NUMBER)]
    for place, number in enumerate(refused):
        code.append((IF_EQUAL, len(refused) - place, 0, number))
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)]
    tried, errno = [USERFAULTFD, 1], EPERM
else:
    code = [(LOAD, 0, 0, NUMBER), (IF_EQUAL, 0, 3, IOCTL), (LOAD, 0, 0, REQUEST),
            (IF_EQUAL, 0, 1, PROCMAP_QUERY), (RETURN, 0, 0, ERRNO | ENOTTY), (RETURN, 0, 0, ALLOW)]
    maps = open("/proc/self/maps")
    tried, errno = [IOCTL, maps.fileno(), PROCMAP_QUERY, 0], ENOTTY
packed = b"".join(struct.pack("HBBI", *insn) for insn in code)
filter_at = ctypes.create_string_buffer(packed, len(packed))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter_at))
program_at = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None, use_errno=True)
for args in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
             (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program_at), 0, 0)]:
    if libc.prctl(*(ctypes.c_ulong(arg) for arg in args)) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
if libc.syscall(*(ctypes.c_long(arg) for arg in tried)) != -1 or ctypes.get_errno() != errno:
    sys.exit("the filter does not hold")
os.execvp(sys.argv[2], sys.argv[2:])
