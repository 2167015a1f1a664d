#!/usr/bin/env python3
"""A notebook's kernel within a budget, driven as a notebook does it: notebook.py MEMSPILL

`MEMSPILL kernel install` makes the kernel. A cell needs more than the budget; cells are interrupted, again
and again; the kernel is restarted both ways, and shut down: nothing is left of it. Needs jupyter_client and
ipykernel.
"""
import os
import subprocess
import sys
import tempfile
import time

from jupyter_client import KernelManager

ROWS = "rows = [str(i) * 45 for i in range(10**6)]\nprint(sum(r.count('7') for r in rows))"
FOREVER = "import time\nwhile True: time.sleep(0.01)"
TIMEOUT_S = 120


def install(directory, memspill):
    os.environ["JUPYTER_DATA_DIR"] = directory
    command = [memspill, "kernel", "install", "-m", "100M", "--python", sys.executable]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cell(client, code, interrupt=None):
    """The output of a cell, or the name of the exception that ends it."""
    sent, printed = client.execute(code), []
    if interrupt:
        time.sleep(1)
        interrupt()
    while True:
        message = client.get_iopub_msg(timeout=TIMEOUT_S)
        if message["parent_header"].get("msg_id") != sent:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            printed.append(content["text"].strip())
        elif message["msg_type"] == "error":
            printed.append(content["ename"])
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return " ".join(printed).strip()


def expect(what, found, right):
    if found != right:
        sys.exit(f"{what}: {found!r} instead of {right!r}")


def left(connection_file):
    """Processes of this kernel."""
    found = subprocess.run(["pgrep", "-f", connection_file], capture_output=True, text=True)
    return [pid for pid in found.stdout.split() if pid != str(os.getpid())]


def main():
    memspill = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory:
        install(directory, memspill)
        manager = KernelManager(kernel_name="memspill-100m")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=TIMEOUT_S)
            expect("a cell", cell(client, ROWS), "27000000")
            for _ in range(3):
                expect("interrupted", cell(client, FOREVER, manager.interrupt_kernel), "KeyboardInterrupt")
                expect("after it", cell(client, "print(len(rows))"), "1000000")
            for now in [False, True]:
                manager.restart_kernel(now=now)
                client.wait_for_ready(timeout=TIMEOUT_S)
                expect("restarted", cell(client, "print('rows' in globals())"), "False")
                expect("interrupted", cell(client, FOREVER, manager.interrupt_kernel), "KeyboardInterrupt")
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
        time.sleep(1)
        expect("left behind", left(manager.connection_file), [])


main()
