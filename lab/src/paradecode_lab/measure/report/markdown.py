"""Writes sheets as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode_lab.measure.sheet import Line, Sheet
from paradecode_lab.measure.tables import number, table


def markdown(sheets: Sequence[Sheet]) -> str:
    """Return all sheets as one Markdown text."""
    return "\n\n".join(f"# {sheet.title}\n\n{body(sheet)}" for sheet in sheets) + "\n"


def summary(sheet: Sheet) -> list[str]:
    """Return three kinds of paragraphs: the conditions, a table of all methods, and the doubts."""
    head, rows = sheet.table()
    return [
        "\n".join(f"- {what}: {value}" for what, value in sheet.conditions),
        table(("method", *head), [(f"`{line.name}`", *cells) for line, cells in rows]),
        *(f"**{doubt}**" for doubt in sheet.doubts),
    ]


def body(sheet: Sheet) -> str:
    """Return a sheet without its heading."""
    lines = sheet.by_speed()
    parts = summary(sheet)
    groups = sheet.groups
    if len(groups) > 1:
        unit = f"Times as fast as {sheet.baseline}" if sheet.groups_over else "Tokens per second"
        rows = [(f"`{line.name}`", *(_cell(line, group) for group in groups)) for line in lines]
        parts += [f"{unit}, by kind of task:", table(("method", *groups), rows)]
    parts += _acceptance(lines) + _sweep(sheet) + _split(lines)
    for more in sheet.more:
        parts += [more.said, table(more.head, more.rows)]
    return "\n\n".join([*parts, *sheet.notes])


def _cell(line: Line, group: str) -> str:
    return number(line.groups[group].value) if group in line.groups else "-"


def _acceptance(lines: Sequence[Line]) -> list[str]:
    shown = [line for line in lines if line.acceptance]
    if not shown:
        return []
    deepest = max(len(line.acceptance) for line in shown)
    rows = [
        (f"`{line.name}`", *(f"{100 * share:.0f}" for share in line.acceptance),
         *[""] * (deepest - len(line.acceptance)))
        for line in shown
    ]  # fmt: skip
    head = ("method", *map(str, range(1, deepest + 1)))
    return ["Drafts whose token at a position was kept, in %:", table(head, rows)]


def _sweep(sheet: Sheet) -> list[str]:
    lines = sheet.by_speed()
    sizes = sorted({size for line in lines for size in line.sweep})
    if len(sizes) < 2:
        return []
    rows = [(f"`{line.name}`", *(_through(line, size) for size in sizes)) for line in lines]
    said = f"Output tokens per second by batch size, and times {sheet.baseline}'s:"
    return [said, table(("method", *map(str, sizes)), rows)]


def _through(line: Line, size: int) -> str:
    if size not in line.sweep:
        return "-"
    over = line.sweep_over.get(size)
    return number(line.sweep[size].value) + (f" ({number(over.value)}×)" if over else "")


def _split(lines: Sequence[Line]) -> list[str]:
    shown = [line for line in lines if line.split]
    if not shown:
        return []
    parts = list(shown[0].split)
    rows = [
        (f"`{line.name}`", *(number(line.split.get(part, 0.0)) for part in parts)) for line in shown
    ]
    return ["Milliseconds of decoding a token:", table(("method", *parts), rows)]
