"""Files of the trained parts, and how to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from acceptance_models import head, selector

from paradecode.methods.canvas.policies.learned import JointLayer, UnmaskFilter
from paradecode.methods.draft.budgets.networks import ResidualHead, TreeSelector

LAYER_FACTS = {"vocab_size": 7, "hidden_size": 6, "width": 8, "heads": 2, "inner": 12}
OPENED = {
    "acceptance_head": ResidualHead, "tree_selector": TreeSelector, "filter": UnmaskFilter,
    "layer": JointLayer,
}  # fmt: skip
"""Kind of part, by the setting of methods that takes it -> its class."""


def made(path: Path, kind: str) -> Path:
    """The file of a part with random weights."""
    random = np.random.default_rng(0)

    def tensor(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    part: Any
    if kind == "acceptance_head":
        part = head(blocks=2)
    elif kind == "tree_selector":
        part = selector(4)
    else:
        facts = {"block": 4, "width": 3} if kind == "filter" else LAYER_FACTS
        shapes = OPENED[kind](facts, {}).shapes()
        part = OPENED[kind](facts, {name: tensor(*shape) for name, shape in shapes.items()})
    part.save(path)
    return path


def opened(path: Path, kind: str) -> Any:
    return OPENED[kind].open(str(path))


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewritten(path: Path, header: object, body: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
