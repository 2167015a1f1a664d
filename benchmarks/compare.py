#!/usr/bin/env python3
"""memspill against the kernel's own swap, and against the plain program: the same command, in turns.

    sudo benchmarks/compare.py [options] [SCENARIO ...]

The kernel's side runs in a memory cgroup with a hard limit and swaps to a fresh zram device (lz4), or to a swap file on
disk. memspill's side runs in a cgroup without a limit, which only records the peak. Each pair runs both, the order
alternates, and the ratio is taken pair by pair; above 1 memspill is faster. A run that failed (killed for memory, a bad
page, a timeout) is counted and shown, never dropped in silence.

Modes, for the scenarios with swap in RAM:
  resident    both keep the same amount of uncompressed memory: limit L for the kernel, whose zram pool is not counted;
              --memory-max L + extra for memspill, which does count its pool (--extra; default: what is expected)
  everything  both keep within L in all, pool included: the kernel's limit is lowered by the pool that is expected

Swap devices, cgroups and files are removed again whatever happens. Needs root; the *-native scenarios do not.
"""
import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
MIB = 1 << 20


class Scenario:
    def __init__(self, name, swap, metric, about, workload=None, times=2.0, limit=None, extra_args=()):
        self.name, self.swap, self.metric, self.about = name, swap, metric, about
        self.workload, self.times, self.limit, self.extra_args = workload, times, limit, list(extra_args)


RANDOM = ["--read-percent", "80", "--check", "sparse"]
SCENARIOS = [
    Scenario("fresh-native", None, "pages_per_s", "map, touch, unmap; budget never reached", "fresh",
             extra_args=["--size", "512M", "--loops", "6", "--thp"]),
    Scenario("cpu-native", None, "ops_per_s", "computation on 4 MiB", "cpu", extra_args=["--seconds-worth", "3"]),
    Scenario("populate-2x", "zram", "pages_per_s", "first write of twice the limit", "populate",
             extra_args=["--no-verify"]),
    Scenario("random-1p", "zram", "ops_per_s", "random 80/20 over twice the limit", "pmbench", extra_args=RANDOM),
    Scenario("random-16p", "zram", "ops_per_s", "the same, 16 processes", "pmbench",
             extra_args=RANDOM + ["--processes", "16"]),
    Scenario("sequential", "zram", "pages_per_s", "two passes over twice the limit", "sequential",
             extra_args=["--passes", "2", "--check", "sparse"]),
    Scenario("disk-random-1p", "disk", "ops_per_s", "random 80/20 over twice the limit", "pmbench", limit=128,
             extra_args=RANDOM),
    Scenario("disk-random-16p", "disk", "ops_per_s", "the same, 16 processes", "pmbench", limit=128,
             extra_args=RANDOM + ["--processes", "16"]),
    Scenario("sort-100M", "zram", "seconds", "GNU sort of 100 MB in half of what it takes", limit=100),
]


class Refused(Exception):
    pass


def megabytes(text):
    factor = {"K": 1 / 1024, "M": 1, "G": 1024}.get(text[-1:].upper())
    return float(text[:-1]) * factor if factor else float(text) / MIB


def sh(*command):
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextlib.contextmanager
def undisturbed():
    """Signals wait: what is being set up or removed is not left half done."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


class Cgroup:
    """A memory cgroup, v1 or v2, for one run."""

    V1 = Path("/sys/fs/cgroup/memory")
    V2 = Path("/sys/fs/cgroup")

    def __init__(self, limit_mib):
        name = f"memspill-compare-{os.getpid()}"
        if (self.V1 / "memory.limit_in_bytes").exists():
            self.path, limit, self.peak_file = self.V1 / name, "memory.limit_in_bytes", "memory.max_usage_in_bytes"
            self.events = "memory.oom_control"
        elif (self.V2 / "cgroup.controllers").exists():
            with contextlib.suppress(OSError):
                (self.V2 / "cgroup.subtree_control").write_text("+memory")
            self.path, limit, self.peak_file = self.V2 / name, "memory.max", "memory.peak"
            self.events = "memory.events"
        else:
            raise Refused("no memory cgroup is mounted")
        self.path.mkdir()
        try:
            if limit_mib is not None:
                (self.path / limit).write_text(str(int(limit_mib * MIB)))
        except OSError as error:
            self.remove()
            raise Refused(f"{self.path / limit}: {error}") from error

    def join(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak_mib(self):
        with contextlib.suppress(OSError, ValueError):
            return round(int((self.path / self.peak_file).read_text()) / MIB, 1)
        return None

    def oom_kills(self):
        with contextlib.suppress(OSError):
            for line in (self.path / self.events).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def remove(self):
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
            if not self.path.exists():
                return
            time.sleep(0.1)
        print(f"could not remove {self.path}", file=sys.stderr)


class Device:
    """A swap device of the kernel: made with everything that belongs to it, or not at all."""

    def __enter__(self):
        with undisturbed():
            try:
                self.make()
                sh("mkswap", self.path)
                sh("swapon", "-p", "32000", self.path)
            except BaseException:
                self.remove()
                raise
        return self

    def __exit__(self, *_):
        with undisturbed():
            try:
                sh("swapoff", self.path)
            finally:
                self.remove()

    def stats(self):
        return {}


class Zram(Device):
    def __init__(self, size):
        self.size = size

    def make(self):
        self.number = Path("/sys/class/zram-control/hot_add").read_text().strip()
        self.control, self.path = Path(f"/sys/block/zram{self.number}"), f"/dev/zram{self.number}"
        (self.control / "comp_algorithm").write_text("lz4")
        (self.control / "disksize").write_text(self.size)

    def stats(self):
        return dict(zip(("stored", "compressed", "used"), map(int, (self.control / "mm_stat").read_text().split())))

    def remove(self):
        (self.control / "reset").write_text("1")
        Path("/sys/class/zram-control/hot_remove").write_text(self.number)


class SwapFile(Device):
    def __init__(self, folder, size_mib):
        self.path, self.size_mib = f"{folder}/kernel-swap", size_mib

    def make(self):
        sh("dd", "if=/dev/zero", f"of={self.path}", "bs=1M", f"count={int(self.size_mib)}", "status=none")
        os.chmod(self.path, 0o600)

    def remove(self):
        Path(self.path).unlink(missing_ok=True)


def execute(command, group, timeout, env):
    """Runs to the end; returns what is known of the run."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                               start_new_session=True, preexec_fn=group.join if group else None)
    result = {"command": command, "load": os.getloadavg()[0]}
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        result["failed"] = f"timeout after {timeout} s"
        out, err = "", ""
    finally:
        # Only ever the group that was started here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result["seconds"] = time.monotonic() - start
    if group:
        result["peak_mib"] = group.peak_mib()
        if group.oom_kills():
            result["failed"] = "OOM kill"
    if process.returncode and "failed" not in result:
        result["failed"] = f"exit code {process.returncode}: {(err.strip().splitlines() or [''])[-1][:200]}"
    if out.startswith("{"):
        workload = json.loads(out.splitlines()[0])
        result["workload"] = workload
        if "failed" not in result:
            result.update({key: workload[key] for key in ("pages_per_s", "ops_per_s") if key in workload})
    return result


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.root = os.geteuid() == 0

    def lines(self):
        path = Path(self.folder) / "lines"
        if not path.exists():
            with path.open("wb") as out:
                subprocess.run([sys.executable, REPO / "tests/programs/lines.py", "100"], stdout=out, check=True)
        return path

    def plan(self, scenario):
        """Sizes in MiB: the kernel's limit, memspill's budget, the command."""
        o = self.options
        limit = scenario.limit or megabytes(o.limit)
        env = dict(os.environ, LC_ALL="C")
        if scenario.name.startswith("sort"):
            size, ratio = 2.1 * limit, 1.0  # this text does not compress with lz4
            command = ["sort", "-S", "400M", "--parallel=2", "-T", self.folder, "-o",
                       f"{self.folder}/sorted", str(self.lines())]
        else:
            times = scenario.times if o.mode == "resident" or scenario.swap != "zram" else 1.5
            size, ratio = times * limit, o.ratio
            command = [o.workload, scenario.workload, *scenario.extra_args]
            if scenario.swap:
                command += ["--size", f"{int(size)}M", "--contents", o.contents]
            if scenario.workload == "pmbench":
                command += ["--seconds", str(o.seconds)]
        kernel, budget = limit, limit
        if scenario.swap == "zram" and o.mode == "resident":
            budget = limit + (megabytes(o.extra) if o.extra else (size - limit) * ratio + 16)
        elif scenario.swap == "zram":
            # resident + ratio * (size - resident) = limit
            kernel = (limit - ratio * size) / (1 - ratio) if ratio < 1 else -1
            if kernel < 16:
                raise Refused(f"{int(size)} MiB at {ratio} do not fit in {int(limit)} MiB, pool included")
        elif scenario.swap is None:
            budget = 2048
        return command, env, kernel, budget, size

    def memspill(self, scenario, command, budget, size):
        swap = {"zram": ["--swap", "ram:"], "disk": ["--swap", f"file:{self.folder}/memspill-swap,size={int(2 * size)}M"]}
        return [self.options.memspill, "run", "--memory-max", f"{int(budget)}M", *swap.get(scenario.swap, []),
                *self.options.arguments.split(), "--", *command]

    def once(self, scenario, variant):
        command, env, kernel, budget, size = self.plan(scenario)
        limit = kernel if variant == "kernel" else None
        device = None
        with contextlib.ExitStack() as stack:
            if variant == "memspill":
                command = self.memspill(scenario, command, budget, size)
            elif variant == "kernel" and scenario.swap == "zram":
                device = stack.enter_context(Zram(self.options.zram_size))
            elif variant == "kernel":
                device = stack.enter_context(SwapFile(self.folder, 2 * size))
            group = None
            if self.root:
                with undisturbed():
                    group = Cgroup(limit)
                    stack.callback(group.remove)
            result = execute(command, group, self.options.timeout, env)
            result["device"] = device.stats() if device else {}
            result["limit_mib"] = {"memspill": budget, "kernel": kernel}.get(variant)
        return result

    def run(self, scenario, runs):
        """Fills `runs`, so that what is done stays when the rest is interrupted."""
        variants = ["kernel" if scenario.swap else "plain", "memspill"]
        if self.options.native and scenario.swap:
            variants.append("plain")
        runs.update({variant: [] for variant in variants})
        for pair in range(self.options.pairs):
            for variant in variants if pair % 2 == 0 else reversed(variants):
                result = self.once(scenario, variant)
                runs[variant].append(result)
                value = result.get("failed") or show(scenario.metric, result[scenario.metric])
                print(f"  {scenario.name} {pair + 1}/{self.options.pairs} {variant}: {value}", file=sys.stderr)


def show(metric, value):
    return f"{value:.2f} s" if metric == "seconds" else f"{value / 1000:.1f} k/s"


def spread(metric, values):
    if not values:
        return "-"
    return f"{show(metric, statistics.median(values))} ({show(metric, min(values))}..{show(metric, max(values))})"


def values_of(metric, runs):
    return [run[metric] for run in runs if "failed" not in run]


def ratios(metric, theirs, ours):
    """Pair by pair, above 1 where memspill is faster; only pairs in which both succeeded."""
    pairs = [(a[metric], b[metric]) for a, b in zip(theirs, ours) if "failed" not in a and "failed" not in b]
    return [a / b if metric == "seconds" else b / a for a, b in pairs]


def table(results):
    lines = ["| scenario | metric | against | its median (min..max) | memspill median (min..max) | "
             "ratio, median (min..max) | pairs | failed |", "|---|---|---|---|---|---|---|---|"]
    for scenario, runs in results:
        ours = runs["memspill"]
        for other in [variant for variant in runs if variant != "memspill"]:
            found = ratios(scenario.metric, runs[other], ours)
            ratio = f"**{statistics.median(found):.2f}** ({min(found):.2f}..{max(found):.2f})" if found else "-"
            failures = [f"{name}: {run['failed']}" for name in (other, "memspill") for run in runs[name] if "failed" in run]
            told = "; ".join(f"{failures.count(text)} x {text}" for text in dict.fromkeys(failures)) or "none"
            lines.append(f"| {scenario.name} | {scenario.metric} | {other} | "
                         f"{spread(scenario.metric, values_of(scenario.metric, runs[other]))} | "
                         f"{spread(scenario.metric, values_of(scenario.metric, ours))} | {ratio} | {len(found)} | {told} |")
    lines += ["", "Latency of a touch (medians, us), system seconds, peak of the cgroup:", "",
              "| scenario | variant | p50 | p90 | p99 | p99.9 | user s | system s | peak MiB | limit or budget MiB |",
              "|---|---|---|---|---|---|---|---|---|---|"]
    for scenario, runs in results:
        for variant, done in runs.items():
            good = [run for run in done if "failed" not in run]
            inner = [run["workload"] for run in good if "workload" in run]

            def middle(key, scale=1.0):
                known = [w[key] / scale for w in inner if key in w]
                return f"{statistics.median(known):.2f}" if known else "-"

            peaks = [run["peak_mib"] for run in good if run.get("peak_mib")]
            limit = done[0]["limit_mib"] if done else None
            cells = [middle(f"{p}_ns", 1000) for p in ("p50", "p90", "p99", "p99_9")]
            cells += [middle("user_s"), middle("system_s"), f"{max(peaks):.0f}" if peaks else "-",
                      f"{limit:.0f}" if limit else "-"]
            lines.append(f"| {scenario.name} | {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="scenarios:\n" + "\n".join(f"  {s.name:16} {s.about}" for s in SCENARIOS))
    parser.add_argument("scenario", nargs="*", help="default: all")
    parser.add_argument("--memspill", default=str(REPO / "target/release/memspill"))
    parser.add_argument("--workload", default=str(REPO / "target/release/memspill-workload"))
    parser.add_argument("--with", dest="arguments", default="", help="further arguments for memspill run")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--limit", default="256M", help="L (default 256M; the disk and sort scenarios have their own)")
    parser.add_argument("--extra", help="what memspill gets above L in mode resident, such as 300M")
    parser.add_argument("--mode", choices=["resident", "everything"], default="resident")
    parser.add_argument("--ratio", type=float, default=0.53, help="compressed size expected, of 1 (default 0.53)")
    parser.add_argument("--contents", default="half", choices=["zero", "half", "random"])
    parser.add_argument("--seconds", type=float, default=5, help="length of a random run")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--zram-size", default="4G")
    parser.add_argument("--dir", default="/var/tmp", help="where swap files are made (a disk)")
    parser.add_argument("--native", action="store_true", help="also run the plain program without any limit")
    parser.add_argument("--json", help="file for the raw results (default: next to this script, runs/)")
    options = parser.parse_args()
    unknown = [name for name in options.scenario if name not in names]
    if unknown:
        parser.error(f"no scenario {unknown[0]}; there are {' '.join(names)}")
    chosen = [s for s in SCENARIOS if not options.scenario or s.name in options.scenario]

    for path in (options.memspill, options.workload):
        if not shutil.which(path):
            sys.exit(f"compare: {path} is not there; build it (cargo build --release)")
    if any(s.swap for s in chosen) and os.geteuid() != 0:
        sys.exit("compare: swap devices and cgroups need root; without it only the *-native scenarios run")
    if any(s.swap == "zram" for s in chosen) and not Path("/sys/class/zram-control/hot_add").exists():
        sys.exit("compare: no zram here (modprobe zram)")

    # Ctrl-C and SIGTERM unwind, so that every device and group is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    results, code = [], 0
    with tempfile.TemporaryDirectory(prefix="memspill-compare-", dir=options.dir) as folder:
        bench = Bench(options, folder)
        for scenario in chosen:
            runs = {}
            try:
                bench.run(scenario, runs)
            except Refused as reason:
                print(f"{scenario.name}: not run: {reason}", file=sys.stderr)
                code = 1
            except KeyboardInterrupt:
                print("interrupted; what is complete follows", file=sys.stderr)
                code = 130
            if any(runs.values()):
                results.append((scenario, runs))
            if code == 130:
                break
    if results:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = Path(options.json) if options.json else Path(__file__).resolve().parent / "runs" / f"compare-{stamp}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({
            "when": stamp, "kernel": platform.release(), "cpus": os.cpu_count(),
            "options": vars(options), "scenarios": {s.name: runs for s, runs in results}}, indent=1)
        # Where the repository lies is nobody's business.
        path.write_text(text.replace(f"{REPO}/", ""))
        print(f"Linux {platform.release()}, {os.cpu_count()} CPUs, mode {options.mode}, contents {options.contents}. "
              "Ratios above 1: memspill is faster.\n")
        print(table(results))
        print(f"\nraw results: {path}")
    sys.exit(code)


if __name__ == "__main__":
    main()
