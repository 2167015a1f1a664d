#!/usr/bin/env python3
"""A notebook's kernel below memspill, driven as a notebook does it: notebook.py MEMSPILL KERNEL_JSON

KERNEL_JSON is a kernel spec whose command is `memspill`; MEMSPILL takes its place, this Python the place of
`python3`. A cell needs more than the budget; cells are interrupted, again and again; the kernel is restarted
both ways, and shut down: nothing is left of it. Needs jupyter_client and ipykernel.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

from jupyter_client import KernelManager

ROWS = "rows = [str(i) * 45 for i in range(10**6)]\nprint(sum(r.count('7') for r in rows))"
FOREVER = "import time\nwhile True: time.sleep(0.01)"
TIMEOUT_S = 120


def spec_in(directory, memspill, path):
    with open(path) as file:
        spec = json.load(file)
    places = {"memspill": memspill, "python3": sys.executable}
    spec["argv"] = [places.get(word, word) for word in spec["argv"]]
    os.makedirs(f"{directory}/kernels/spilled")
    with open(f"{directory}/kernels/spilled/kernel.json", "w") as file:
        json.dump(spec, file)
    os.environ["JUPYTER_PATH"] = directory


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
    memspill, path = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        spec_in(directory, memspill, path)
        manager = KernelManager(kernel_name="spilled")
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
