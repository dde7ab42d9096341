"""Files of trained parts with chosen weights, for the toy models."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from paradecode.decoders.diffusion.unmask_filter import UnmaskFilter


def constant_filter(logit: float, block: int = 8) -> UnmaskFilter:
    """A filter that says the same of every position: -40 never agrees, 40 always does."""
    zeros = np.zeros((block, 4), np.float32)
    return UnmaskFilter(zeros, zeros[0], zeros.T.copy(), np.full(block, logit, np.float32))


def random_filter(block: int = 8, seed: int = 0) -> UnmaskFilter:
    random = np.random.default_rng(seed)
    parts = [(block, 5), (5,), (5, block), (block,)]
    return UnmaskFilter(*(2 * random.standard_normal(p).astype(np.float32) for p in parts))


@cache
def folder() -> Path:
    """Where this process keeps such files."""
    place = tempfile.mkdtemp(prefix="paradecode-parts-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


@cache
def settings() -> Mapping[str, str]:
    """Every method that needs something trained -> settings that name such a part, and a comma."""
    path = folder() / "filter"
    random_filter().save(path)
    return {"learn2pd": f"filter='{path}',sure=0.5,"}
