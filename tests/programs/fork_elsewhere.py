# Some MiB of memory, then a new network namespace, then a fork: the child reads all of its memory there.
import ctypes
import os
import sys

CLONE_NEWNET = 0x40000000
pages = [bytes([n % 251]) * 4096 for n in range(int(sys.argv[1]) * 256)]
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
if (child := os.fork()) == 0:
    os._exit(0 if all(page == bytes([n % 251]) * 4096 for n, page in enumerate(pages)) else 9)
sys.exit(os.waitpid(child, 0)[1] >> 8)
