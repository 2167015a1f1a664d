"""`python -m memspill ARGS`: the command itself takes the place of this process."""

import os
import sys

from memspill._command import find_memspill

if __name__ == "__main__":
    try:
        command = find_memspill()
    except FileNotFoundError as error:
        sys.exit(f"memspill: {error}")
    os.execv(command, [command, *sys.argv[1:]])
