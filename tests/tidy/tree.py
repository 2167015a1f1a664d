"""The files that tests/tidy.sh looks at, and how a check ends."""

import os
import sys

# Built, drawn by the fuzzer, or left by a tool: nobody wrote what is in there.
SKIPPED_FOLDERS = {"target", "corpus", "artifacts", "coverage", "__pycache__", "node_modules"}


def files(root, *endings):
    """Paths below `root`, as seen from there, that end in one of `endings` (with their dots)."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in found if path.endswith(endings))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def end(check):
    """Run `check`, which yields what is wrong below a folder, on the folder that is the only argument."""
    not_yet = tuple(os.environ.get("NOT_YET", "").split())
    wrong = [line for line in check(sys.argv[1]) if not line.startswith(not_yet)]
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)
