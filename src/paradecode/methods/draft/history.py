"""Finds where the last tokens of a text occurred before, and what came after them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from heapq import heappop, heappush
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.tree import ROOT
from paradecode.methods.draft.model_free import RatedTree

BREAK = -1
"""Id that stands between texts that were joined."""

_LENGTHS = (2, 3, 4, 8, 16)
_SHARES = (0.5, 0.9)

Branch = tuple[int, int, float]
"""A node of a tree of continuations: parent, token, and share of the parent's occurrences."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """At most ``most`` entries; the one that was put there longest ago goes first.

    Attributes:
        entry_bytes: bytes that an entry takes in CPython.
    """

    entry_bytes: ClassVar[int] = 0

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @property
    def nbytes(self) -> int:
        return self.entry_bytes * len(self)

    def put(self, key: Key, value: Value) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)


def evidence(matched: int, share: float) -> int:
    """Kind of evidence, 0 to 17, by how many tokens match before the copy and how many copies
    agree.

    Three shares each for 1, 2, 3, 4 to 7, 8 to 15, and more matching tokens.
    """
    return 3 * bisect_right(_LENGTHS, matched) + bisect_right(_SHARES, share)


def occurrences(
    text: NDArray[np.int32], tail: NDArray[np.int32], longest: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Earlier places that read like the end of ``tail``.

    Each call compares the whole text once; nothing is kept between calls.

    Args:
        most: the most occurrences that are considered; if there are more, the latest ones.

    Returns:
        int64 [h], ascending: positions in ``text`` of the tokens that come next there; and
        int64 [h]: how many tokens before them equal the last ones of ``tail``, 1 to ``longest``.
    """
    if len(tail) == 0 or len(text) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = np.flatnonzero(text[:-1] == tail[-1])
    if len(last) > most and len(tail) > 1:
        pairs = last[text[np.maximum(last - 1, 0)] == tail[-2]]
        last = pairs if len(pairs) else last
    last = last[-most:]
    size = min(longest, len(tail))
    before = last[:, None] - np.arange(size)
    same = (text[np.maximum(before, 0)] == tail[::-1][:size]) & (before >= 0)
    matched = np.where(same.all(axis=1), size, same.argmin(axis=1))
    return last + 1, matched


def following(text: NDArray[np.int32], starts: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
    """int32 [h, depth]: the tokens from each start on, with BREAK past the end of the text."""
    places = starts[:, None] + np.arange(depth)
    return np.where(places < len(text), text[np.minimum(places, len(text) - 1)], BREAK)


def continuations(rows: NDArray[np.int32], limit: int) -> list[Branch]:
    """The tree of the ``limit`` most frequent beginnings of ``rows``, the most frequent first.

    Args:
        rows: int32 [h, depth]; a row ends at BREAK. If two tokens are equally frequent, the one in
            the earlier row wins.
    """
    found: list[Branch] = []
    heap: list[tuple[int, int, int, int, float, list[int], int]] = []
    pushed = 0

    def push(parent: int, members: list[int], depth: int) -> None:
        nonlocal pushed
        if depth == rows.shape[1]:
            return
        column = rows[members, depth].tolist()
        for token, count in Counter(column).most_common():
            if token == BREAK:
                continue
            inside = [m for m, other in zip(members, column, strict=True) if other == token]
            heappush(heap, (-count, pushed, parent, token, count / len(members), inside, depth + 1))
            pushed += 1

    push(ROOT, list(range(len(rows))), 0)
    while heap and len(found) < limit:
        _, _, parent, token, share, members, depth = heappop(heap)
        found.append((parent, token, share))
        push(len(found) - 1, members, depth)
    return found


def expected(branches: list[Branch]) -> float:
    """Expected number of accepted tokens, if the counts are taken for probabilities."""
    reach: list[float] = []
    for parent, _, share in branches:
        reach.append(share if parent == ROOT else share * reach[parent])
    return sum(reach)


def plant(draft: RatedTree, branches: list[Branch], matched: int) -> None:
    """Add the branches to an empty draft whose kinds are those of :func:`evidence`."""
    depths: list[int] = []
    for parent, token, share in branches:
        depths.append(1 + depths[parent] if parent != ROOT else 0)
        # Given that its parent was right, one token more agrees.
        draft.rate(parent, token, evidence(matched + depths[-1], share))
