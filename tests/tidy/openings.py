"""Few sentences that open with a headless clause: openings.py FOLDER [--list]

"What waits there is woken" has to be read twice: its subject is a clause without a head. "The waiting
thread is woken" has not. This looks at comments (of Rust, C, shell and Python) and documents, and finds
sentences that open with What, Who, Whoever, Whatever, Whom, Whose, Which, Where, Of, Those that, That the,
So that, So many.

It lets pass

    a question            Which pages leave first?
    a label               /// Where a slot's bytes lie.    one clause, which names what follows
    a label with a colon  //! What it does not do: decide.
    a fixed phrase        Of course; That is, ...; So the page stays

It cannot parse English: a sentence counts as a label if it has one finite verb. So some pass, and a few good
ones are found; a room (a crate, or a folder of the root) fails above SHARE_MAX of its comment lines. --list
prints all hits of all rooms, and the shares.
"""

import re
import sys

import tree

SHARE_MAX = 0.005
SLASHES = (".rs", ".c", ".h", ".cpp", ".js", ".java", ".css")
HASHES = (".sh", ".py")
COMMENT = {
    **dict.fromkeys(
        SLASHES, re.compile(r"^\s*(?:(//[!/]?|/\*\*?|\*(?!/))|.*?[;{},)] (//))(?: |$)(.*)")
    ),
    **dict.fromkeys(HASHES, re.compile(r"^\s*(?:(#)(?![!\[])|\S.* (#))(?: |$)(.*)")),
}

CLAUSE = re.compile(
    r"(?:In |By |For |With |To |On |From )?[Ww](?:hat|hatever|ho|hoever|hom|hose|here)\b|Which(?:ever)?\b"
)
ALWAYS = re.compile(
    r"Of (?!course\b)|So (?:that|many|much|long as|few)\b"
    r"|Th(?:ose|at) (?:that|who|which|whose|of|in|with|without|from|to|for|it|he|they)\b"
    r"|That (?:nobody|nothing|something)\b"
    r"|That (?:a|an|the|no|what|all|more|it) "
)
# A preposition before "what" or "whom" is found as well, one before anything else is not.
PREPOSITION = re.compile(r"(In|By|For|With|To|On|From) (?!wh(at|om|oever)\b)")

MODAL = r"(?:can|cannot|could|may|might|must|shall|should|will|would)(?: not)?(?: \w+)?(?: been)?"
BE = r"(?:is|are|was|were)(?: not| never| no longer)?"
HAVE = r"(?:has|have|had)(?: not| never)?(?: been)?"
DO = r"(?:does|do|did)(?: not \w+)?"
THIRD = """
    adds allows answers asks becomes begins belongs breaks brings chooses comes consists contains
    costs counts decides depends differs ends enters fails falls fills finds fits follows gets gives
    goes grows happens has holds joins keeps knows lacks lasts leaves lets lies loses makes means
    moves names needs opens passes prints puts reads remembers returns runs saves says sees serves
    shares shows sleeps speaks stands starts stays stops takes tells touches turns tries uses waits
    wakes wants works writes
"""
FINITE = re.compile(rf"\b(?:{MODAL}|{BE}|{HAVE}|{DO}|{'|'.join(THIRD.split())})\b")
# "What it is, and where it goes": two labels, each with its verb.
AND = re.compile(
    r"(?:,|;| and|, and| or|, or| -) (?=(?:by |in |for |from |to |on )?"
    r"(?:what|who|whose|where|how|which|when|why|whether)\b)"
)
ENDS = re.compile(r"(?:(?<=[.?!])|(?<=[.?!][)*\"`])) +(?=[(*\"`]?[A-Z])")


def is_headless(sentence):
    if sentence.endswith("?"):
        return False
    sentence = sentence.lstrip("(*\"")
    if ALWAYS.match(sentence):
        return True
    if not CLAUSE.match(sentence) or PREPOSITION.match(sentence):
        return False
    label = re.split(r": |:$", sentence, maxsplit=1)[0]
    return max(len(FINITE.findall(part)) for part in AND.split(label)) > 1


def sentences(block):
    """The sentences of `block` (pairs of line number and text), each with the number of its first line."""
    text, starts = "", []
    for number, line in block:
        starts.append((len(text), number))
        text += line.strip() + " "
    at = 0
    for sentence in ENDS.split(text):
        at = text.index(sentence, at)
        yield max(number for start, number in starts if start <= at), sentence.strip()


def comment_blocks(path, text):
    """Blocks of whole sentences: a comment ends where code, an empty comment line or a list item begins."""
    ending = "." + path.rsplit(".", 1)[-1]
    pattern = COMMENT[ending]
    block, kind, fenced, quoted = [], None, False, False
    for number, line in enumerate(text.split("\n"), 1):
        quotes = line.count('"""') if ending == ".py" else 0
        found = pattern.match(line)
        if quoted or quotes:
            mark, words = '"', line.strip().strip('"')
            quoted ^= quotes % 2 == 1
        elif found:
            mark, words = found.group(1) or "end", found.group(3)
        else:
            mark, words = None, ""
        if words.startswith("```"):
            fenced = not fenced
            words = ""
        # Drawings and code are indented, or fenced.
        is_prose = words.strip() and not fenced and not words.startswith("    ")
        item = re.match(r"\s*(?:[-*] |\|)", words)
        if block and (mark != kind or not is_prose or item or mark == "end"):
            yield block
            block = []
        if is_prose:
            block.append((number, re.sub(r"^[-*|] +", "", words.strip())))
        kind = mark
    if block:
        yield block


def document_blocks(text):
    block, fenced = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        is_prose = line.strip() and not fenced and not line.startswith(("```", "    "))
        if block and (not is_prose or re.match(r"\s*(?:[-*#] |\||\d+\. )", line)):
            yield block
            block = []
        if line.startswith("|"):
            yield from ([(number, cell.strip())] for cell in line.strip("|").split("|") if cell.strip())
        elif is_prose:
            block.append((number, re.sub(r"^\s*(?:[-*#>]+|\d+\.) +", "", line.strip())))
    if block:
        yield block


def room(path):
    parts = path.split("/")
    if path.endswith(".md"):
        return "documents"
    return "/".join(parts[:2]) if parts[0] == "crates" else parts[0]


def all_rooms(root):
    """By room: the comment lines, and the hits as text."""
    lines, hits = {}, {}
    for path in tree.files(root, *COMMENT, ".md"):
        text = tree.read(root, path)
        blocks = document_blocks(text) if path.endswith(".md") else comment_blocks(path, text)
        for block in blocks:
            lines[room(path)] = lines.get(room(path), 0) + len(block)
            for number, sentence in sentences(block):
                if is_headless(sentence):
                    hits.setdefault(room(path), []).append(f"{path}:{number}: {sentence[:90]}")
    return lines, hits


def check(root):
    lines, hits = all_rooms(root)
    for name, found in hits.items():
        if len(found) > SHARE_MAX * lines[name]:
            yield from found
            yield f"{name}: {len(found)} of {lines[name]} lines open with a headless clause"


if __name__ == "__main__":
    if "--list" in sys.argv:
        lines, hits = all_rooms(sys.argv[1])
        for found in hits.values():
            print(*found, sep="\n")
        for name in lines:
            share = 100 * len(hits.get(name, [])) / lines[name]
            print(f"{name}: {len(hits.get(name, []))} of {lines[name]} lines, {share:.2f} %")
    else:
        tree.end(check)
