"""`%%memspill 2G`: a notebook's cell within a budget."""

from IPython import get_ipython

from memspill._budget import budget


class CellFailed(Exception):
    """The cell has shown its error already; this ends the cell around it, and shows nothing."""

    def _render_traceback_(self):
        return []


def run_cell(line, cell):
    """%%memspill SIZE: arrays that the cell makes stay within SIZE of memory."""
    with budget(line.strip()):
        result = get_ipython().run_cell(cell)
    if not result.success:
        raise CellFailed from None
