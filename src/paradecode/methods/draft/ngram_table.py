"""A table of what follows an n-gram in a corpus: the static cache of n-gram lookup.

For each context of up to ORDER tokens that pays, the token that followed most often, and the bucket
of evidence it falls into; how often tokens of a bucket are right was counted on texts that the
counts had not seen. A file is never trusted: it is checked when it is loaded, and what it proposes
is verified like any draft.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.tensor_file import load, save
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.read_once import read_once
from paradecode.methods.trained import size_in

FIELD = "prompt-lookup.table"
KIND = "ngram table 1"
ORDER = 4
SHARES = 10
"""Buckets of an order: tenths of the share that the best token has of a context's occurrences."""
MIX, OCCURS = 0x9E3779B97F4A7C15, 1 << 20
"""Of the hash of a context: its multiplier, and how many of its values are told apart at once."""
PIECE = 256
"""Longer texts are cut into pieces of so many tokens."""
SET_ASIDE = 10
"""One piece in this many is kept from the counts, to see how often they are right."""
LEAST = 0.05
"""A token that is right more seldom is not worth an entry, nor a draft that ends in it a row."""
TABLES = Path(__file__).parent / "tables"
"""Tables that come with the package, each under the name of its model."""
MOST_VOCABULARY = 1 << 24  # Files hold float32, which counts to here.

Context = tuple[int, ...]
Entries = dict[Context, tuple[int, int]]
"""Context of 1 to ORDER tokens -> (the next token, its bucket)."""


@dataclass(frozen=True, eq=False)
class NgramTable:
    """What most often follows.

    Attributes:
        rows: int32 [n, size + 2] for each size of a context from 1 to ORDER: it, the token that
            follows, and its bucket.
        priors: for each of ORDER * SHARES buckets, how often its tokens were right.
        vocabulary: token ids are below this.
    """

    rows: list[NDArray[np.int32]]
    priors: tuple[float, ...]
    vocabulary: int

    @cached_property
    def _hashed(self) -> tuple[bytearray, list[array[int]], list[NDArray[np.int32]]]:
        """Which hashes occur (by their last bits), and for each size all of them in order, with
        their rows. A dict of tuples would take ten times the memory.
        """
        occurs = np.zeros(OCCURS, np.uint8)
        hashes, ordered = [], []
        for rows in self.rows:
            made = np.zeros(len(rows), np.uint64)
            for column in rows[:, -3::-1].T.astype(np.uint64):
                made = made * np.uint64(MIX) + column + np.uint64(1)
            occurs[made % np.uint64(OCCURS)] = 1
            order = np.argsort(made)
            hashes.append(array("Q", made[order].tobytes()))
            ordered.append(rows[order])
        return bytearray(occurs), hashes, ordered

    def after(self, context: Context) -> tuple[int, int] | None:
        """The likeliest token behind ``context`` and its bucket, by the longest end it knows."""
        occurs, hashes, rows = self._hashed
        endings, made = [], 0
        for token in context[: -ORDER - 1 : -1]:  # The last one first: longer ones go on from it.
            made = (made * MIX + token + 1) % (1 << 64)
            endings.append(made)
        for size in range(len(endings), 0, -1):
            made = endings[size - 1]
            if not occurs[made % OCCURS]:
                continue
            place = bisect_left(hashes[size - 1], made)
            while place < len(hashes[size - 1]) and hashes[size - 1][place] == made:
                *found, token, bucket = rows[size - 1][place].tolist()
                if tuple(found) == context[-size:]:
                    return token, bucket
                place += 1
        return None

    def save(self, path: str | PathLike[str]) -> None:
        """Write one file; raises InvalidInput if that cannot be done."""
        tensors = {"priors": np.array(self.priors)}
        for size, rows in enumerate(self.rows, 1):
            tensors[str(size)] = rows[np.lexsort(rows.T[::-1])]
        save(path, KIND, {"vocabulary": self.vocabulary}, tensors)


def count_ngrams(texts: Sequence[Sequence[int]], vocabulary: int) -> NgramTable:
    """The table of a corpus.

    Args:
        texts: token ids of each text; n-grams do not reach over their ends.
        vocabulary: all ids are below this.

    Raises:
        InvalidInput: for fewer than SET_ASIDE pieces of text, or ids above the vocabulary.
    """
    pieces = [text[i : i + PIECE] for text in texts for i in range(0, len(text), PIECE)]
    if len(pieces) < SET_ASIDE:
        fix = f"give at least {SET_ASIDE}, or longer ones: some check the others"
        raise InvalidInput("texts", len(texts), fix)
    if not 0 < vocabulary <= MOST_VOCABULARY:
        raise InvalidInput("vocabulary", vocabulary, f"give 1 to {MOST_VOCABULARY}")
    if any(not 0 <= token < vocabulary for piece in pieces for token in piece):
        raise InvalidInput("texts", "a token id", f"ids go up to {vocabulary - 1}")
    seen = [piece for index, piece in enumerate(pieces) if index % SET_ASIDE]
    known = NgramTable(_rows(_entries(seen)), (), vocabulary)
    priors = _right(known, pieces[::SET_ASIDE])
    return NgramTable(_rows(_worthwhile(_entries(pieces), priors)), priors, vocabulary)


def _rows(entries: Entries) -> list[NDArray[np.int32]]:
    sizes: list[list[int]] = [[] for _ in range(ORDER)]
    for context, entry in entries.items():
        sizes[len(context) - 1] += (*context, *entry)
    return [
        np.fromiter(values, np.int32, len(values)).reshape(-1, size + 2)
        for size, values in enumerate(sizes, 1)
    ]


def _entries(texts: Sequence[Sequence[int]]) -> Entries:
    followers: dict[Context, Counter[int]] = defaultdict(Counter)
    for text in texts:
        for end in range(1, len(text)):
            for size in range(1, min(ORDER, end) + 1):
                followers[tuple(text[end - size : end])][text[end]] += 1
    entries = {}
    for context, counts in followers.items():
        token, most = min(counts.items(), key=lambda item: (-item[1], item[0]))
        share = most / (counts.total() + 1)  # What was seen once is right half of the time.
        if most > 1 or len(context) <= 2:
            entries[context] = token, (len(context) - 1) * SHARES + int(share * SHARES)
    return entries


def _right(table: NgramTable, texts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """How often each bucket's tokens are what these texts say."""
    right, tried = np.zeros((2, ORDER * SHARES))
    for text in texts:
        for end in range(1, len(text)):
            found = table.after(tuple(text[max(0, end - ORDER) : end]))
            if found is not None:
                tried[found[1]] += 1
                right[found[1]] += found[0] == text[end]
    assumed = (np.arange(ORDER * SHARES) % SHARES + 0.5) / SHARES
    return tuple(((right + 4 * assumed) / (tried + 4)).tolist())


def _worthwhile(entries: Entries, priors: Sequence[float]) -> Entries:
    """Entries that are right often enough, and say more than the shorter context behind them."""
    kept: Entries = {}
    for context in sorted(entries, key=len):
        token, bucket = entries[context]
        known = next((kept[context[i:]] for i in range(1, len(context)) if context[i:] in kept),
                     None)  # fmt: skip
        says_more = known is None or known[0] != token or priors[bucket] > priors[known[1]] + 0.1
        if (priors[bucket] >= LEAST or known is not None) and says_more:
            kept[context] = token, bucket
    return kept


def packaged(model: str) -> bool:
    """Whether the package has a table for the model of this name."""
    return model in {file.stem for file in TABLES.glob("*.ngrams")}


def load_ngrams(path: str) -> NgramTable:
    """The table at ``path``, or of the model of that name, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or of another kind.
    """
    if packaged(path):
        path = str(TABLES / f"{path}.ngrams")
    return _loaded(path)


@read_once(FIELD)
def _loaded(path: str) -> NgramTable:
    facts, tensors = load(path, KIND, FIELD)
    vocabulary = size_in(FIELD, path, facts, "vocabulary", MOST_VOCABULARY)
    wanted = {"priors", *(str(size) for size in range(1, ORDER + 1))}
    priors = tensors.get("priors", np.empty(0))
    sound = set(tensors) == wanted and priors.shape == (ORDER * SHARES,)
    if not sound or priors.min() < 0 or priors.max() > 1:
        raise InvalidInput(FIELD, path, "it is no table of n-grams: make it again")
    kept = []
    for size in range(1, ORDER + 1):
        rows = tensors[str(size)]
        if rows.ndim != 2 or rows.shape[1] != size + 2 or (rows != np.floor(rows)).any():
            raise InvalidInput(FIELD, path, "its n-grams are damaged: make it again")
        tops = np.array([vocabulary] * (size + 1) + [ORDER * SHARES])
        if len(rows) and (rows.min() < 0 or (rows >= tops).any()):
            raise InvalidInput(FIELD, path, "it has ids that its vocabulary lacks: make it again")
        kept.append(np.ascontiguousarray(rows, np.int32))
    return NgramTable(kept, tuple(priors.tolist()), vocabulary)


@dataclass
class TableDrafts:
    """A table as one request uses it; its odds follow what is accepted there."""

    table: NgramTable
    odds: Odds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.odds = Odds(self.table.priors)

    def require(self, vocabulary: int) -> None:
        """Raise InvalidInput if the model has fewer tokens than the table."""
        if self.table.vocabulary > vocabulary:
            fix = f"it has ids up to {self.table.vocabulary - 1}, the model up to {vocabulary - 1}"
            raise InvalidInput("table", "a file", f"{fix}: make it with this model")

    def after(self, context: Context) -> tuple[int, float, int] | None:
        """The likeliest next token, how likely it is, and its bucket, a kind of ``odds``."""
        found = self.table.after(context)
        return None if found is None else (found[0], self.odds.of(found[1]), found[1])
