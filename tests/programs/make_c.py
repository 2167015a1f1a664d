"""Writes a C file of N functions that keep an optimizing compiler busy: make_c.py N SEED"""
import random
import sys

rng = random.Random(int(sys.argv[2]))
print("#include <stdint.h>\nextern uint64_t table[4096];")
for number in range(int(sys.argv[1])):
    a, b, c = (rng.randrange(1, 2**31) for _ in range(3))
    print(f"""
uint64_t f{number}(uint64_t x, uint64_t *p, int n) {{
    uint64_t s = x ^ {a}u;
    for (int i = 0; i < n; i++) {{
        switch ((s + i) % 5) {{
        case 0: s = s * {b}u + p[i]; break;
        case 1: s ^= table[(s >> 7) % 4096] + {c}u; break;
        case 2: p[i] = s; s += p[(i * {a % 61 + 1}) % (n + 1)]; break;
        default: s = (s << {a % 13 + 1}) | (s >> {b % 17 + 1});
        }}
        for (int j = 0; j < {a % 5 + 3}; j++) s += p[j] * table[(j + {c % 4000}) % 4096];
    }}
    return s;
}}""")
