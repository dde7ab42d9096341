"""A static table of the tokens that most often follow each n-gram in a corpus.

For each useful context of up to ORDER tokens, the table has the tokens that followed most often.
Each token has a bucket, which says how strong its evidence is. The acceptance rate of each bucket
was counted on other texts.

A file is never trusted: it is checked when it is loaded, and its proposals are verified like any
draft. Therefore a context is stored only as its hash, although one in many thousands is mistaken
for another.

The native core looks tokens up in the same way in ``csrc/ngram.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import is_number
from paradecode.core.errors import InvalidInput
from paradecode.core.installed import DATA, DATA_FIX, places
from paradecode.core.tensor_file import load, save
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.trained import read_once, size_in

FIELD = "table"
KIND = "ngram table 2"
ORDER = 4
RANKS = 3
"""Number of ranks with buckets of their own. Later tokens of a context share the last bucket."""
MOST_RANKS = 12
"""The most tokens stored for one context: the most probable one, and alternatives for a tree."""
SHARES = 10
"""Number of buckets for each order and rank: one for each tenth of the share of occurrences."""
ORDER_BUCKETS = RANKS * SHARES
BUCKETS = ORDER * ORDER_BUCKETS
MIX = 0x9E3779B97F4A7C15
"""Multiplier of the hash of a context."""
LEAST = 0.05
"""The least acceptance probability with which a token is stored.

A draft ends before the token at which its own acceptance probability falls below this.
"""
TABLES = Path(__file__).parent / "tables"
"""Folder of the table that comes with the package, under the name of its model."""
BUCKET_SHIFT = 24
MOST_VOCABULARY = 1 << BUCKET_SHIFT

Context = tuple[int, ...]
Numbers = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class NgramTable:
    """A table of the tokens that most often follow each context.

    Attributes:
        keys: uint32 [n], ascending: the hash of each entry's context. Tokens of one context are
            neighbours, the most probable first.
        values: uint32 [n]: the next token in the low BUCKET_SHIFT bits, and its bucket above.
        priors: for each bucket, the share of its tokens that were right.
        vocabulary: number of token ids; all ids are below it.
    """

    keys: Numbers
    values: Numbers
    priors: tuple[float, ...]
    vocabulary: int

    @property
    def tokens(self) -> NDArray[np.integer]:
        """The distinct tokens that the table proposes, ascending."""
        return np.unique(self.values % MOST_VOCABULARY)

    @cached_property
    def _sorted(self) -> memoryview:
        return self.keys.data  # Its items are Python ints, which bisect compares faster.

    def known(self, context: Context) -> Iterator[tuple[int, int]]:
        """Yield the tokens stored after ``context``, with their buckets.

        Tokens after the context's longest stored suffix come first. For each suffix the most
        probable token comes first. A shorter suffix may repeat a token.
        """
        for key in reversed(keys_of(context)):
            place = bisect_left(self._sorted, key)
            while place < len(self._sorted) and self._sorted[place] == key:
                value = int(self.values[place])
                yield value % MOST_VOCABULARY, value >> BUCKET_SHIFT
                place += 1

    def after(self, context: Context) -> tuple[int, int] | None:
        """Return the most probable token after ``context`` and its bucket; None if none is stored.

        It is the token after the longest stored suffix of ``context``.
        """
        return next(self.known(context), None)

    def chances(self, context: Context) -> dict[int, float]:
        """Return tokens after the longest stored suffix of ``context``, with their probabilities.

        The most probable token comes first. Its probability is the acceptance rate of its bucket.
        """
        said = list(self.known(context))
        longest = [one for one in said if one[1] // ORDER_BUCKETS == said[0][1] // ORDER_BUCKETS]
        return {token: self.priors[bucket] for token, bucket in longest}

    def require(self, vocabulary: int) -> None:
        """Raise InvalidInput if the model has fewer token ids than the table."""
        if self.vocabulary > vocabulary:
            fix = f"it has ids up to {self.vocabulary - 1}, the model up to {vocabulary - 1}"
            raise InvalidInput("table", "a file", f"{fix}: make it with this model")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table to one file; raise InvalidInput if that fails."""
        facts = {"vocabulary": self.vocabulary, "priors": [round(p, 4) for p in self.priors]}
        save(path, KIND, facts, {"keys": self.keys, "values": self.values}, dtype="<u4")


def keys_of(context: Context) -> list[int]:
    """Return the keys of a context's last 1, 2, ... tokens, at most ORDER keys."""
    keys, made = [], 0
    for token in context[: -ORDER - 1 : -1]:  # The last token comes first.
        made = (made * MIX + token + 1) % (1 << 64)
        keys.append((made * MIX % (1 << 64)) >> 32)
    return keys


def packaged(model: str) -> str:
    """Return the name of the installed table for a model, or an empty string.

    Tables come with this package and with ``paradecode-data``. Files spell a model's name
    differently, so case, spaces, owner and the ending ``-GGUF`` are ignored.
    """
    name = model.rpartition("/")[2].lower().replace(" ", "-").removesuffix("-gguf")
    return name if _table_of(name) else ""


def _table_of(name: str) -> Path | None:
    file = f"{name}.ngrams"
    tables = [TABLES / file, *places(f"{DATA}/tables/{file}")]
    return next((table for table in tables if table.is_file()), None)


def load_ngrams(path: str) -> NgramTable:
    """Return the table at ``path``, or the installed table of that name. It is checked once.

    Raises:
        InvalidInput: if the file is missing, damaged or of another kind.
    """
    own = _table_of(path) if path and packaged(path) == path else None
    if own is None and path and not places(DATA) and not Path(path).exists():
        raise InvalidInput(FIELD, path, f"there is no such file; for tables of models {DATA_FIX}")
    return _loaded(str(own or path))


def said_tokens(path: str, vocabulary: int) -> NDArray[np.integer]:
    """Return the tokens that a table proposes, to which a draft model's vocabulary can be limited.

    Args:
        vocabulary: number of the target's token ids.

    Raises:
        InvalidInput: if the file is bad or the vocabulary is too small; the error names
            ``draft_vocabulary``.
    """
    try:
        table = load_ngrams(path)
        table.require(vocabulary)
    except InvalidInput as error:
        raise InvalidInput("draft_vocabulary", path, error.fix) from None
    return table.tokens


@read_once(FIELD)
def _loaded(path: str) -> NgramTable:
    facts, tensors = load(path, KIND, FIELD, dtype="<u4")
    vocabulary = size_in(FIELD, path, facts, "vocabulary", MOST_VOCABULARY)
    empty = np.empty(0, np.uint32)
    keys, values = tensors.get("keys", empty), tensors.get("values", empty)
    priors = facts.get("priors")
    sound = set(tensors) == {"keys", "values"} and keys.ndim == 1 and keys.shape == values.shape
    if not sound or not isinstance(priors, list) or len(priors) != BUCKETS:
        raise InvalidInput(FIELD, path, "it is no table of n-grams: make it again")
    if not all(is_number(prior) and 0 <= prior <= 1 for prior in priors):
        raise InvalidInput(FIELD, path, "its priors are damaged: make it again")
    if (keys[1:] < keys[:-1]).any() or (values >> BUCKET_SHIFT >= BUCKETS).any():
        raise InvalidInput(FIELD, path, "its n-grams are damaged: make it again")
    if (values % MOST_VOCABULARY >= vocabulary).any():
        raise InvalidInput(FIELD, path, "it has ids that its vocabulary lacks: make it again")
    return NgramTable(keys, values, tuple(map(float, priors)), vocabulary)


@dataclass
class TableDrafts:
    """Uses a table in one request, and adapts its acceptance estimates to that request."""

    table: NgramTable
    odds: Odds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.odds = Odds(self.table.priors)

    def after(self, context: Context) -> tuple[int, float, int] | None:
        """Return the most probable next token, its probability and its bucket, or None.

        The bucket is the token's kind of evidence in ``odds``.
        """
        found = self.table.after(context)
        return None if found is None else (found[0], self.odds.of(found[1]), found[1])
