"""Lines of at most 110 characters, and a comment at the head of each source file: lines.py FOLDER

Characters are counted, not bytes. rustfmt wraps code; it leaves comments and long strings as they are, and it
does not see the other languages. A URL is exempt, as it cannot be broken: a line may be too long by no more
than the URLs in it.
"""

import re

import tree

COLUMNS_MAX = 110
SOURCES = (".rs", ".sh", ".py", ".c", ".h", ".cpp", ".js", ".java", ".sql", ".css")
# A manifest says what it is in `description`.
WITHOUT_HEADER = (".toml",)
HEADERS = ("//", "/*", '"""', "--", "#")
URL = re.compile(r"https?://\S+")


def is_too_long(line):
    return len(line) > COLUMNS_MAX and len(URL.sub("", line)) > COLUMNS_MAX - len("https://")


def has_header(text):
    lines = text.split("\n")
    if lines[0].startswith("#!/"):
        lines = lines[1:]
    # `#![...]` is an attribute of a Rust file, not a comment.
    return bool(lines) and lines[0].startswith(HEADERS) and not lines[0].startswith("#!")


def check(root):
    for path in tree.files(root, *SOURCES, *WITHOUT_HEADER):
        text = tree.read(root, path)
        if path.endswith(SOURCES) and not has_header(text):
            yield f"{path}:1: no header: the first lines say what the file is"
        for number, line in enumerate(text.split("\n"), 1):
            if is_too_long(line):
                yield f"{path}:{number}: {len(line)} characters, more than {COLUMNS_MAX}"


if __name__ == "__main__":
    tree.end(check)
