"""Numbers of the protocol between agent and supervisor, from the file that both are made of."""

import pathlib
import re

SOURCE = pathlib.Path(__file__).parents[2] / "crates/common/src/protocol.rs"


def constant(name):
    found = re.search(rf"const {name}: \w+ = (\w+);", SOURCE.read_text())
    assert found, f"{name} is not in {SOURCE.name}"
    return int(found[1], 0)


MAGIC = constant("MAGIC")
RUNS_AT = constant("RUNS_AT")
