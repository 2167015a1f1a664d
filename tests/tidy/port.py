"""The supervisor asks a process's port what it does, never of which kind it is: port.py FOLDER

The compiler keeps the kinds private to crates/pager/src/process/port. This finds the questions by which they
would get out again: a method or a variable that is named for a kind, a match on what the run's processes get.
The door makes the ports, so it knows what it makes.
"""

import re

import tree

SUPERVISOR = "crates/pager/src/"
KNOW_KINDS = (SUPERVISOR + "process/port/", SUPERVISOR + "door/")
KIND = "(?:agent|kernel|link|uffd|userfaultfd)"
QUESTION = re.compile(
    rf"\bport\.(?:is_|as_)?(?:{KIND}|kind)\(|\b(?:is|by)_(?:agent_port|kernel|link|uffd|userfaultfd)\b"
    r"|\bby_agent\b|\bUffdSource\b|\b(?:Mode|Pager)::[A-Z]\w*"
)


def check(root):
    for path in tree.files(root, ".rs"):
        if not path.startswith(SUPERVISOR) or path.startswith(KNOW_KINDS):
            continue
        for number, line in enumerate(tree.read(root, path).split("\n"), 1):
            found = QUESTION.search(line.split("//")[0])
            if found:
                yield f"{path}:{number}: {found.group()}: asks of which kind a port is; ask what it does"


if __name__ == "__main__":
    tree.end(check)
