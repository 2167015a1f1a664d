"""Sorts, sums and multiplies arrays and prints the md5 of each result: numpy_job.py MEGABYTES"""
import hashlib
import sys

import numpy as np

count = int(sys.argv[1]) * 2**20 // 8
rng = np.random.default_rng(1)
numbers = rng.integers(0, 2**62, count // 2)
ordered = np.sort(numbers)
print("sort", hashlib.md5(ordered).hexdigest())
print("sum", int(ordered.sum() % (2**61 - 1)), int((numbers[::-1] ^ ordered).sum()))
del ordered
side = int((count // 2 / 4) ** 0.5)
left = rng.integers(0, 100, (side, side)).astype(np.float64)
right = rng.integers(0, 100, (side, side)).astype(np.float64)
# Whole numbers this small are exact in floating point in whatever order they are added.
print("matmul", hashlib.md5(left @ right).hexdigest())
print("transposed", hashlib.md5(np.ascontiguousarray(left.T)).hexdigest())
