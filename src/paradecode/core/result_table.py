"""A table that can be printed, shown in a notebook, or converted for pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

from paradecode.core.errors import InvalidInput


@dataclass(frozen=True)
class ResultTable:
    """A table with at least one row; all rows have the same columns.

    Attributes:
        rows: each maps the name of a column to a text, a number or a truth value.
        notes: sentences that are shown below the table.
    """

    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.rows[index]

    def __str__(self) -> str:
        lines = self._cells()
        widths = [max(map(len, column)) for column in zip(*lines)]
        numeric = [isinstance(value, (int, float)) for value in self.rows[0].values()]
        shown = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, numeric)
            ).rstrip()
            for cells in lines
        ]
        return "\n".join([*shown, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells)
            for kind, cells in zip(["th", *["td"] * len(self)], self._cells())
        ]
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + f"</table>{notes}"

    def frame(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``; raise InvalidInput if pandas is missing."""
        try:
            pandas = import_module("pandas")  # Only this method needs it.
        except ImportError:
            fix = "it is not installed; `pip install pandas` installs it, or use rows"
            raise InvalidInput("pandas", "missing", fix) from None
        return pandas.DataFrame(list(self.rows))

    def _cells(self) -> list[list[str]]:
        """Return the names of the columns, and then the cells of each row as texts."""
        return [list(self.rows[0]), *([_shown(value) for value in row.values()] for row in self)]


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
