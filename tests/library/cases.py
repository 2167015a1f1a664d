#!/usr/bin/env python3
"""Budgets inside a Python program: cases.py CASE [BIN]

Each case is a process of its own, with the package installed in its Python. Arrays are several times the
budget, and every value is checked. A case ends with an error if something is wrong.
"""

import concurrent.futures
import gc
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

import memspill
import numpy as np

MIB = 1 << 20
BUDGET_MIB = 48
# What the process has beside the arena, and moments above the budget.
SLACK_MIB = 8


def fails(words, call, *arguments, **named):
    """The call fails, and its error says these words."""
    try:
        call(*arguments, **named)
    except memspill.Error as error:
        assert re.search(words, str(error)), error
    else:
        raise AssertionError(f"no error: {words}")


def in_memory_mib(array):
    """The part of the mapping around an array that is in memory."""
    address, within = array.__array_interface__["data"][0], False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if head:
                within = int(head.group(1), 16) <= address < int(head.group(2), 16)
            elif within and line.startswith("Rss:"):
                return int(line.split()[1]) / 1024
    raise AssertionError("the array is nowhere")


def numbers(mib, seed):
    """An array of which each value says where it stands, and which array it is."""
    array = np.arange(mib * MIB // 8, dtype=np.uint64)
    array ^= np.uint64(seed << 40)
    return array


def are_right(array, seed):
    step = 1 << 16
    for start in range(0, len(array), step):
        part = array[start : start + step] ^ np.uint64(seed << 40)
        assert part[0] == start and part[-1] == start + len(part) - 1 and (np.diff(part) == 1).all(), start


def budget(mib=BUDGET_MIB):
    return memspill.budget(f"{mib}M")


def push_out(*arrays):
    """Other memory takes the place of these arrays."""
    for array in arrays:
        memspill.advise(array, "cold")
    with budget():
        np.ones(2 * BUDGET_MIB * MIB // 8).sum()


def case_arrays():
    with budget():
        arrays = [numbers(64, seed) for seed in range(4)]
    for _ in range(2):
        for seed, array in enumerate(arrays):
            are_right(array, seed)
        assert in_memory_mib(arrays[0]) < BUDGET_MIB + SLACK_MIB, in_memory_mib(arrays[0])
    stats = memspill.stats()
    assert stats["arena_bytes"] >= 256 * MIB, stats["arena_bytes"]
    assert stats["swapped_bytes"] > 100 * MIB, stats["swapped_bytes"]
    # Freed arrays take no memory and no swap.
    del arrays, array
    gc.collect()
    assert memspill.stats()["arena_bytes"] < MIB, memspill.stats()["arena_bytes"]
    end = time.monotonic() + 20
    while memspill.stats()["swapped_bytes"] > 4 * MIB:
        assert time.monotonic() < end, memspill.stats()["swapped_bytes"]
        time.sleep(0.1)


def case_outside():
    """Arrays that are made outside of the block are numpy's own; what is made inside stays valid after it."""
    before = numbers(4, 1)
    with budget():
        inside = numbers(96, 2)
        sorted_inside = np.sort(inside[::-1])
    after = np.resize(inside, 8)
    assert memspill.stats()["arena_bytes"] >= 192 * MIB
    for array, seed in [(before, 1), (inside, 2)]:
        are_right(array, seed)
    assert (sorted_inside == np.sort(inside)).all() and len(after) == 8
    inside.resize(len(inside) * 2, refcheck=False)
    are_right(inside[: 96 * MIB // 8], 2)
    assert not inside[96 * MIB // 8 :].any()
    fails("memory of this arena|not of this arena", memspill.advise, before, "cold")


def case_threads():
    """A thread that is started inside has the budget, one that was there before has not."""
    go, made = threading.Event(), []

    def early():
        go.wait()
        made.append(numbers(8, 9))

    thread = threading.Thread(target=early)
    thread.start()
    with budget():
        plain = threading.Thread.start
        go.set()
        thread.join()
        assert memspill.stats()["arena_bytes"] < MIB
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            arrays = list(pool.map(lambda seed: numbers(16, seed), range(12)))
        from multiprocessing.pool import ThreadPool

        with ThreadPool(2) as threads:
            arrays += threads.map(lambda seed: numbers(16, seed), range(12, 16))

        class Own(threading.Thread):
            def run(self):
                self.array = numbers(16, 16)

        own = Own()
        own.start()
        own.join()
        arrays.append(own.array)
        assert memspill.stats()["arena_bytes"] >= 17 * 16 * MIB, memspill.stats()["arena_bytes"]
    assert threading.Thread.start is not plain
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(are_right, arrays, range(17)))
    late = []
    thread = threading.Thread(target=lambda: late.append(numbers(8, 3)))
    thread.start()
    thread.join()
    assert memspill.stats()["arena_bytes"] < 18 * 16 * MIB


def case_system_calls():
    """The kernel writes into and reads from arrays that are swapped out."""
    with budget():
        arrays = [np.zeros(64 * MIB // 8, dtype=np.uint64) for _ in range(3)]
        for array in arrays:
            array[:] = 7
    right = numbers(64, 5)
    with tempfile.TemporaryDirectory() as folder:
        name = f"{folder}/numbers.npy"
        np.save(name, right)
        with budget():
            loaded = np.load(name)
        push_out(loaded, *arrays)
        with open(name, "rb") as file:
            file.seek(os.path.getsize(name) - right.nbytes)
            assert file.readinto(arrays[0]) == right.nbytes
        push_out(arrays[0])
        with open(f"{folder}/out", "wb", buffering=0) as file:
            view = memoryview(arrays[0]).cast("B")
            while view:
                view = view[file.write(view) :]
        assert (np.fromfile(f"{folder}/out", dtype=np.uint64) == right).all()
    sender, receiver = socket.socketpair()
    thread = threading.Thread(target=lambda: (sender.sendall(right), sender.close()))
    thread.start()
    view = memoryview(arrays[1]).cast("B")
    while view:
        view = view[receiver.recv_into(view) :]
    thread.join()
    for array in [loaded, arrays[0], arrays[1]]:
        are_right(array, 5)
    assert (arrays[2] == 7).all()


def child_of_pool(start):
    global INHERITED
    are_right(INHERITED[start : start + MIB] - np.uint64(start), 0)
    mine = numbers(4, 8)
    are_right(mine, 8)
    return int(INHERITED[start])


def case_forks():
    """Children of a fork have the parent's arrays, and write to copies of their own."""
    global INHERITED
    with budget():
        INHERITED = numbers(96, 0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            starts = list(range(0, 12 * MIB, MIB))
            assert pool.map(child_of_pool, starts) == starts
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                INHERITED[:] = 1
                assert (INHERITED == 1).all()
                with_budget = memspill.budget("64M")
                fails("inside a budget", with_budget.__enter__)
                fails("process that forked", memspill.limit, "64M")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    are_right(INHERITED, 0)


def case_misuse():
    for size in ["", "2X", "-1G", "1..5G", None, 2.5, "0", 0, -1, True, "9999999P"]:
        fails("no size|no budget", memspill.budget, size)
    assert memspill._budget.bytes_of("1.5GiB") == 3 << 29 and memspill._budget.bytes_of("10MB") == 10**7
    fails("no budget yet", memspill.stats)
    fails("no budget yet", memspill.limit)
    os.environ["MEMSPILL"] = "/nowhere/memspill"
    fails("MEMSPILL", budget().__enter__)
    os.environ["MEMSPILL"] = "/bin/true"
    fails("same version", budget().__enter__)
    del os.environ["MEMSPILL"]
    fails("8|least", memspill.budget("1K").__enter__)
    block = budget()
    with block:
        fails("inside a budget", budget().__enter__)
        fails("in use", block.__enter__)
        array = np.ones(MIB)
        fails("no such advice", memspill.advise, array, "hot")
        fails("to_numpy", memspill.advise, [1], "cold")
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
    fails("budget already", memspill.budget, "64M", everything=True)
    # An error inside closes the block.
    try:
        with budget():
            raise KeyError
    except KeyError:
        pass
    with budget():
        pass
    try:
        np.ones(1 << 50)
    except MemoryError:
        pass
    with budget():
        try:
            np.ones(1 << 50)
        except MemoryError:
            pass
        else:
            raise AssertionError("8 PiB")


def case_limit():
    with budget():
        array = numbers(96, 1)
        assert memspill.limit() == BUDGET_MIB * MIB
        assert memspill.limit("160M") == 160 * MIB
        are_right(array, 1)
        memspill.limit("32M")
        assert in_memory_mib(array) < 32 + SLACK_MIB, in_memory_mib(array)
        are_right(array, 1)
    with budget(64):
        assert memspill.limit() == 64 * MIB
        memspill.advise(array, "cold")
        memspill.advise(array[::-3], "willneed")
        small = np.ones(4)
        fails("pin larger", memspill.advise, small, "pin")
        pinned = numbers(4, 2)
        memspill.advise(pinned[8:], "pin")
        are_right(array, 1)
        assert memspill.limit("32M") == 32 << 20
        memspill.advise(pinned, "unpin")
        are_right(pinned, 2)


def case_pandas():
    import pandas as pd

    def work():
        make = np.random.default_rng(1)
        rows = 1_500_000
        keys = make.integers(0, 1000, rows)
        left = pd.DataFrame({"k": keys, "a": make.random(rows), "b": make.random(rows)})
        right = pd.DataFrame({"k": np.arange(1000), "c": make.random(1000)})
        merged = left.merge(right, on="k").sort_values(["k", "a"])
        return merged.groupby("k").agg({"a": "sum", "b": "max", "c": "mean"}), merged["a"].head(1000)

    alone = work()
    with budget():
        inside = work()
    for one, other in zip(alone, inside):
        assert one.equals(other)
    assert memspill.stats()["memory_peak_bytes"] > 40 * MIB


def same_inside(work):
    """The results are the same with a budget as without."""
    alone = work()
    with budget():
        inside = work()
    for one, other in zip(alone, inside, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=0)
    assert memspill.stats()["swapped_bytes"] > 0


def case_scipy():
    import scipy.fft
    import scipy.ndimage
    import scipy.signal
    import scipy.sparse

    def work():
        make = np.random.default_rng(2)
        wave = make.integers(0, 256, 4 * MIB).astype("f8")
        image = wave.reshape(2048, 2048)
        back = scipy.fft.irfft(scipy.fft.rfft(wave), len(wave))
        bands = [wave[place : place + 100_000] for place in range(8)]
        matrix = scipy.sparse.diags(bands, range(8), shape=(100_000, 100_000)).tocsr()
        smooth = scipy.ndimage.gaussian_filter(image, 3)
        decayed = scipy.signal.lfilter([1], [1, -0.5], wave)
        return [back[::997], matrix @ wave[:100_000], decayed[::997], smooth[::99]]

    same_inside(work)


def case_scikit_learn():
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    def work():
        make = np.random.default_rng(3)
        points = make.random((200_000, 32))
        scaled = StandardScaler().fit_transform(points)
        fitted = Ridge().fit(scaled, points @ np.arange(32))
        groups = MiniBatchKMeans(8, random_state=1, n_init=1, max_iter=5).fit(scaled)
        return [fitted.coef_, groups.cluster_centers_]

    same_inside(work)


def case_torch():
    """A tensor of an array has the array's memory."""
    import torch

    with budget():
        arrays = [np.arange(8 * MIB, dtype="f8") * seed for seed in (1, 2)]
        one, two = (torch.from_numpy(array) for array in arrays)
        torch.add(one, two, out=two)
        assert (arrays[1] == np.arange(8 * MIB, dtype="f8") * 3).all()
        square = one[: 1024 * 1024].reshape(1024, 1024)
        assert np.allclose((square @ square).numpy(), arrays[0][: MIB].reshape(1024, 1024) @ square.numpy())
        assert float(one.sum()) == float(8 * MIB * (8 * MIB - 1) // 2)
    del arrays
    gc.collect()
    assert float(two[-1]) == 3.0 * (8 * MIB - 1)
    assert memspill.stats()["swapped_bytes"] > 0


def case_joblib():
    from joblib import Parallel, delayed

    with budget():
        array = numbers(96, 0)
        parts = Parallel(2, prefer="threads")(delayed(np.sum)(array[i::8]) for i in range(8))
        assert sum(int(part) for part in parts) == int(array.sum())
        parts = Parallel(2)(delayed(np.sum)(array[i * MIB : (i + 1) * MIB]) for i in range(4))
        assert sum(int(part) for part in parts) == int(array[: 4 * MIB].sum())


def case_everything():
    memspill.budget("160M", everything=True)
    fails("budget already", memspill.budget, "64M", everything=True)
    fails("all of this process", budget().__enter__)
    rows = [str(i) * 45 for i in range(10**6)]
    array = numbers(64, 1)
    assert sum(row.count("7") for row in rows) == 27000000
    are_right(array, 1)
    assert memspill.limit("200M") == 200 * MIB and memspill.stats()["swapped_bytes"] > 0


def case_no_child():
    """The supervisor is no child of ours, and ends with us."""
    program = (
        "import memspill, numpy, os, signal\n"
        "with memspill.budget('48M'): a = numpy.ones(1 << 23)\n"
        "try: os.wait(); print('a child')\n"
        "except ChildProcessError: pass\n"
        "print(memspill._library.library().memspill_supervisor(), flush=True)\n"
        "WAY\n"
    )
    for way, code in [("", 0), ("raise SystemExit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)]:
        said = subprocess.run([sys.executable, "-c", program.replace("WAY", way)], stdout=subprocess.PIPE)
        assert said.returncode == code, said.returncode
        supervisor = int(said.stdout)
        for _ in range(100):
            if not os.path.exists(f"/proc/{supervisor}"):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the supervisor is left")


def case_cell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "memspill")
    shell.run_cell("import numpy as np")
    cell = "%%memspill 48M\na = np.arange(12 << 20)\nint(a.sum())"
    assert shell.run_cell(cell).success and shell.user_ns["a"].nbytes == 96 * MIB
    assert memspill.stats()["arena_bytes"] >= 96 * MIB
    assert shell.user_ns["_"] == sum(range(12 << 20))
    assert not shell.run_cell("%%memspill 48M\n1 / 0").success
    assert not shell.run_cell("%%memspill\n1").success


if __name__ == "__main__":
    globals()[f"case_{sys.argv[1]}"]()
