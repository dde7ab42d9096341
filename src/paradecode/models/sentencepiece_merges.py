"""BPE merges of a SentencePiece vocabulary, which lists pieces with scores instead of merges.

SentencePiece joins the two neighbours whose union has the best score. Any two pieces whose union is
a piece make a merge, but BPE spells a piece in one way alone, so only one pair of each piece is
ever joined. Most other pairs are left out here, which saves half of the library's time.

All pieces of a length are handled at once, and a part of a piece is found by its hash. If two
hashes were equal by chance, the library would refuse the merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]
Hashes = NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15
_MOST = 1 << 20
"""Largest number of characters that are handled at once."""


def merges_of(pieces: Sequence[str], scores: NDArray[np.float64]) -> list[tuple[str, str]]:
    """Return merges in order of score, and of their parts' places in ``pieces`` for equal scores.

    Args:
        pieces: different texts of at least a character.
        scores: score of each piece; the best is joined first.
    """
    if not pieces:
        return []
    sizes = np.fromiter(map(len, pieces), np.int32, len(pieces))
    place = np.argsort(sizes, kind="stable").astype(np.int32)
    texts = [*map(pieces.__getitem__, place.tolist())]
    rank = np.unique(-scores[place], return_inverse=True)[1].astype(np.int32)
    whole, left, right = np.concatenate([*_pairs(texts, sizes[place], rank)], axis=1)
    order = np.lexsort((place[right], place[left], rank[whole]))
    lefts, rights = (map(texts.__getitem__, part[order].tolist()) for part in (left, right))
    return [*zip(lefts, rights)]


class _Index:
    """Finds pieces by their hashes."""

    def __init__(self, hashes: Hashes) -> None:
        bits = len(hashes).bit_length() + 4
        self.hashes, self.shift = hashes, np.uint64(64 - bits)
        self.slots = np.full(1 << bits, -1, np.int32)
        self.slots[hashes >> self.shift] = np.arange(len(hashes), dtype=np.int32)
        self.order = np.argsort(hashes)
        self.sorted = hashes[self.order]

    def find(self, asked: Hashes) -> Numbers:
        """Return the number of the piece with each hash, or -1."""
        found: Numbers = self.slots[asked >> self.shift]
        taken = np.nonzero((found >= 0) & (self.hashes[found] != asked))  # By another piece.
        at = np.minimum(np.searchsorted(self.sorted, asked[taken]), len(self.sorted) - 1)
        found[taken] = np.where(self.sorted[at] == asked[taken], self.order[at], -1)
        return found


def _pairs(texts: list[str], sizes: Numbers, rank: Numbers) -> Iterator[Numbers]:
    """Yield int32 [3, N]: numbers of pieces, and of the two parts that may be joined to each.

    Say that the left part of a pair is made after the right part, by joining its own parts ``one``
    and ``two``. Just before, ``one``, ``two`` and the right part are neighbours. If ``two`` and the
    right part have a better rank as a pair, or are a pair that is never joined, this moment does
    not come, and the whole pair is never joined. The same holds with the sides exchanged.

    Args:
        texts: the pieces, shortest first.
        sizes: their lengths.
        rank: their ranks; the lowest is joined first.
    """
    most = int(sizes[-1])
    power = np.cumprod(np.full(most, _BASE, np.uint64), dtype=np.uint64)
    back = np.cumprod(np.full(most, pow(_BASE, -1, 1 << 64), np.uint64), dtype=np.uint64)
    blocks = [*_blocks(sizes)]
    ends = [_beginnings(texts[a:b], power)[:, -1] for a, b in blocks]
    index = _Index(np.concatenate(ends))
    start = np.cumsum(sizes, dtype=np.int64) - sizes
    never = np.zeros(int(sizes.sum()), bool)  # At the place of each piece's cut.
    one, two = np.full((2, len(texts)), -1, np.int32)
    # Of two parts, the one with the worse rank on the way to it is made last. NaN is unknown.
    worst = np.where(sizes == 1, -1.0, np.nan)

    def sooner(joint: Numbers, cut: Numbers, made: Numbers) -> NDArray[np.bool_]:
        """Return whether a pair, which a cut divides, keeps pieces from being made."""
        return (joint >= 0) & ((rank[joint] < rank[made]) | never[start[joint] + cut])

    for a, b in blocks:
        hashes = _beginnings(texts[a:b], power)
        before = index.find(hashes[:, :-1])
        row, cut = np.nonzero(before >= 0)
        after = np.full_like(before, -1)
        after[row, cut] = index.find((hashes[row, -1] - hashes[row, cut]) * back[cut])
        row, cut = np.nonzero(after >= 0)
        whole, left, right = row + a, before[row, cut], after[row, cut]
        wrong = np.zeros(len(row), bool)
        late = np.flatnonzero(worst[left] > worst[right])
        made = left[late]
        joint = after[row[late], sizes[one[made]] - 1]
        wrong[late] = sooner(joint, sizes[two[made]], made)
        late = np.flatnonzero(worst[right] > worst[left])
        made, near = right[late], sizes[left[late]]
        joint = before[row[late], near + sizes[one[made]] - 1]
        wrong[late] = sooner(joint, near, made)
        never[start[whole[wrong]] + sizes[left[wrong]]] = True
        whole, left, right = np.array((whole, left, right), np.int32)[:, ~wrong]
        yield np.array((whole, left, right))
        alone = np.bincount(whole - a, minlength=b - a)[whole - a] == 1
        whole, left, right = whole[alone], left[alone], right[alone]
        one[whole], two[whole] = left, right
        worst[whole] = np.maximum(np.maximum(worst[left], worst[right]), rank[whole])


def _blocks(sizes: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the limits of ranges of pieces that have the same length."""
    limits = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
    for first, last in pairwise(limits):
        step = max(1, _MOST // int(sizes[first]))
        yield from ((at, min(at + step, last)) for at in range(first, last, step))


def _beginnings(texts: list[str], power: Hashes) -> Hashes:
    """Return the hashes of all beginnings of texts of the same length, uint64 [N, length].

    A hash is a polynomial of the characters, modulo 2**64.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4").reshape(len(texts), -1)
    return np.cumsum((codes + 1) * power[: codes.shape[1]], axis=1, dtype=np.uint64)
