"""Nobody asks of which kind a process's pager is, but the one seam of each side: port.py FOLDER

The supervisor asks a process's port what it does. The compiler keeps the kinds private to
crates/pager/src/process/port. This finds the questions by which they would get out again: a method or a
variable that is named for a kind, a match on what the run's processes get. The door makes the ports, so it
knows what it makes.

In the agent pages/mod.rs knows whether the process pages itself, and pages/holes/ what its holes are. Others
call them, and nothing happens where there is nothing to do.
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
AGENT = "crates/agent/src/agent/"
KNOW_PAGES = tuple(AGENT + "pages/" + name for name in ("mod.rs", "rules.rs", "holes/"))
QUESTION_OF_PAGES = re.compile(r"\b(?:pages|rules|holes)::(?:is_on\b|are_\w+)")


def check(root):
    for path in tree.files(root, ".rs"):
        if path.startswith(SUPERVISOR) and not path.startswith(KNOW_KINDS):
            question, instead = QUESTION, "asks of which kind a port is; ask what it does"
        elif path.startswith(AGENT) and not path.startswith(KNOW_PAGES):
            question, instead = QUESTION_OF_PAGES, "asks how the process is paged; let pages/ do it"
        else:
            continue
        for number, line in enumerate(tree.read(root, path).split("\n"), 1):
            found = question.search(line.split("//")[0])
            if found:
                yield f"{path}:{number}: {found.group()}: {instead}"


if __name__ == "__main__":
    tree.end(check)
