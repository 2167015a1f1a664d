#!/usr/bin/env python3
"""docs/reference.md, written from what a built memspill says of itself: reference.py MEMSPILL [--check]

The options are those of `--help`, the statistics those of a run. --check writes nothing and fails if the
document says something else.
"""

import os
import re
import subprocess
import sys

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "reference.md")
COMMANDS = ("run", "attach", "size", "ctl", "top", "kernel install", "doctor")
HEAD = """\
# Reference

Options and statistics, written from the command's own words by `tests/reference.py target/release/memspill`.
[guide.md](guide.md) says how they are used.
"""
STATISTICS = """
## Statistics

`--stats=all` prints these in this order, `--stats-json` has them under the same names. Bytes end in `_bytes`,
ns in `_ns`, µs in `_us`; the others count pages, or how often something happened. In `--metrics` and `ctl
metrics` each name has `memspill_` before it, ns and µs are `_seconds`, and sums end in `_total`.

| name | |
|---|---|
"""
OPTION = re.compile(r"\s{2,6}((?:-\w, )?--[\w-]+(?:[ \[=]*<[^>]+>\]?)?|<\w+>(?:\.\.\.)?)(?:\s{2,}(.*))?$")
STATISTIC = re.compile(r"memspill: ([a-z0-9_]+) +\S+(?: \S+)?  (.*)$")


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True)


def cell(words):
    return " ".join(words.split()).replace("|", "\\|").replace(" (see below)", "")


def entries(lines, pattern):
    """(name, paragraphs) of each entry of a section of --help."""
    found = []
    for line in lines:
        begin = pattern.match(line)
        if begin and not line.startswith(" " * 10):
            found.append((begin.group(1), [[begin.group(2) or ""]]))
        elif found and line.strip():
            found[-1][1][-1].append(line.strip())
        elif found:
            found[-1][1].append([])
    joined = lambda paragraphs: [cell(" ".join(lines)) for lines in paragraphs if any(lines)]
    return [(name, joined(paragraphs)) for name, paragraphs in found]


def sections(text):
    parts = re.split(r"^(Arguments|Options|Commands):\n", text, flags=re.M)
    bodies = (re.split(r"^\S", body, flags=re.M)[0] for body in parts[2::2])
    return dict(zip(parts[1::2], (body.split("\n") for body in bodies)))


def options(memspill, *command):
    text = said(memspill, *command, "--help").stdout
    yield f"\n## memspill {' '.join(command)}\n\n{text.split(chr(10))[0]}.\n\n| option | |\n|---|---|\n"
    found = sections(text)
    of_run = ()
    if command[0] == "attach":
        yield "| those of `run` | |\n"
        run = sections(said(memspill, "run", "--help").stdout)
        of_run = [name for name, _ in entries(run["Options"], OPTION)]
    for name, paragraphs in entries(found.get("Options", []) + found.get("Arguments", []), OPTION):
        if "--help" not in name and name not in of_run:
            words = re.sub(r"\.?\0", ". ", "\0".join(paragraphs).replace("\0[default", " [default"))
            yield f"| `{cell(name)}` | {words} |\n"
    for name, paragraphs in entries(found.get("Commands", []), re.compile(r"  (\w+) +(.*)$")):
        usage = re.search(r"^Usage: memspill ctl (.*)$", said(memspill, "ctl", name, "--help").stdout, re.M)
        yield f"| `{cell(usage.group(1))}` | {' '.join(paragraphs)} |\n"


def statistics(memspill):
    printed = said(memspill, "run", "-m", "64M", "--stats=all", "--", "true").stderr
    for line in printed.split("\n"):
        found = STATISTIC.match(line)
        # Those are printed for what has happened.
        if found and found.group(1) not in ("stall", "lock", "group", "process"):
            yield f"| `{found.group(1)}` | {cell(found.group(2).rstrip('.'))} |\n"


def main(memspill, check=None):
    text = HEAD + "".join("".join(options(memspill, *name.split())) for name in COMMANDS)
    text += STATISTICS + "".join(statistics(memspill))
    if check is None:
        with open(DOCUMENT, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(DOCUMENT, encoding="utf-8") as file:
        kept = file.read()
    for now, then in zip(text.split("\n"), kept.split("\n")):
        if now != then:
            print(f"docs/reference.md is stale: it says\n{then}\nand memspill\n{now}")
            break
    return int(text != kept)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
