"""Memory budgets inside a program, and the memspill command.

    with memspill.budget("2G"):
        a = numpy.ones((100_000, 100_000))   # 80 GB

Arrays that are made inside stay within 2 GiB of memory; what does not fit is compressed and swapped out by
memspill. They are ordinary arrays, and outlive the block. `memspill.budget("2G", everything=True)` is for all
memory of the process.

A budget is for memory that numpy allocates, in this thread and in threads that are started inside. Python's
objects, Arrow's columns and what C libraries allocate for themselves are elsewhere: `everything=True` and
`memspill run` take these too.
"""

from memspill._budget import Budget, advise, budget, limit, stats
from memspill._command import find_memspill
from memspill._library import Error

__all__ = ["Budget", "Error", "advise", "budget", "find_memspill", "limit", "stats"]


def load_ipython_extension(ipython):
    """`%load_ext memspill` gives `%%memspill 2G`: a cell within a budget."""
    from memspill._cell import run_cell

    ipython.register_magic_function(run_cell, "cell", "memspill")
