"""The colours, fonts and axes that all charts share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec

from paradecode_lab.measure.statistics import Estimate

COLOURS = {
    # Name: colour in light and in dark. Colour-blind readers can tell the hues apart (Okabe, Ito
    # 2008).
    "paper": ("#ffffff", "#171a21"),
    "ink": ("#1d2130", "#e8eaf0"),
    "soft": ("#5c6275", "#a2a9bb"),
    "grid": ("#e2e5ec", "#2d323e"),
    "band": ("#f5f6f9", "#1d212a"),
    "good": ("#00795a", "#3cc79f"),
    "bad": ("#c0392b", "#ff7a6b"),
    "plain": ("#7d8497", "#8e96a8"),
    "c0": ("#d55e00", "#ff8a3d"),
    "c1": ("#0072b2", "#4aa8e8"),
    "c2": ("#009e73", "#2fc79b"),
    "c3": ("#cc79a7", "#e79cc5"),
    "c4": ("#b8860b", "#e8b93a"),
    "c5": ("#56b4e9", "#8bd0f7"),
    "c6": ("#5b4a9c", "#a293e6"),
    "c7": ("#8a4b2f", "#c98a6b"),
    "p0": ("#33415c", "#7f90b5"),
    "p3": ("#e2b100", "#f0cf4a"),
    "p4": ("#c3c8d4", "#4a5162"),
}
HUES = tuple(f"c{number}" for number in range(8))
MARKERS = ("o", "s", "D", "^")
Asked = ParamSpec("Asked")
SMALL, NORMAL, LARGE = 8.2, 9.2, 13.0
"""Font sizes in points."""


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def light(name: str) -> str:
    """Return a colour of the palette for a white background."""
    return COLOURS[name][0]


def drawing() -> AbstractContextManager[None]:
    """Apply the settings for drawing and saving. Names are never read as formulas."""
    settings = {
        "text.parse_math": False,
        "text.color": light("ink"),
        "axes.facecolor": "none",
        "axes.labelcolor": light("soft"),
        "axes.edgecolor": light("grid"),
        "grid.color": light("grid"),
        "font.size": NORMAL,
        "font.family": ["DejaVu Sans"],
        "svg.fonttype": "none",
        "svg.hashsalt": "paradecode",
    }
    context: AbstractContextManager[None] = import_module("matplotlib").rc_context(settings)
    return context


def styled(draw: Callable[Asked, Any]) -> Callable[Asked, Any]:
    """Return a function that runs ``draw`` inside of :func:`drawing`."""

    @wraps(draw)
    def within(*args: Asked.args, **kwargs: Asked.kwargs) -> Any:
        with drawing():
            return draw(*args, **kwargs)

    return within


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; sizes are in inches."""
    return import_module("matplotlib.figure").Figure((width, height), layout="constrained")


def save(figure: Any, path: Path, dpi: int = 160) -> Path:
    """Write a figure in the light colours to a file, and return its path."""
    figure.savefig(path, dpi=dpi, facecolor=light("paper"))
    return path


def whiskers(found: Estimate, scale: float = 1.0) -> list[list[float]]:
    """Return the lengths of error bars to both ends of an interval; 0 for an unknown end."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return [[scale * max(found.value - low, 0.0)], [scale * max(high - found.value, 0.0)]]


def bare(axes: Any, grid: str = "both") -> None:
    """Remove the frame of a chart, and draw faint grid lines under its marks.

    Args:
        grid: ``x``, ``y`` or ``both``.
    """
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, which="both", labelcolor=light("soft"), labelsize=SMALL)
    axes.grid(axis=grid, linewidth=0.8)
    axes.set_axisbelow(True)


def headline(figure: Any, text: str) -> None:
    """Write the title of a whole figure at its left."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=LARGE, fontweight="bold")
