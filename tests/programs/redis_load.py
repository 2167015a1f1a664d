"""Redis commands, always the same: redis_load.py KEYS FIRST-ROUND|SECOND-ROUND | redis-cli --pipe"""
import random
import sys

keys, second = int(sys.argv[1]), sys.argv[2] == "second"
rng = random.Random(2 if second else 1)
out = sys.stdout.buffer


def command(*words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    out.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))


for number in range(keys):
    key = rng.randrange(keys) if second else number
    value = rng.randbytes(rng.randrange(20, 300)).hex()
    kind = key % 4
    if kind == 0:
        command("HSET", f"h{key % 5000}", value[:16], value)
    elif kind == 1:
        command("ZADD", f"z{key % 2000}", rng.randrange(10**6), value[:40])
    elif second and number % 5 == 0:
        command("DEL", f"k{key}")
    else:
        command("SET", f"k{key}", value)
