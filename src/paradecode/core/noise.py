"""Random numbers (noise) as a pure function of (seed, position, purpose, token).

There is no state, so a request with a seed gets the same random numbers with every method, tree and
batch. Each value is the SplitMix64 finaliser of a counter (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators").

The native core has the same functions in ``csrc/noise.hpp``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_ONE, _LAST, _HALF, _GOLDEN = np.uint64(1), np.uint64(31), np.uint64(32), np.uint64(GOLDEN)
"""Constants of :func:`uniform`, made once because most calls have only a few tokens."""

GUMBEL_SPREAD = 26.1
"""Largest difference, in nats, between two values of :func:`gumbel`.

A token whose scaled logit is further below the best one can never be sampled, so its random number
is not computed.
"""


class Purpose(IntEnum):
    """The use of a random number. Different uses have independent numbers at each position."""

    TOKEN = 0
    ACCEPT = 1
    DRAFT = 2
    ORDER = 3
    CHILD_SEED = 4


def mix(value: int) -> int:
    """Apply the SplitMix64 finaliser to a 64-bit integer."""
    value = (value + GOLDEN) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def key(seed: int, position: int, purpose: Purpose = Purpose.TOKEN) -> int:
    """Return the 64-bit key of the random numbers for one (seed, position, purpose)."""
    return mix(mix(mix(seed & MASK64) ^ (position & MASK64)) ^ int(purpose))


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply :func:`mix` without its first addition to each number; changes ``values`` in place."""
    for shift, factor in _ROUNDS:
        values ^= values >> shift
        values *= factor
    values ^= values >> _LAST
    return values


def uniform(base: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return uniform numbers in (0, 1), float64 with 32 random bits, in the shape of ``ids``.

    Args:
        base: the key of the random numbers, from :func:`key`.
        ids: token ids, with at least one dimension.
    """
    z = (ids.astype(np.uint64) + _ONE) * _GOLDEN + np.uint64(base)
    return ((mixed(z) >> _HALF).astype(np.float64) + 0.5) * 2.0**-32


def gumbel(base: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return float64: a standard Gumbel number for each token id, from -3.14 to 22.88."""
    return -np.log(-np.log(uniform(base, ids)))
