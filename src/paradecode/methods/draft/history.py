"""Finds earlier occurrences of a text's last tokens, and the tokens that came after them."""

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
"""Token id that separates texts which are stored one after another."""

_LENGTHS = (2, 3, 4, 8, 16)
_SHARES = (0.5, 0.9)

Branch = tuple[int, int, float]
"""A node of a tree of continuations: parent, token, and its share of the parent's occurrences."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """A dictionary of at most ``most`` entries that drops the entry which was put longest ago.

    Attributes:
        entry_bytes: bytes that one entry takes in CPython.
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
    """Return the kind of evidence, 0 to 17, for a copied token.

    There are six classes of ``matched``, the number of tokens that match before the copy. The
    classes begin at 1 and at the numbers in ``_LENGTHS``. Each has three classes of ``share``, the
    share of earlier occurrences that continue with this token; their bounds are ``_SHARES``.
    """
    return 3 * bisect_right(_LENGTHS, matched) + bisect_right(_SHARES, share)


def occurrences(
    text: NDArray[np.int32], tail: NDArray[np.int32], longest: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find earlier positions in ``text`` where the end of ``tail`` occurs.

    Each call compares the whole text once; nothing is stored between calls.

    Args:
        longest: the most tokens that are compared at a position.
        most: the most occurrences that are considered. If there are more, only the latest ones are.

    Returns:
        Positions in ``text`` of the token after each occurrence, int64 [h], ascending. Second,
            int64 [h]: the number of tokens before that position that equal the end of ``tail``, 1
            to ``longest``.
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
    """Return the tokens from each start on, int32 [h, depth], with BREAK after the text's end."""
    places = starts[:, None] + np.arange(depth)
    return np.where(places < len(text), text[np.minimum(places, len(text) - 1)], BREAK)


def continuations(rows: NDArray[np.int32], limit: int) -> list[Branch]:
    """Return the ``limit`` most frequent beginnings of ``rows`` as a tree, most frequent first.

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
    """Return the expected number of accepted tokens, with shares as acceptance probabilities."""
    reach: list[float] = []
    for parent, _, share in branches:
        reach.append(share if parent == ROOT else share * reach[parent])
    return sum(reach)


def plant(draft: RatedTree, branches: list[Branch], matched: int) -> None:
    """Add the branches to an empty draft, with kinds of evidence from :func:`evidence`.

    ``matched`` is the number of tokens that match before the first drafted token.
    """
    depths: list[int] = []
    for parent, token, share in branches:
        depths.append(1 + depths[parent] if parent != ROOT else 0)
        # If its parent is right, one more token matches.
        draft.rate(parent, token, evidence(matched + depths[-1], share))
