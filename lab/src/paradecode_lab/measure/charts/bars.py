"""Draws bar charts: the decode speed of every line, and how the time of a token divides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode_lab.measure.charts.chart import (
    Chart,
    Look,
    Looks,
    look_of,
    mark,
    name_rows,
    said,
    tip_of,
    whisker,
)
from paradecode_lab.measure.charts.style import NORMAL, SMALL, bare, light
from paradecode_lab.measure.figures import PARTS
from paradecode_lab.measure.sheet import Line, Sheet
from paradecode_lab.measure.tables import number

MOST = 30
PART_COLOURS = ("p0", "c0", "c2", "p3", "p4")


def speed(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return a chart of tokens a second; None if no line has a speed."""
    ranked = sheet.by_speed()
    lines = ranked[:MOST]
    if not lines:
        return None
    more = f" × is against {sheet.baseline}." if sheet.baseline else ""
    if any(line.standing == "lossy" and line.quality for line in lines):
        more += f" Beside lossy: {sheet.quality_label[0].lower()}{sheet.quality_label[1:]}."
    more += f" The {MOST} fastest of {len(ranked)}." if len(ranked) > MOST else ""
    subtitle = f"Tokens per second; whiskers are 95 % intervals.{more}"
    return Chart(
        "Decode speed",
        subtitle,
        0.5 + 0.27 * len(lines),
        lambda figure: _paint_speed(figure, lines, sheet.baseline, looks),
    )


def _paint_speed(figure: Any, lines: Sequence[Line], baseline: str, looks: Looks) -> None:
    axes = figure.add_subplot()
    bare(axes, "x")
    name_rows(axes, lines, looks)
    for row, line in enumerate(lines):
        assert line.speed is not None
        look, found = look_of(line, looks), line.speed
        bar = axes.barh(
            row, found.value, height=0.66, color=look.tint, alpha=0.5 if line.muted else 1
        )[0]
        mark(
            bar, look, tip_of(line, said(found, " tokens/s"), f"{said(line.over, '×')} {baseline}")
        )
        whisker(axes, found, row, look)
        _notes(axes, (found.high, row), _facts(line, baseline), look)
    axes.set_xlim(0, 1.01 * max(line.speed.high for line in lines if line.speed))


def _facts(line: Line, baseline: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the texts after a bar: speed, ratio, and a warning if the output is not plain."""
    assert line.speed is not None
    facts: list[tuple[str, dict[str, Any]]] = [
        (number(line.speed.value), {"fontweight": "bold", "fontsize": NORMAL})
    ]
    if line.over is not None and line.name != baseline:
        facts.append((f"{number(line.over.value)}×", {"color": light("soft")}))
    warning = {"broken": "≠ plain", "lossy": "lossy"}.get(line.standing)
    if warning:
        if line.standing == "lossy" and line.quality:
            warning += f", {100 * line.quality.value:.0f} %"
        facts.append((warning, {"color": light("bad"), "fontweight": "bold"}))
    return facts


def _notes(
    axes: Any, end: tuple[float, float], facts: Sequence[tuple[str, dict[str, Any]]], look: Look
) -> None:
    place: dict[str, Any] = {"xy": end, "xycoords": "data"}
    for text, style in facts:
        note = axes.annotate(
            text, xytext=(6, 0), textcoords="offset points", va="center",
            **{"fontsize": SMALL, **place, **style},
        )  # fmt: skip
        mark(note, look)
        place = {"xy": (1, 0.5), "xycoords": note}


def split(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return a chart of the milliseconds per token for each activity; None if no line has them."""
    lines = [line for line in sheet.by_speed() if line.split][:MOST]
    if not lines:
        return None
    return Chart(
        "Where the time goes",
        "Milliseconds of decoding a token; shorter is faster.",
        0.8 + 0.27 * len(lines),
        lambda figure: _paint_split(figure, lines, looks),
    )


def _paint_split(figure: Any, lines: Sequence[Line], looks: Looks) -> None:
    axes = figure.add_subplot()
    bare(axes, "x")
    name_rows(axes, lines, looks)
    for row, line in enumerate(lines):
        look, total, spent = look_of(line, looks), sum(line.split.values()), 0.0
        for part, colour in zip(PARTS, PART_COLOURS):
            own = line.split.get(part, 0.0)
            share = f"{100 * own / max(total, 1e-12):.0f} %"
            fact = f"{part}: {number(own)} ms a token, {share}"
            bar = axes.barh(
                row, own, left=spent, height=0.66, color=light(colour), label=None if row else part
            )[0]
            mark(bar, look, tip_of(line, fact))
            spent += own
        note = axes.annotate(
            f"{number(total)} ms", (total, row), (6, 0), textcoords="offset points",
            va="center", fontweight="bold",
        )  # fmt: skip
        mark(note, look)
    axes.set_xlim(0, max(sum(line.split.values()) for line in lines))
    figure.legend(loc="outside upper left", ncols=len(PARTS), frameon=False)
