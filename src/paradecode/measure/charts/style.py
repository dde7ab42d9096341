"""Colours and axes that all charts share. matplotlib (extra ``plots``) is imported when drawing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradecode.measure.statistics import Estimate

OWN = "#d1495b"
PEERS = {
    "llama-cpp": "#30638e", "xllamacpp": "#5fa8d3", "openvino": "#5b8e7d", "vllm": "#8e6c8a",
    "transformers": "#bc8034",
}  # fmt: skip
OTHER = "#6c757d"
INK, SOFT, FAINT = "#22223b", "#5c5f6e", "#d9dbe1"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    return import_module("matplotlib.figure").Figure((width, height), layout="constrained")


def save(figure: Any, path: Path, dpi: int = 160) -> Path:
    """Write a picture and return its path."""
    figure.savefig(path, dpi=dpi, facecolor="white")
    return path


def whiskers(found: Estimate, scale: float = 1.0) -> list[list[float]]:
    """Lengths of the error bars to the ends of an interval; an unknown end has none."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return [[scale * max(found.value - low, 0.0)], [scale * max(high - found.value, 0.0)]]


def bare(axes: Any, grid: str = "both") -> None:
    """No frame, and faint lines behind the marks.

    Args:
        grid: ``x``, ``y`` or ``both``.
    """
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors=INK, which="both")
    axes.grid(axis=grid, color=FAINT, linewidth=0.8, zorder=1)
    axes.set_axisbelow(True)
