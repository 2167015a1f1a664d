"""Writes about N MB of lines of random text, always the same: lines.py MEGABYTES >FILE"""
import base64
import random
import sys

rng = random.Random(1)
for _ in range(int(sys.argv[1])):
    text = base64.b64encode(rng.randbytes(750_000))
    sys.stdout.buffer.write(b"\n".join(text[i : i + 59] for i in range(0, len(text), 59)) + b"\n")
