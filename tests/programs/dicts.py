"""Dicts, lists and strings, made, looked up, sorted and thrown away: dicts.py ROUNDS"""
import hashlib
import random
import sys

rng = random.Random(1)
total = hashlib.md5()
table = {}
for round in range(int(sys.argv[1])):
    for number in range(50_000):
        table[rng.getrandbits(40)] = [number, str(rng.random()), (round, number)]
    keys = sorted(table)
    for key in rng.sample(keys, 5_000):
        total.update(str(table[key]).encode())
    for key in keys[::7]:
        del table[key]
    total.update(str(sum(keys)).encode())
print(len(table), total.hexdigest())
