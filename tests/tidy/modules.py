"""No two modules of a crate use each other, be it by way of others: modules.py FOLDER

For each root in FOLDER/crates (a lib.rs or a main.rs, wherever it is below `src`) it finds the modules that
are declared from there, draws an arrow from a module to each module that its paths lead to (`crate::`,
`super::`, `self::`, a child by its name, in `use` and elsewhere), and prints the circles among them:

    crates/pager/src/lib.rs: a circle of 2 modules
        home -> fault
        fault -> home

What only tests use draws no arrow. Nor does what leads to the crate's root, which declares the modules; a
method that one module calls and another one implements cannot be seen.
"""

import os
import re

import tree

# A raw string, a string, a character that could be taken for the beginning of a string, comments.
NOT_CODE = re.compile(
    r'b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'|//[^\n]*|/\*.*?\*/', re.S
)
ATTRIBUTE_OF_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")
VISIBILITY = re.compile(r"\bpub\s*\(\s*in\s[^)]*\)")
WORD = r"[A-Za-z_][A-Za-z0-9_]*"
DECLARED = re.compile(rf"\bmod\s+({WORD})\s*;")
GIVEN_PATH = re.compile(rf'#\[path = "([^"]+)"\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+({WORD})\s*;')
PATH = re.compile(rf"(?<![\w:$])\$?({WORD})\s*::\s*(?=[\w{{*])")


def without_comments(text):
    return NOT_CODE.sub(" ", text)


def without_tests(text):
    """Drop each item under `#[cfg(test)]`: up to its `;`, or to the bracket that closes its body."""
    kept, at = [], 0
    for attribute in ATTRIBUTE_OF_TESTS.finditer(text):
        if attribute.start() < at:
            continue
        kept.append(text[at : attribute.start()])
        depth, at = 0, attribute.end()
        while at < len(text):
            depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(text[at], 0)
            at += 1
            if depth == 0 and (text[at - 1] == ";" or text[at - 1] == "}"):
                break
    return "".join(kept) + text[at:]


def paths(text):
    """Every path of the text as a list of words; a group after `::` gives a path for each of its members."""
    for start in PATH.finditer(text):
        yield from members(text, start.end(), [start.group(1)])[0]


def members(text, at, before):
    """The paths that go on at `at` behind the words `before`, and where they end."""
    word = re.compile(rf"\s*({WORD}|\*)").match(text, at)
    if word:
        following = re.compile(r"\s*::\s*").match(text, word.end())
        longer = before + [word.group(1)]
        if following and text[following.end() : following.end() + 1] not in ("<", ""):
            return members(text, following.end(), longer)
        return [longer], word.end()
    group = re.compile(r"\s*\{").match(text, at)
    if not group:
        return [before], at
    found, at = [], group.end()
    while at < len(text) and not re.compile(r"\s*\}").match(text, at):
        inner, end = members(text, at, before)
        found += inner
        at = re.compile(rf"(?:\s*as\s+{WORD})?\s*,?").match(text, end).end()
        if end == at and not inner[0][len(before) :]:
            break
    return found, re.compile(r"\s*\}?").match(text, at).end()


def modules_of(root, file):
    """The modules of the crate whose root is `file`: tuple of names -> code that is no test."""
    found, todo = {}, [((), file, os.path.dirname(file))]
    while todo:
        name, file, children = todo.pop()
        text = tree.read(root, file)
        found[name] = without_tests(without_comments(text))
        paths_given = dict((child, path) for path, child in GIVEN_PATH.findall(text))
        for child in DECLARED.findall(found[name]):
            flat = os.path.join(children, child + ".rs")
            if child in paths_given:
                file_of_child = os.path.normpath(os.path.join(os.path.dirname(file), paths_given[child]))
            else:
                file_of_child = flat if is_file(root, flat) else os.path.join(children, child, "mod.rs")
            if is_file(root, file_of_child):
                below = file_of_child.removesuffix("mod.rs").removesuffix(".rs")
                todo.append((name + (child,), file_of_child, below))
    return found


def is_file(root, path):
    return os.path.isfile(os.path.join(root, path))


def roots_of(root, crate):
    """The files from which modules of a crate are declared: its library, its program, a program inside."""
    source = os.path.join("crates", crate, "src")
    for path in tree.files(os.path.join(root, source), ".rs"):
        if os.path.basename(path) in ("lib.rs", "main.rs"):
            yield os.path.join(source, path)


def arrows(modules):
    """module -> the modules that its paths lead to."""
    drawn = {name: set() for name in modules}
    for name, code in modules.items():
        for words in paths(VISIBILITY.sub(" ", code)):
            target = resolve(modules, name, words)
            if target and target != name:
                drawn[name].add(target)
    return drawn


def resolve(modules, name, words):
    """The deepest module that a path in module `name` goes through; nothing where it leaves the crate."""
    here = list(name)
    if words[0] == "crate":
        here, words = [], words[1:]
    elif words[0] == "self":
        words = words[1:]
    elif words[0] != "super" and name + (words[0],) not in modules:
        return None
    while words and words[0] == "super":
        here, words = here[:-1], words[1:]
    for word in words:
        if tuple(here + [word]) not in modules:
            break
        here.append(word)
    return tuple(here)


def circles(drawn):
    """Sets of modules each of which can be reached from each other one of its set."""
    reached = {}
    for name in drawn:
        seen, todo = set(), [name]
        while todo:
            new = drawn[todo.pop()] - seen
            seen |= new
            todo += new
        reached[name] = seen
    found = []
    for name in sorted(drawn):
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def check(root):
    for crate in sorted(os.listdir(os.path.join(root, "crates"))):
        for source in roots_of(root, crate):
            drawn = arrows(modules_of(root, source))
            for circle in circles(drawn):
                lines = []
                for name in sorted(circle):
                    to = ", ".join(sorted("::".join(other) for other in drawn[name] & circle))
                    lines.append(f"    {'::'.join(name)} -> {to}")
                yield "\n".join([f"{source}: a circle of {len(circle)} modules", *lines])


if __name__ == "__main__":
    tree.end(check)
