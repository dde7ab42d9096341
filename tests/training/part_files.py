"""Write files of trained parts, and damage them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from acceptance_models import head, selector

from paradecode.methods.canvas.policies.learned import JointLayer, UnmaskFilter
from paradecode.methods.draft.budgets.networks import ResidualHead, TreeSelector

FACTS = {
    "filter": {"block": 4, "width": 3},
    "layer": {"vocab_size": 7, "hidden_size": 6, "width": 8, "heads": 2, "inner": 12},
}
OPENED = {
    "acceptance_head": ResidualHead, "tree_selector": TreeSelector, "filter": UnmaskFilter,
    "layer": JointLayer,
}  # fmt: skip
"""Setting of methods that takes a part -> the part's class."""


def random_part(kind: str) -> Any:
    """Return a part with random weights, the same at each call."""
    if kind == "acceptance_head":
        return head(blocks=2)
    if kind == "tree_selector":
        return selector(4)
    facts, random = FACTS[kind], np.random.default_rng(0)
    shapes = OPENED[kind](facts, {}).shapes().items()
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes}
    return OPENED[kind](facts, tensors)


def made(path: Path, kind: str) -> Path:
    """Write a random part into a file, and return its path."""
    random_part(kind).save(path)
    return path


def opened(path: Path, kind: str) -> Any:
    return OPENED[kind].open(str(path))


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewritten(path: Path, header: object, body: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
