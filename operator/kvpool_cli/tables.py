"""Tables of the command's reports: the first column to the left, the others to the right."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 120
GB = 1e9


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    made = Table(box=None, pad_edge=False, header_style="")
    for place, title in enumerate(titles):
        made.add_column(title, no_wrap=True, justify="right" if place else "left")
    for row in rows:
        made.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(made)
    return [line.rstrip() for line in text.getvalue().splitlines()]
