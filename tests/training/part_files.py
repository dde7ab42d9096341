"""Files of the trained parts, and how to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from acceptance_models import head, selector

from paradecode.methods.canvas.joint_layer import JointLayer, open_layer, shapes
from paradecode.methods.canvas.unmask_filter import UnmaskFilter, open_filter
from paradecode.methods.draft.budgets.residual_head import open_head
from paradecode.methods.draft.budgets.tree_selector import open_selector

LAYER_FACTS = {"vocab_size": 7, "hidden_size": 6, "width": 8, "heads": 2, "inner": 12}
OPENED = {
    "acceptance_head": open_head,
    "tree_selector": lambda path: open_selector(path, 64),
    "filter": open_filter,
    "layer": open_layer,
}
"""Kind of part, by the setting of methods that takes it -> how its file is opened."""


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
    elif kind == "filter":
        part = UnmaskFilter(tensor(4, 3), tensor(3), tensor(3, 4), tensor(4))
    else:
        tensors = {name: tensor(*shape) for name, shape in shapes(LAYER_FACTS).items()}
        part = JointLayer(LAYER_FACTS, tensors)
    part.save(path)
    return path


def opened(path: Path, kind: str) -> Any:
    return OPENED[kind](str(path))


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewritten(path: Path, header: object, body: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
