#!/usr/bin/env python3
"""Measures numpy's arrays within a memory budget: memspill's, files that are mapped, and the kernel's swap.

    benchmarks/arrays.py [--rounds N] [--mib N] [--library FILE] [--dir DIR] [--memopro DIR] [ROW...]

    ample          the budget is twice what is needed: the same arrays without a budget, and with one
    expression, sort, matmul, count, random       half of what is needed; a page compresses to a fifth or so
    incompressible                                as random, with contents that do not compress

The peers: np.memmap with MADV_RANDOM on files in DIR, and the kernel's swap on zram (root; memory cgroup v1
or v2). Both are in a cgroup with a limit of the budget and of what Python takes without arrays. memspill's
compressed pool is within its budget, so what zram takes at most is taken off that limit: runs before the
first round find how much. Each round has each peer once. A ratio is of one round, and above 1 where memspill
is faster. The sums that are worked out are compared.

With --memopro the package memopro, unpacked in DIR, is a peer too: its ceiling is the budget and what Python
takes. It keeps to that by itself, in no cgroup. (Its unit is 1 MiB: random places take minutes.)

The library is that of target/release (cargo build --release -p memspill-arena -p memspill-cli). Python is
/usr/bin/python3, with Debian's python3-numpy.
"""
import argparse
import contextlib
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kernel_swap import V1, V2, Refused, tool, write  # noqa: E402
from programs import MEMSPILL, PYTHON, REPO, Run, end_on_sigterm, say, spread  # noqa: E402

LIMIT_S = 300
ZRAM_TRIES = 4
MEMOPRO = "memopro"
# zram takes more for such contents than they have room in memory.
WITHOUT_ZRAM = ["ample", "incompressible"]
ROWS = ["ample", "expression", "sort", "matmul", "count", "random", "incompressible"]
PACKAGE = REPO / "contrib" / "python" / "memspill"


# The work, in a process of its own.

class Arrays:
    """Makes arrays, in memory or in files that are mapped."""

    def __init__(self, folder):
        import numpy
        self.numpy, self.folder, self.made = numpy, folder, 0

    def empty(self, count, kind="f8"):
        if not self.folder:
            return self.numpy.empty(count, kind)
        self.made += 1
        array = self.numpy.memmap(f"{self.folder}/array{self.made}", kind, "w+", shape=count)
        array._mmap.madvise(mmap.MADV_RANDOM)
        return array

    def filled(self, count, compresses=True):
        random = self.numpy.random.default_rng(count)
        array = self.empty(count)
        step = 1 << 16
        for at in range(0, count, step):
            part = array[at:at + step]
            if compresses:
                part[:] = random.integers(0, 256, len(part) // 4).repeat(4)
            else:
                part[:] = random.random(len(part))
        return array


def expression(arrays, size):
    count = size // 8 // 4
    a, b, numpy = arrays.filled(count), arrays.filled(count), arrays.numpy

    def work():
        if not arrays.folder:
            return float((a * 2 + b * 3).sum())
        left, right = arrays.empty(count), arrays.empty(count)
        numpy.multiply(a, 2, out=left)
        numpy.multiply(b, 3, out=right)
        return float(numpy.add(left, right, out=left).sum())
    return work


def sort(arrays, size):
    array = arrays.filled(size // 8)

    def work():
        array.sort()
        return float(array[::4096].sum())
    return work


def matmul(arrays, size):
    side, tile = int((size / 8 / 3) ** 0.5) // 256 * 256, 256
    a, b, c = (arrays.filled(side * side).reshape(side, side) for _ in range(3))

    def work():
        for i in range(0, side, tile):
            for j in range(0, side, tile):
                c[i:i + tile, j:j + tile] = a[i:i + tile, :] @ b[:, j:j + tile]
        return float(c[::64, ::64].sum())
    return work


def count(arrays, size):
    keys, values = arrays.empty(size // 16, "i8"), arrays.filled(size // 16)
    keys[:] = arrays.numpy.arange(len(keys)) * 7919 % 1000
    return lambda: float(arrays.numpy.bincount(keys, values, 1000)[::7].sum())


def random(arrays, size, compresses=True):
    array = arrays.filled(size // 8, compresses)
    places = arrays.numpy.random.default_rng(1).integers(0, len(array) // 512, 40_000) * 512

    def work():
        total = 0.0
        for place in places.tolist():
            total += array[place]
        return float(total)
    return work


def incompressible(arrays, size):
    return random(arrays, size, compresses=False)


def ample(arrays, size):
    parts = [expression(arrays, size // 2), sort(arrays, size // 4)]
    return lambda: sum(part() for part in parts)


def work(row, size, budget, folder):
    """Prints how long the work took, and what came out."""
    with contextlib.ExitStack() as stack:
        if folder == MEMOPRO:
            import memopro
            memopro.enable(f"{budget / 1e6:.1f}MB")
            folder = ""
        elif budget:
            import memspill
            stack.enter_context(memspill.budget(budget))
        begin = globals()[row](Arrays(folder), size)
        began = time.monotonic()
        result = begin()
        print(f"{time.monotonic() - began:.4f} {result:.6e}")


# The sides.

class Limit:
    """A memory cgroup with a limit, from `with` to its end."""

    def __init__(self, limit_bytes):
        v1 = (V1 / "memory.limit_in_bytes").exists()
        self.group = (V1 if v1 else V2) / f"memspill-benchmark-{os.getpid()}"
        self.file, self.limit_bytes = "memory.limit_in_bytes" if v1 else "memory.max", limit_bytes

    def __enter__(self):
        try:
            self.group.mkdir()
        except OSError as error:
            raise Refused(f"{self.group}: {error.strerror} (a limit takes root)")
        write(self.group / self.file, str(self.limit_bytes))
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', self.group / "cgroup.procs"]

    def __exit__(self, *_):
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.group.rmdir()
            time.sleep(0.05)


class Zram:
    """Swap on a fresh zram device."""

    def __init__(self, size_bytes):
        self.size_bytes = size_bytes

    def __enter__(self):
        tool("modprobe", "zram") if not pathlib.Path("/sys/class/zram-control").is_dir() else None
        try:
            self.number = pathlib.Path("/sys/class/zram-control/hot_add").read_text().strip()
        except OSError as error:
            raise Refused(f"zram: {error.strerror}")
        self.block, self.is_on = pathlib.Path(f"/sys/block/zram{self.number}"), False
        try:
            with contextlib.suppress(Refused):
                write(self.block / "comp_algorithm", "lz4")
            write(self.block / "disksize", str(self.size_bytes))
            tool("mkswap", f"/dev/zram{self.number}")
            tool("swapon", "-p", "32000", f"/dev/zram{self.number}")
            self.is_on = True
            return self
        except BaseException:
            self.__exit__()
            raise

    def most_bytes(self):
        """The memory that it has taken at most."""
        return int((self.block / "mm_stat").read_text().split()[4])

    def __exit__(self, *_):
        if self.is_on:
            tool("swapoff", f"/dev/zram{self.number}")
        write(self.block / "reset", "1")
        write(pathlib.Path("/sys/class/zram-control/hot_remove"), self.number)


class Sides:
    def __init__(self, words, folder):
        self.words, self.folder = words, folder
        # What zram has taken in the last run of a row.
        self.zram_bytes = {}
        package = folder / "site" / "memspill"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(words.library, package)
        (folder / "site" / "bin").mkdir()
        shutil.copy(MEMSPILL, folder / "site" / "bin")
        os.environ["PYTHONPATH"] = f"{folder / 'site'}:{words.memopro or ''}"

    def run(self, row, size, budget=0, mapped="", before=()):
        command = [PYTHON, __file__, "--work", row, str(size), str(budget), mapped]
        done = Run(self.folder, [*before, *command], LIMIT_S)
        if done.code != 0:
            say(f"{row}: {done.why_failed()}")
            return None
        seconds, result = done.out.split()
        return float(seconds), result

    def own_bytes(self):
        """What Python and numpy take without arrays."""
        code = ("import numpy, re; status = open('/proc/self/status').read(); "
                "print(re.search(r'RssAnon:\\s+(\\d+)', status)[1])")
        done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
        return int(done.stdout) << 10

    def alone(self, row, size, _):
        return self.run(row, size)

    def memspill(self, row, size, budget):
        return self.run(row, size, budget)

    def memmap(self, row, size, budget):
        with tempfile.TemporaryDirectory(dir=self.words.dir) as files:
            with Limit(budget + self.own_bytes()) as before:
                return self.run(row, size, mapped=files, before=before)

    def memopro(self, row, size, budget):
        return self.run(row, size, budget + self.own_bytes(), mapped=MEMOPRO)

    def zram(self, row, size, budget):
        """With the limit at which the last run would have been within the budget."""
        if row not in self.zram_bytes:
            self.zram_bytes[row] = 0
            for _ in range(ZRAM_TRIES):
                self.zram(row, size, budget)
        limit_bytes = budget - self.zram_bytes[row] + self.own_bytes()
        with Zram(4 * size) as zram, Limit(limit_bytes) as before:
            done = self.run(row, size, before=before)
            self.zram_bytes[row] = min(zram.most_bytes(), budget)
            say(f"zram: {limit_bytes >> 20} MiB and {self.zram_bytes[row] >> 20} of its own")
            return done


def rounds(words, sides, row):
    size = words.mib << 20
    budget, peers = (2 * size, ["alone"]) if row == "ample" else (size // 2, ["memmap"])
    if row not in WITHOUT_ZRAM:
        peers.append("zram")
    if words.memopro and row != "ample":
        peers.append(MEMOPRO)
    ratios, seconds = {peer: [] for peer in peers}, {peer: [] for peer in [*peers, "memspill"]}
    for number in range(words.rounds):
        names = ["memspill", *peers]
        took, results = {}, set()
        for name in names if number % 2 == 0 else reversed(names):
            if done := getattr(sides, name)(row, size, budget):
                took[name] = done[0]
                results.add(done[1])
                seconds[name].append(done[0])
        if len(results) > 1:
            sys.exit(f"{row}: THE RESULTS DIFFER: {results}")
        say(f"{row}, round {number + 1}: {took}, load {os.getloadavg()[0]:.1f}")
        for peer in peers:
            if peer in took and "memspill" in took:
                ratios[peer].append(took[peer] / took["memspill"])
    print(f"{row:15} memspill {spread(seconds['memspill'])} s" + "".join(
        f"; {peer} {spread(seconds[peer])} s, ratio {spread(ratios[peer])}" for peer in peers), flush=True)


def main():
    if sys.argv[1:2] == ["--work"]:
        row, size, budget, folder = sys.argv[2:]
        return work(row, int(size), int(budget), folder)
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mib", type=int, default=128, help="what the arrays of a row take [default: 128]")
    parser.add_argument("--library", type=pathlib.Path, default=REPO / "target/release/libmemspill.so")
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--memopro", type=pathlib.Path, metavar="DIR", help="where the package is unpacked")
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[*ROWS, []])
    words = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="memspill-arrays.") as folder:
        sides = Sides(words, pathlib.Path(folder))
        for row in words.rows or ROWS:
            rounds(words, sides, row)


if __name__ == "__main__":
    try:
        main()
    except Refused as why:
        sys.exit(str(why))
