"""REST and RASD: retrieve drafts from a corpus by exact match of the longest suffix."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import field
from os import PathLike, fspath, stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import text_in
from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput, reason
from paradecode.core.tree import ROOT, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.history import BREAK, continuations, following, occurrences, plant
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import choice, local_path, make, parameter
from paradecode.methods.trained import read_once

MAGIC = b"PDSTORE1"
HEADER = struct.Struct("<8sQQ8x")
"""Format of the file's header: magic, number of tokens, vocabulary size, padded to 32 bytes."""

CONTEXT = 16
"""Number of preceding tokens by which positions are sorted: the longest match that can be found."""

MOST_TOKENS = 1 << 31
MOST_BYTES = 1 << 34
"""The most bytes of one text file. Its tokens stay in memory until the datastore is written."""


def build_datastore(
    paths: Sequence[str | PathLike[str]],
    encode: Callable[[str], Sequence[int]],
    output: str | PathLike[str],
) -> int:
    """Write a datastore of text files, and return its number of tokens.

    Args:
        paths: UTF-8 text files, one document each.
        encode: function from text to token ids, with the tokenizer of the model that will decode.
        output: the file to write.

    Raises:
        InvalidInput: if a file cannot be read, or there is no text at all.
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
    """Return the token ids of text files; raise InvalidInput for a file that cannot be read."""
    texts = (text_in(Path(path), "paths", MOST_BYTES) for path in paths)
    return [list(encode(text)) for text in texts]


def order_by_context(tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return int64 [n]: positions sorted by the CONTEXT tokens that end there, read backwards.

    This is prefix doubling (Manber and Myers 1993) on the reversed text, stopped at CONTEXT tokens.
    """
    count, size = len(tokens), 1
    _, rank = np.unique(tokens, return_inverse=True)
    rank = rank.astype(np.int64).reshape(count)
    while size < CONTEXT:
        before = np.zeros(count, np.int64)  # 0 is no token; it sorts first.
        before[size:] = rank[:-size] + 1
        _, rank = np.unique(rank * (count + 1) + before, return_inverse=True)
        rank, size = rank.astype(np.int64).reshape(count), 2 * size
    return np.argsort(rank, kind="stable")


class Datastore:
    """A corpus on disk in which the longest match of a context is found in microseconds.

    The file holds the corpus' tokens and the order of its positions by *reversed* context.
    Positions with equal preceding tokens are neighbours in that order, so one binary search finds
    the longest context that occurs, and all its continuations.

    :func:`build_datastore` writes the file, which is mapped into memory, read only. The file is
    never trusted: a damaged one is refused, and its proposals are verified like any draft.

    Raises:
        InvalidInput: if the file is missing, damaged or of another format.
    """

    def __init__(self, path: str) -> None:
        try:
            size = stat(path).st_size
            with open(path, "rb") as file:
                head = file.read(HEADER.size)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                "datastore", path, f"give a readable file ({reason(error)})"
            ) from None
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
        """Find the positions where the longest suffix of ``tail`` in the corpus occurs.

        Args:
            longest, shortest: the most and the least matching tokens.
            most: the most positions that are returned. If there are more, the returned ones are
                evenly spread over them.

        Returns:
            Positions of the tokens that follow, int64 [h], and the number of matching tokens (0:
                none).
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
        """Return backwards the ``size`` tokens up to the position at index ``place`` of the
        order.
        """
        end = int(self.order[place]) + 1
        return self.tokens[max(0, end - size) : end][::-1].tolist()


def _agree(a: list[int], b: list[int]) -> int:
    for count, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return count
    return min(len(a), len(b))


@read_once("datastore")
def open_datastore(path: str) -> Datastore:
    """Return the datastore at ``path``, opened and checked once for all requests."""
    return Datastore(path)


@drafter(
    "retrieval",
    paper="REST: Retrieval-Based Speculative Decoding",
    arxiv="2311.08252",
    aliases=("rest",),
    names={
        "datastore_path": "datastore",
        "num_draft": "num_speculative_tokens",
        "max_span": "max_ngram",
        "min_span": "min_ngram",
    },
)
class Retrieval(ModelFree):
    """Draft what most often follows the longest match in a corpus of texts (He 2024).

    ``datastore`` is a file made by ``paradecode datastore``. If the corpus does not contain the
    last tokens, or no datastore is given, the request's own text is searched in the same way. A
    datastore of another tokenizer is refused.

    When: answers repeat a body of text that you have: manuals, code, boilerplate, earlier answers.
    """

    group = "copying"
    needs = Needs(rests=True)

    datastore: str = local_path("file made by `paradecode datastore`; empty for the text itself")
    max_ngram: int = parameter(CONTEXT, 1, CONTEXT, "longest suffix that is looked up")
    min_ngram: int = parameter(2, 1, CONTEXT, "shortest suffix that is looked up")
    hits: int = parameter(256, 1, 5000, "number of occurrences that are counted")
    depth: int = parameter(10, 1, 64, "most draft tokens on a path")
    _store: Datastore | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("retrieval.min_ngram", self.min_ngram, "give at most max_ngram")
        if self.datastore:
            self._store = open_datastore(self.datastore)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        tokens, matched = seq.tokens, 0
        if self._store is not None:
            vocabulary = seq.about().vocab_size
            if self._store.vocabulary > vocabulary:
                raise InvalidInput(
                    "retrieval.datastore", self.datastore,
                    f"it has token ids up to {self._store.vocabulary - 1}, the model up to "
                    f"{vocabulary - 1}: build it with this model's tokenizer",
                )  # fmt: skip
            starts, matched = self._store.find(tokens, self.max_ngram, self.min_ngram, self.hits)
            text = self._store.tokens
        if matched == 0:
            text = tokens
            starts, lengths = occurrences(text, tokens, self.max_ngram, self.hits)
            matched = int(lengths.max(initial=0))
            starts = starts[lengths == matched][::-1]
        if matched >= self.min_ngram:
            rows = following(text, starts, min(self.depth, limit))
            plant(draft, continuations(rows, limit), matched)


# RASD: retrieved drafts, pruned by a drafter's guesses and fused with its own tree.

PARTNERS = ("token-recycling", "aded", "stand", "suffix", "draft-model")


@drafter(
    "rasd",
    paper="RASD: Retrieval-Augmented Speculative Decoding",
    arxiv="2503.03434",
    aliases=("retrieval-augmented",),
)
class Rasd(Fused):
    """Fuse retrieved text with a drafter's tree where both begin with the same token (Quan 2025).

    A retrieved path stays if the drafter proposes its first token too, or if the drafter proposes
    nothing. Common beginnings become one path, and the best nodes of all are verified.

    The paper's drafter is EAGLE-2, which always runs. Here ``drafter=draft-model`` runs a small
    model only where the budget finds it worth its time in addition to the retrieved text. With a
    draft head there is no pruning: ``retrieval+eagle(head=FOLDER)``.

    When: a datastore fits some of the answers, and a drafter shall fill in elsewhere. Where it fits
    most of them, ``retrieval`` alone costs less.
    """

    datastore: str = local_path("file made by `paradecode datastore`; empty for the text itself")
    drafter: str = choice("token-recycling", PARTNERS, "how drafts are pruned and joined")

    def __init__(self, datastore: str = "", drafter: str = "token-recycling") -> None:
        self.datastore, self.drafter = datastore, drafter
        super().__init__([Retrieval(datastore=datastore), make("drafter", drafter)])

    def join(self, drafts: Sequence[TokenTree], limit: int) -> TokenTree:
        retrieved, drafted = drafts
        if len(drafted):
            roots = retrieved.parents == ROOT
            known = np.isin(retrieved.tokens, drafted.tokens[drafted.parents == ROOT])
            retrieved = retrieved.select(~roots | known)
        return merge([drafted, retrieved]).best(limit)
