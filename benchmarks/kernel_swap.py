"""The kernel's form of memspill's default swap: zswap in front of a swap file, and a memory cgroup with a
hard limit for each run (v1 or v2; root). Everything that was switched on is switched off again at the end,
however that comes; kill -9 leaves swap and cgroup behind.

zswap compresses with lz4, as memspill does, or where the kernel has not that (CONFIG_CRYPTO_LZ4) with what it
had.

It does not make comparisons with zram: `memspill-lab bench compare` does.
"""
import contextlib
import os
import pathlib
import subprocess
import time

ZSWAP = pathlib.Path("/sys/module/zswap/parameters")
V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")
PRIORITY = 32_000


class Refused(Exception):
    """With what is missing, in a line."""


def write(file, text):
    try:
        file.write_text(text)
    except OSError as error:
        raise Refused(f"{file}: {error.strerror} (the kernel's side takes root, outside of a container)")


def tool(*words):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, start_new_session=True)
    if done.returncode != 0:
        raise Refused(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class KernelSwap:
    """Swap that is on from `with` to its end."""

    def __init__(self, folder, size_mib):
        self.file = pathlib.Path(folder) / f"memspill-benchmark-swap-{os.getpid()}"
        self.size_mib = size_mib
        self.group = None
        self.zswap = {}
        self.is_on = False

    def __enter__(self):
        if not ZSWAP.is_dir():
            raise Refused("this kernel has no zswap (CONFIG_ZSWAP)")
        v1 = (V1 / "memory.limit_in_bytes").exists()
        root = V1 if v1 else V2
        self.limit_file = "memory.limit_in_bytes" if v1 else "memory.max"
        self.peak_file = "memory.max_usage_in_bytes" if v1 else "memory.peak"
        try:
            self.group = root / self.file.name
            self.group.mkdir()
            if not (self.group / self.limit_file).exists():
                raise Refused(f"no memory controller at {root}: echo +memory > {root}/cgroup.subtree_control")
            # Blocks that are there, not a hole: swapon wants them.
            self.file.touch(0o600)
            with open(self.file, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, self.size_mib << 20)
            tool("mkswap", self.file)
            # In this order: one that has never been switched on takes any name, and then another compressor.
            self._set_zswap("enabled", "Y")
            with contextlib.suppress(Refused):
                self._set_zswap("compressor", "lz4")
            self.compressor = (ZSWAP / "compressor").read_text().strip()
            tool("swapon", "-p", str(PRIORITY), self.file)
            self.is_on = True
        except OSError as error:
            self.__exit__()
            raise Refused(f"{error.filename or self.file}: {error.strerror} (the kernel's side takes root)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_zswap(self, name, value):
        before = (ZSWAP / name).read_text().strip()
        write(ZSWAP / name, value)
        self.zswap[name] = before

    def __exit__(self, *_):
        if self.is_on:
            tool("swapoff", self.file)
            self.is_on = False
        for name, value in reversed(list(self.zswap.items())):
            write(ZSWAP / name, value)
        self.file.unlink(missing_ok=True)
        if self.group and self.group.is_dir():
            self._empty_group()
            self.group.rmdir()

    def _empty_group(self):
        """The killed processes are on their way out."""
        for _ in range(100):
            if not (self.group / "cgroup.procs").read_text().strip():
                return
            time.sleep(0.05)

    def command(self, limit_mib, command):
        """The command in the group, with this limit."""
        self._empty_group()
        write(self.group / self.limit_file, str(limit_mib << 20))
        if (peak := self.group / self.peak_file).exists():
            peak.write_text("0")
        self.zswap_peak_bytes = 0
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', self.group / "cgroup.procs", *command]

    def look(self):
        """To be called now and then while the command runs."""
        for line in open("/proc/meminfo"):
            if line.startswith("Zswap:"):
                self.zswap_peak_bytes = max(self.zswap_peak_bytes, int(line.split()[1]) << 10)

    def figures(self):
        """Which memory the last command had: what the limit is for, and zswap's pool of the machine."""
        peak = self.group / self.peak_file
        counted = {"cgroup_peak_bytes": int(peak.read_text())} if peak.exists() else {}
        return {**counted, "zswap_peak_bytes": self.zswap_peak_bytes}
