"""Random tensors that Clover and Clover-2 heads have beside their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Normal = Callable[..., NDArray[np.float32]]
CELLS = {"clover": ("",), "clover-2": ("", "2")}


def clover_tensors(kind: str, d: int, normal: Normal) -> dict[str, NDArray[Any]]:
    """Return random cells and norms, and the layers between them and the LM head.

    Args:
        normal: returns random numbers of a given shape.
    """
    tensors = {"clover_norm.weight": 1 + 0.1 * normal(d), "clover_head_norm.weight": normal(d)}
    for number in CELLS[kind]:
        cell = f"clover_head_mlp_rnn{number}"
        tensors[f"{cell}.input_layernorm.weight"] = 1 + 0.1 * normal(d)
        for part in "qkv":
            tensors |= {f"{cell}.{part}.weight": normal(d, d), f"{cell}.{part}.bias": normal(d)}
        tensors[f"{cell}.v.weight"] *= 12  # So the last token has influence.
    if kind == "clover":
        shapes = {f"clover_head_mlp.{level}.0.linear": d for level in range(3)}
    else:
        shapes = {"clover_head_mlp": d, "clover_head_mlp2": 2 * d}
    for name, entering in shapes.items():
        tensors |= {f"{name}.weight": normal(d, entering), f"{name}.bias": normal(d)}
    return tensors
