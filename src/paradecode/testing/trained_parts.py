"""Make trained parts of canvas methods with chosen or random weights."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from paradecode.methods.canvas.policies.learned import JointLayer, UnmaskFilter
from paradecode.testing.toy import WIDTH


def constant_filter(logit: float, block: int = 8) -> UnmaskFilter:
    """Return a filter with one answer for every position: -40 is never final, 40 always is."""
    made = random_filter(block)
    tensors = {name: np.zeros_like(values) for name, values in made.tensors.items()}
    return UnmaskFilter(made.facts, {**tensors, "b2": np.full(block, logit, np.float32)})


def random_filter(block: int = 8, seed: int = 0) -> UnmaskFilter:
    """Return a filter with random weights."""
    random = np.random.default_rng(seed)
    facts = {"block": block, "width": 5}
    shapes = UnmaskFilter(facts, {}).shapes()
    made = {n: 2 * random.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    return UnmaskFilter(facts, made)


def joint_layer(
    size: float = 1.0, vocab_size: int = 29, hidden_size: int = WIDTH, seed: int = 0
) -> JointLayer:
    """Return a random layer. With ``size`` 0 it leaves the states unchanged."""
    facts = {"vocab_size": vocab_size, "hidden_size": hidden_size, "width": 8, "heads": 2}
    facts["inner"] = 12
    random = np.random.default_rng(seed)
    tensors = {
        name: random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        for name, shape in JointLayer(facts, {}).shapes().items()
    }
    tensors["out"] *= np.float32(size)
    return JointLayer(facts, tensors)


@cache
def folder() -> Path:
    """Return the folder for files of trained parts. It is removed when the process ends."""
    place = tempfile.mkdtemp(prefix="paradecode-parts-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


@cache
def settings() -> Mapping[str, str]:
    """Return method with a trained part -> settings that name such a part, with a comma."""
    path = folder() / "filter"
    random_filter().save(path)
    # The toy's hidden states are pieces of a hash, so a layer must not change them.
    layer = folder() / "layer"
    joint_layer(size=0.0).save(layer)
    return {"learn2pd": f"filter='{path}',sure=0.5,", "joint-sampler": f"layer='{layer}',"}
