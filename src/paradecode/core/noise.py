"""Counter-based noise: a pure function of (seed, position, purpose, token).

No state is carried from token to token, so a request with a seed draws the same noise whatever
method, tree, batch or neighbours served it. Each value is a SplitMix64 finaliser over a counter
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

GUMBEL_SPREAD = 26.1
"""Nats between the largest and the smallest value :func:`gumbel` can return. A token whose scaled
logit is further than this below the best one can never be drawn, so its noise is not computed."""


class Purpose(IntEnum):
    """Separate streams, so that two uses at one position never share noise."""

    TOKEN = 0
    ACCEPT = 1
    DRAFT = 2
    ORDER = 3
    CHILD_SEED = 4


def mix(value: int) -> int:
    """SplitMix64's finaliser on a 64-bit integer."""
    value = (value + GOLDEN) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def key(seed: int, position: int, purpose: Purpose = Purpose.TOKEN) -> int:
    """The 64-bit counter base of one (seed, position, purpose)."""
    return mix(mix(mix(seed & MASK64) ^ (position & MASK64)) ^ int(purpose))


def uniform(base: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """float64, same shape as ``ids``: uniforms in (0, 1) with 32 bits of resolution."""
    with np.errstate(over="ignore"):
        z = np.uint64(base) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32


def gumbel(base: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """float64: standard Gumbel noise of each token id, between -3.14 and 22.88."""
    return -np.log(-np.log(uniform(base, ids)))
