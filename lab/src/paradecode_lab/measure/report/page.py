"""Writes sheets as one self-contained page, which loads no script, font or picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paradecode_lab.measure.charts.all import charts_of
from paradecode_lab.measure.charts.chart import Looks, look_of, looks_of
from paradecode_lab.measure.charts.pictures import GET
from paradecode_lab.measure.charts.style import COLOURS, can_draw
from paradecode_lab.measure.charts.svg import inline
from paradecode_lab.measure.sheet import Line, MoreFigures, Sheet

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(sheets: Sequence[Sheet]) -> str:
    """Return a complete HTML document; it has no charts if matplotlib is not installed."""
    found = looks_of(sheets)
    title = escape(sheets[0].title if len(sheets) == 1 else "Paradecode benchmarks")
    body = "\n".join(_sheet(sheet, found) for sheet in sheets)
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_variables()}{style}{_highlights(found)}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _sheet(sheet: Sheet, found: Looks) -> str:
    tiles = "".join(
        f'<div class="tile{" bad" if tile.bad else ""}"><b>{escape(tile.value)}</b>'
        f"<span>{escape(tile.label)}</span><small>{escape(tile.note)}</small></div>"
        for tile in sheet.tiles
    )
    facts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>"
        for what, value in sheet.conditions
    )
    doubts = "".join(f"<p><b>{escape(doubt)}</b></p>" for doubt in sheet.doubts)
    notes = doubts + "".join(f"<p>{escape(note)}</p>" for note in sheet.notes)
    return (
        f"<section>\n<h1>{escape(sheet.title)}</h1>\n"
        f'<div class="tiles">{tiles}</div>\n<dl>{facts}</dl>\n'
        f"{_charts(sheet, found)}\n{_table(sheet, found)}{''.join(map(_more, sheet.more))}\n"
        f'<div class="notes">{notes}</div>\n</section>'
    )


def _charts(sheet: Sheet, found: Looks) -> str:
    if not can_draw():
        return f'<p class="notes">For pictures: {escape(GET)}</p>'
    figures = "".join(
        f'<figure class="card"><figcaption><h2>{escape(chart.title)}</h2>'
        f'<p>{escape(chart.subtitle)}</p></figcaption><div class="wide">{inline(chart)}</div>'
        "</figure>"
        for chart in charts_of(sheet, found).values()
    )
    return f'<div class="charts">{figures}</div>'


def _table(sheet: Sheet, found: Looks) -> str:
    names, lines = sheet.table()
    head = "".join(f"<th>{escape(cell)}</th>" for cell in ("", *names))
    rows = "".join(_row(line, cells, found) for line, cells in lines)
    return (
        f'<div class="card wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _more(more: MoreFigures) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in more.head)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in more.rows
    )
    return (
        f'<p class="notes">{escape(more.said)}</p><div class="card wide"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(line: Line, own: tuple[str, ...], found: Looks) -> str:
    look = look_of(line, found)
    first, *rest = own or ("",)
    badge = f'<span class="badge {line.standing or "none"}">{escape(first)}</span>' if first else ""
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
    return (
        f'<tr class="m k{look.key}"><th><i style="background:var(--{look.colour})"></i>'
        f"{escape(line.name)}</th><td>{badge}</td>{cells}</tr>"
    )


def _variables() -> str:
    light, dark = (
        "".join(f"--{name}:{values[theme]};" for name, values in COLOURS.items())
        for theme in (0, 1)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _highlights(found: Looks) -> str:
    """Return style rules for hovering.

    While the pointer is on a mark or row of a line, they dim all other lines in every chart and
    table.
    """
    keys = sorted({look.key for look in found.values()})
    return "".join(f"main:has(.k{key}:hover) .m:not(.k{key}){{opacity:.16}}\n" for key in keys)
