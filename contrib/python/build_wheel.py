"""What pip calls to build the package: cargo makes the library, then maturin makes the command and the wheel.

The library goes into the package's folder, from where maturin takes it.
"""

import json
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403  the hooks that build nothing

PACKAGE = Path(__file__).with_name("memspill")


def make_library():
    # Both: the library alone would have all that they share compiled a second time, with other features.
    command = ["cargo", "build", "--release", "--locked", "-p", "memspill-arena", "-p", "memspill-cli"]
    command.append("--message-format=json-render-diagnostics")
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in said.stdout.splitlines()]
    files = [file for message in messages for file in message.get("filenames", [])]
    library = next(file for file in files if file.endswith("libmemspill.so"))
    # Not by a hard link or in place: a program may have it loaded.
    (PACKAGE / "libmemspill.so").unlink(missing_ok=True)
    shutil.copy(library, PACKAGE)


def build_wheel(*arguments, **named):
    make_library()
    return maturin.build_wheel(*arguments, **named)


def build_editable(*arguments, **named):
    make_library()
    return maturin.build_editable(*arguments, **named)
