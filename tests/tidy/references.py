"""No reference to a file or a function that is not there: references.py FOLDER

It reads the documents (README.md, ARCHITECTURE.md, CONTRIBUTING.md, docs/) and the headers of the sources
(`//!`), and looks for

    engine/src/word.rs    a file of the project, by its name or by the end of its path
    fault.rs, loom_*.rs   the same; the file must be in a crate that the paragraph (or the row of the table)
                          names, or in the crate whose header it is, where there is one
    crates/fuzz           a folder, where the first word is one of the project's
    `find` in `proc.rs`   also what is defined there: a function, a type, a constant, a module
    [text](docs/x.md#y)   a file, from the document's folder, and a heading in it

A name that begins with `/` or `~`, or is part of a URL, is not the project's; nor is a bare name in an
indented block, which is a command.
"""

import fnmatch
import os
import re

import tree

ENDINGS = ("rs", "sh", "py", "c", "h", "cpp", "js", "java", "sql", "css", "md", "toml", "html")
# Made by a build or by a user, or not ours.
NOT_OURS = re.compile(r"^(target|fuzz/corpus|mm|fs|kernel|include|Documentation)/")
URL = re.compile(r"https?://\S+")
FILE = re.compile(rf"(?<![\w/~.$*<-])[\w*][\w*./-]*\.(?:{'|'.join(ENDINGS)})(?![\w/]|\.\w)")
FOLDER = re.compile(r"(?<![\w/~.$*<-])(?:crates|docs|fuzz|scripts|tests|benchmarks)/[\w*./-]*\w")
DEFINED = re.compile(r"`(?:mod |fn |struct )?([\w:]+)`\s+in\s+`([\w./-]+\.rs)`")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
ITEM = r"\b(?:fn|struct|enum|trait|type|const|static|mod|union|macro_rules!)\s+{}\b"


class Project:
    def __init__(self, root):
        self.root = root
        self.files = tree.files(root, *("." + ending for ending in ENDINGS))
        self.folders = {os.path.dirname(path) for path in tree.files(root, "")}
        for folder in list(self.folders):
            while folder := os.path.dirname(folder):
                self.folders.add(folder)
        self.crates = os.listdir(os.path.join(root, "crates"))

    def with_end(self, name):
        """The files whose path ends in `name`, which may have stars."""
        return [path for path in self.files if fnmatch.fnmatchcase("/" + path, "*/" + name)]

    def has_folder(self, name):
        return any(fnmatch.fnmatchcase(folder, name) for folder in self.folders)


def named_crates(project, text):
    """The crates that a paragraph speaks of."""
    return {name for name in project.crates if re.search(rf"(?<![\w-]){name}(?![\w-])", text)}


def wrong_in(project, text, crates):
    """Yields false references of the paragraph `text`; a bare name is in one of `crates`, if any."""
    text = LINK.sub("", URL.sub("", text))
    for match in FILE.finditer(text):
        name = match.group(0)
        found, where = project.with_end(name), ""
        if "/" not in name:
            if text.startswith("    "):
                continue
            if crates and not name.endswith(".md"):
                found = [path for path in found if crate_of(path) & crates]
                where = f" in {', '.join(sorted(crates))}"
        if not found and not NOT_OURS.match(name):
            yield f"{name}: there is no such file{where}"
    for match in FOLDER.finditer(text):
        name = match.group(0)
        if name.endswith(tuple("." + ending for ending in ENDINGS)) or NOT_OURS.match(name):
            continue
        # TARGET, DATE: a word of capitals stands for any name.
        if not project.has_folder(re.sub(r"[A-Z]{2,}", "*", name)) and not project.with_end(name):
            yield f"{name}: there is no such folder"
    for match in DEFINED.finditer(text):
        item, file = match.group(1).split("::")[-1], match.group(2)
        found = project.with_end(file)
        if found and not any(re.search(ITEM.format(item), tree.read(project.root, path)) for path in found):
            yield f"{item} is not in {file}"


def wrong_links(project, path, text):
    for target, heading in LINK.findall(URL.sub("", text)):
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(os.path.join(project.root, file)):
            yield f"{target}: there is no such file"
        elif heading and heading not in anchors(tree.read(project.root, file)):
            yield f"{target}#{heading}: there is no such heading"


def anchors(text):
    titles = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def paragraphs(text):
    """Number of the first line and text of each paragraph; a row of a table is one, a fenced block none."""
    lines, first, fenced = [], 1, False
    for number, line in enumerate(text.split("\n") + [""], 1):
        if line.startswith("```"):
            fenced = not fenced
        if lines and (not line.strip() or line.startswith(("|", "- ", "```", "#"))):
            yield first, "\n".join(lines)
            lines = []
        if line.strip() and not fenced and not line.startswith("```"):
            first = first if lines else number
            lines.append(line)


def header(text):
    """The lines of a source's `//!` comment, without the slashes and each in its place."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("//!"):
            break
        lines.append(line[len("//!") :].removeprefix(" "))
    return "\n".join(lines)


def crate_of(path):
    parts = path.split("/")
    return {parts[1]} if parts[0] == "crates" else set()


def check(root):
    project = Project(root)
    documents = [
        path
        for path in tree.files(root, ".md")
        if path in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md") or path.startswith("docs/")
    ]
    for path in documents:
        text = tree.read(root, path)
        for number, paragraph in paragraphs(text):
            for wrong in wrong_in(project, paragraph, named_crates(project, paragraph)):
                yield f"{path}:{number}: {wrong}"
            for wrong in wrong_links(project, path, paragraph):
                yield f"{path}:{number}: {wrong}"
    for path in tree.files(root, ".rs"):
        for number, paragraph in paragraphs(header(tree.read(root, path))):
            crates = crate_of(path) | named_crates(project, paragraph) if crate_of(path) else set()
            for wrong in wrong_in(project, paragraph, crates):
                yield f"{path}:{number}: {wrong}"


if __name__ == "__main__":
    tree.end(check)
