"""Print tables of results on any screen. On a narrow one, each figure has its own line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paradecode.cli.console import out


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without its empty columns.

    An output that is no terminal, such as a file, counts as wide enough.
    """
    shown = [at for at in range(len(head)) if any(cells[at] for cells in rows)]
    table = Table()
    for at in shown:
        table.add_column(escape(head[at]), no_wrap=True, justify="right" if at else "left")
    for cells in rows:
        table.add_row(*(escape(cells[at]) for at in shown))
    wide = Console(width=1 << 16)
    needed = wide.measure(table).maximum
    if not out.is_terminal:
        Console(width=needed).print(table)
    elif needed <= out.width:
        out.print(table)
    else:
        _print_lines(head, rows, shown[1:])


def _print_lines(head: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> None:
    """Print the first cell of each row, and below it a line for each other cell."""
    names = max(len(head[at]) for at in shown)
    for cells in rows:
        out.print(f"[bold]{escape(cells[0])}[/]", highlight=False, soft_wrap=True)
        for at in shown:
            if cells[at]:
                line = f"  {head[at]:<{names}}  {cells[at]}"
                out.print(escape(line), highlight=False, soft_wrap=True)
