"""Drawings as PNG, by matplotlib (extra ``plots``), which is imported only when this is called."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure.report.drawing import Dot, Drawing, Rect, Shape, Stroke, Text, outline
from paradecode.measure.report.palette import COLOURS

DPI, SCALE = 96, 2
MARGIN, HEAD, COLUMNS = 24.0, 52.0, 2


def save(drawings: Sequence[Drawing], path: Path, title: str = "") -> None:
    """All drawings on one picture, in two columns where there are several.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise InvalidInput("output", str(path), 'for pictures: pip install "paradecode[plots]"')
    columns = min(COLUMNS, max(len(drawings), 1))
    top = MARGIN + (40 if title else 0)
    ends = [top] * columns
    placed = []
    for drawing in drawings:
        column = ends.index(min(ends))
        placed.append((drawing, column, ends[column]))
        ends[column] += HEAD + drawing.height + MARGIN
    across = max((drawing.width for drawing in drawings), default=400.0)
    width, height = MARGIN + columns * (across + MARGIN), max(ends)
    figure = import_module("matplotlib.figure").Figure((width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    if title:
        _paint(axes, Text(MARGIN, MARGIN + 18, title, 22, bold=True), 0, 0, 0)
    for drawing, column, y in placed:
        x = MARGIN + column * (across + MARGIN)
        _paint(axes, Text(x, y + 18, drawing.title, 16, bold=True), 0, 0, 0)
        _paint(axes, Text(x, y + 37, drawing.subtitle, 11, colour="soft"), 0, 0, 0)
        for order, shape in enumerate(drawing.shapes):
            _paint(axes, shape, x, y + HEAD, order)
    figure.savefig(path, dpi=DPI * SCALE, facecolor=COLOURS["paper"][0])


def _paint(axes: Any, shape: Shape, dx: float, dy: float, order: int) -> None:
    """What is painted later, of a higher ``order``, lies on top."""
    patches = import_module("matplotlib.patches")
    if isinstance(shape, Rect):
        axes.add_patch(
            patches.Rectangle(
                (shape.x + dx, shape.y + dy), max(shape.width, 0), shape.height,
                color=_light(shape.fill), alpha=shape.opacity, linewidth=0, zorder=order,
            )
        )  # fmt: skip
    elif isinstance(shape, Stroke):
        points = [(x + dx, y + dy) for x, y in shape.points]
        if shape.fill:
            look = {"color": _light(shape.colour), "alpha": shape.opacity, "linewidth": 0}
            axes.add_patch(patches.Polygon(points, closed=True, zorder=order, **look))
            return
        style = (0, tuple(shape.dash)) if shape.dash else "solid"
        axes.plot(
            *zip(*points), color=_light(shape.colour), linewidth=_points(shape.width),
            alpha=shape.opacity, linestyle=style, solid_capstyle="butt", zorder=order,
        )  # fmt: skip
    elif isinstance(shape, Dot):
        colour, paper = _light(shape.colour), _light("paper")
        look = {
            "facecolor": paper if shape.hollow else colour,
            "edgecolor": colour if shape.hollow else paper,
            "linewidth": _points(2 if shape.hollow else 1),
            "zorder": order,
        }
        if shape.shape == "circle":
            axes.add_patch(patches.Circle((shape.x + dx, shape.y + dy), shape.radius, **look))
        else:
            corners = [(x + dx, y + dy) for x, y in outline(shape)]
            axes.add_patch(patches.Polygon(corners, closed=True, **look))
    else:
        effects = import_module("matplotlib.patheffects")
        halo = [effects.withStroke(linewidth=3, foreground=_light("paper"))] if shape.halo else None
        axes.text(
            shape.x + dx, shape.y + dy, shape.text.replace("$", r"\$"),
            fontsize=_points(shape.size) * 0.97, color=_light(shape.colour),
            ha={"start": "left", "end": "right", "middle": "center"}[shape.anchor],
            va="baseline", fontweight="bold" if shape.bold else "normal", zorder=order,
            path_effects=halo,
        )  # fmt: skip


def _light(name: str) -> str:
    return COLOURS[name][0]


def _points(pixels: float) -> float:
    return pixels * 72 / DPI
