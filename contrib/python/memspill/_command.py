"""Finds the memspill command that was installed with this package."""

import os
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def find_memspill() -> str:
    """The path of the command that was installed with this package, wherever pip has put it."""
    try:
        installed = files("memspill") or []
    except PackageNotFoundError:
        installed = []
    named = [Path(file.locate()) for file in installed if file.parts[-2:] == ("bin", "memspill")]
    # `pip install --target DIR` puts the command into DIR/bin, which its list of files does not say.
    beside = Path(__file__).resolve().parent.parent / "bin" / "memspill"
    for command in [*named, beside]:
        if os.access(command, os.X_OK):
            return str(command.resolve())
    raise FileNotFoundError("the memspill command is not where pip put it: reinstall the package")
