"""Times Python between two forwards, with processor caches as a real forward leaves them.

A model's forward reads all its weights, so Python's code and data are no longer in the caches. The
same Python code then takes two to four times as long as in a replay. After every few forwards of a
replay, memory is therefore read in the same amount.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

FLUSHED = 32 << 20
"""Number of bytes that are read to empty the caches: more than one core's caches hold."""


@dataclass(frozen=True)
class Gap:
    """The time from the end of one forward to the beginning of the next one.

    Attributes:
        seconds: processor time of this thread.
        cold: whether the caches were emptied at its beginning.
    """

    seconds: float
    cold: bool


class Stopwatch:
    """Measures gaps between forwards in processor time, which other programs do not change.

    Args:
        every: each ``every``-th gap begins with empty caches; 0 never empties them.
    """

    def __init__(self, every: int) -> None:
        self._every, self._gaps = every, 0
        self._memory = _memory(FLUSHED if every else 0)
        self.open()

    def open(self) -> None:
        """Begin a request.

        ``gaps`` then gets its gaps, and ``apart`` the seconds of networks in each gap.
        """
        self.gaps: list[Gap] = []
        self.apart: list[float] = []
        self._networks = 0.0
        self._since: float | None = None
        self._cold = False

    def forward_begins(self) -> None:
        if self._since is not None:
            self.gaps.append(Gap(time.thread_time() - self._since, self._cold))
            self.apart.append(self._networks)
        self._networks = 0.0

    def network(self, run: Callable[[], T]) -> T:
        """Run a network of the backend with cold caches, as after a real forward.

        The network's wall time is kept apart, and does not count for the gap.
        """
        before = time.thread_time()
        self._memory.sum()
        started = time.perf_counter()
        made = run()
        self._networks += time.perf_counter() - started
        if self._since is not None:
            self._since += time.thread_time() - before
        return made

    def forward_ends(self) -> None:
        self._gaps += 1
        self._cold = self._every > 0 and self._gaps % self._every == 0
        if self._cold:
            self._memory.sum()
        self._since = time.thread_time()


@cache
def _memory(size: int) -> NDArray[np.float32]:
    return np.ones(size // 4, np.float32)


def slowdown(gaps: Iterable[Gap]) -> float:
    """Return the mean time of gaps with empty caches over that of others; 1 without both."""
    gaps = list(gaps)
    cold, warm = ([gap.seconds for gap in gaps if gap.cold is kind] for kind in (True, False))
    return float(np.mean(cold) / np.mean(warm)) if cold and warm else 1.0


def cold_seconds(gaps: Iterable[Gap], slower: float) -> float:
    """Return the seconds that ``gaps`` would take if all had begun with empty caches."""
    return sum(gap.seconds if gap.cold else slower * gap.seconds for gap in gaps)
