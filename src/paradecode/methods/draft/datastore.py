"""A corpus on disk in which the longest match of a context is found in microseconds.

The file is the corpus' tokens and the order of its positions by *reversed* context: positions whose
preceding tokens agree stand together, so one binary search finds the longest context that occurs,
and everything that followed it. It is built once and mapped into memory. It is never trusted: a
damaged file is refused, and its proposals are verified like any draft.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from os import PathLike, fspath, stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.history import BREAK
from paradecode.methods.trained import read_once

MAGIC = b"PDSTORE1"
HEADER = struct.Struct("<8sQQ8x")
"""Magic, number of tokens, vocabulary size; padded to 32 bytes."""

CONTEXT = 16
"""Tokens of context by which positions are ordered: the longest match that can be found."""

MOST_TOKENS = 1 << 31


def build_datastore(
    paths: Sequence[str | PathLike[str]],
    encode: Callable[[str], Sequence[int]],
    output: str | PathLike[str],
) -> int:
    """Make a datastore of text files; returns how many tokens it holds.

    Args:
        paths: UTF-8 text files, one document each.
        encode: text -> token ids, with the tokenizer of the model that will be decoded.
        output: the file to write.

    Raises:
        InvalidInput: for a file that cannot be read, or if there is no text at all.
    """
    pieces: list[NDArray[np.int32]] = []
    for text in read_texts(paths, encode):
        pieces += [np.array(text, np.int32), np.array([BREAK], np.int32)]
    tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    if len(tokens) == len(paths):
        raise InvalidInput("paths", [fspath(path) for path in paths], "give files with text")
    if len(tokens) >= MOST_TOKENS:
        raise InvalidInput("paths", len(tokens), f"give less than {MOST_TOKENS} tokens")
    order = order_by_context(tokens)
    with open(output, "wb") as file:
        file.write(HEADER.pack(MAGIC, len(tokens), int(tokens.max()) + 1))
        file.write(tokens.astype("<i4").tobytes())
        file.write(order.astype("<u4").tobytes())
    return int((tokens != BREAK).sum())


def read_texts(
    paths: Sequence[str | PathLike[str]], encode: Callable[[str], Sequence[int]]
) -> list[list[int]]:
    """Token ids of text files; raises InvalidInput for one that cannot be read."""
    texts = []
    for path in paths:
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput("paths", fspath(path), f"give UTF-8 text files ({error})") from None
        texts.append(list(encode(text)))
    return texts


def order_by_context(tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [n]: positions sorted by the CONTEXT tokens up to and including them, read backwards.

    Prefix doubling (Manber and Myers 1993) on the reversed text, stopped at CONTEXT tokens.
    """
    count, size = len(tokens), 1
    _, rank = np.unique(tokens, return_inverse=True)
    rank = rank.astype(np.int64).reshape(count)
    while size < CONTEXT:
        before = np.zeros(count, np.int64)  # Nothing comes before any token.
        before[size:] = rank[:-size] + 1
        _, rank = np.unique(rank * (count + 1) + before, return_inverse=True)
        rank, size = rank.astype(np.int64).reshape(count), 2 * size
    return np.argsort(rank, kind="stable")


class Datastore:
    """A file made by :func:`build_datastore`, mapped into memory; read only.

    Raises:
        InvalidInput: for a file that is missing, damaged or of another kind.
    """

    def __init__(self, path: str) -> None:
        try:
            size = stat(path).st_size
            with open(path, "rb") as file:
                head = file.read(HEADER.size)
        except (OSError, ValueError) as error:
            raise InvalidInput("datastore", path, f"give a readable file ({error})") from None
        if len(head) < HEADER.size or head[:8] != MAGIC:
            raise InvalidInput("datastore", path, "give a file made by build_datastore")
        _, count, self.vocabulary = HEADER.unpack(head)
        if not 0 < count < MOST_TOKENS or size != HEADER.size + 8 * count:
            raise InvalidInput("datastore", path, "the file is damaged: build it again")
        self.tokens: NDArray[np.int32] = np.memmap(path, "<i4", "r", HEADER.size, (count,))
        self.order: NDArray[np.uint32] = np.memmap(
            path, "<u4", "r", HEADER.size + 4 * count, (count,)
        )
        inside = self.tokens.min() >= BREAK and self.tokens.max() < self.vocabulary
        if not inside or self.order.max() >= count:
            raise InvalidInput("datastore", path, "the file is damaged: build it again")

    def __len__(self) -> int:
        return len(self.tokens)

    def find(
        self, tail: NDArray[np.int32], longest: int, shortest: int, most: int
    ) -> tuple[NDArray[np.int64], int]:
        """The places where the longest end of ``tail`` occurs.

        Args:
            longest, shortest: bounds on the matching tokens.
            most: places that are returned; if there are more, these are evenly spread over them.

        Returns:
            int64 [h], positions of the tokens that follow; and how many tokens match (0: none).
        """
        wanted = tail[-min(longest, CONTEXT) :][::-1].tolist()
        places = range(len(self.order))
        near = bisect_left(places, wanted, key=lambda place: self._before(place, len(wanted)))
        matched = 0
        for place in (near - 1, near):
            if 0 <= place < len(places):
                matched = max(matched, _agree(wanted, self._before(place, len(wanted))))
        if matched < max(shortest, 1):
            return np.empty(0, np.int64), 0
        context = wanted[:matched]
        low = bisect_left(places, context, 0, near, key=lambda p: self._before(p, matched))
        high = bisect_right(places, context, near, key=lambda p: self._before(p, matched))
        chosen = np.linspace(low, high - 1, min(most, high - low)).astype(np.int64)
        return np.sort(self.order[chosen].astype(np.int64) + 1), matched

    def _before(self, place: int, size: int) -> list[int]:
        """The tokens up to the position at ``place`` of the order, read backwards."""
        end = int(self.order[place]) + 1
        return self.tokens[max(0, end - size) : end][::-1].tolist()


def _agree(a: list[int], b: list[int]) -> int:
    for count, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return count
    return min(len(a), len(b))


@read_once("datastore")
def open_datastore(path: str) -> Datastore:
    """The datastore at ``path``, opened and checked once for all requests."""
    return Datastore(path)
