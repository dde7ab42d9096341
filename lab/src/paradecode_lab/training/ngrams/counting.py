"""Counts what follows n-grams in a corpus, and keeps the entries that pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.ngram_table import (
    BUCKET_SHIFT,
    BUCKETS,
    LEAST,
    MIX,
    MOST_VOCABULARY,
    ORDER,
    ORDER_BUCKETS,
    RANKS,
    SHARES,
    NgramTable,
    Numbers,
)

PIECE = 256
"""Tokens of a piece; longer texts are cut into pieces."""
SET_ASIDE = 10
"""One piece in so many is not counted, to measure how often the counts are right."""


def count_ngrams(texts: Sequence[Sequence[int]], vocabulary: int, ranks: int = 1) -> NgramTable:
    """The table of a corpus.

    Args:
        texts: token ids of each text; n-grams do not reach over their ends.
        vocabulary: number of token ids; all ids are below it.
        ranks: the most tokens that are kept for a context.

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
    unpruned = _table([Ends.of(seen, size).entries(ranks) for size in _SIZES], (), vocabulary)
    priors = _right(unpruned, pieces[::SET_ASIDE])
    return _table(_worthwhile(pieces, priors, ranks), priors, vocabulary)


_SIZES = range(1, ORDER + 1)


@dataclass(frozen=True, eq=False)
class Ends:
    """All places of a corpus behind a context of one size.

    Attributes:
        size: number of tokens in a context.
        keys: uint32 [n], keys of the contexts.
        following: int64 [n], the token at each place.
        shorter: uint32 [n, size - 1], keys of the contexts of 1, 2, ... tokens there.
    """

    size: int
    keys: Numbers
    following: NDArray[np.int64]
    shorter: Numbers

    @classmethod
    def of(cls, pieces: Sequence[Sequence[int]], size: int) -> Ends:
        tokens = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
        places = np.concatenate([np.arange(len(piece)) for piece in pieces])
        ends = np.flatnonzero(places >= size)
        made = np.zeros(len(ends), np.uint64)
        keys = np.empty((len(ends), size), np.uint32)
        for back in range(1, size + 1):
            made = made * np.uint64(MIX) + tokens[ends - back].astype(np.uint64) + np.uint64(1)
            keys[:, back - 1] = (made * np.uint64(MIX)) >> np.uint64(32)
        return cls(size, keys[:, -1], tokens[ends], keys[:, :-1])

    def entries(self, ranks: int) -> Entries:
        """The ``ranks`` tokens that most often follow each context, if they are worth counting."""
        pair = np.lexsort((self.following, self.keys))
        keys, tokens = self.keys[pair], self.following[pair]
        first = np.flatnonzero(_news(keys) | _news(tokens))  # Of each pair of context and token.
        counts = np.diff(np.append(first, len(keys)))
        keys, tokens, places = keys[first], tokens[first], pair[first]
        order = np.lexsort((tokens, -counts, keys))
        keys, tokens, places, counts = keys[order], tokens[order], places[order], counts[order]
        begin = np.flatnonzero(_news(keys))
        group = np.cumsum(_news(keys)) - 1
        rank = np.arange(len(keys)) - begin[group]
        total = np.add.reduceat(counts, begin)[group] if len(keys) else counts
        # What was seen once is right half of the time.
        share = counts * SHARES // (total + 1)
        kept = (rank < ranks) & ((counts > 1) | (self.size <= 2))
        buckets = ((self.size - 1) * RANKS + np.minimum(rank, RANKS - 1)) * SHARES + share
        return Entries(keys[kept], tokens[kept], buckets[kept], self.shorter[places[kept]])


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries for one size of context, [n] each, in the order of a table; for ``shorter`` see
    :class:`Ends`."""

    keys: Numbers
    tokens: NDArray[np.int64]
    buckets: NDArray[np.int64]
    shorter: Numbers

    def find(self, keys: Numbers) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each key's first entry, and whether it has one."""
        place = np.searchsorted(self.keys, keys)
        there = place < len(self.keys)
        place[~there] = 0
        if len(self.keys):
            there &= self.keys[place] == keys
        return place, there

    def where(self, kept: NDArray[np.bool_]) -> Entries:
        return Entries(self.keys[kept], self.tokens[kept], self.buckets[kept], self.shorter[kept])


def _news(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where a sorted array has another value than at the place before."""
    return np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]


def _table(entries: Sequence[Entries], priors: tuple[float, ...], vocabulary: int) -> NgramTable:
    keys, tokens, buckets = (
        np.concatenate([getattr(each, name) for each in entries])
        for name in ("keys", "tokens", "buckets")
    )
    order = np.argsort(keys, kind="stable")
    values = tokens + (buckets << BUCKET_SHIFT)
    return NgramTable(keys[order], values[order].astype(np.uint32), priors, vocabulary)


def _right(table: NgramTable, texts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """How often the tokens of each bucket are right in these texts, where no longer context has
    an entry."""
    right, tried = np.zeros((2, BUCKETS))
    for text in texts:
        for end in range(1, len(text)):
            size = -1
            for token, bucket in table.known(tuple(text[max(0, end - ORDER) : end])):
                if size not in (-1, bucket // ORDER_BUCKETS):
                    break
                size = bucket // ORDER_BUCKETS
                tried[bucket] += 1
                right[bucket] += token == text[end]
    assumed = (np.arange(BUCKETS) % SHARES + 0.5) / SHARES
    return tuple(((right + 4 * assumed) / (tried + 4)).tolist())


def _worthwhile(
    pieces: Sequence[Sequence[int]], priors: Sequence[float], ranks: int
) -> list[Entries]:
    """Entries that are right often enough, and that add something to the shorter context behind
    them."""
    chances = np.array(priors)
    kept: list[Entries] = []
    for size in _SIZES:
        found = Ends.of(pieces, size).entries(ranks)
        chance = chances[found.buckets]
        heard, said, sure = np.zeros(len(chance), np.bool_), found.tokens.copy(), 0 * chance
        for other, keys in zip(reversed(kept), found.shorter.T[::-1]):  # The longest is heard.
            place, there = other.find(keys)
            new = there & ~heard
            said[new], sure[new] = other.tokens[place[new]], chances[other.buckets[place[new]]]
            heard |= there
        worth = (chance >= LEAST) | heard
        worth &= ~heard | (said != found.tokens) | (chance > sure + 0.1)
        # Without the likeliest token of a context the others are those of the shorter one.
        begin = _news(found.keys)
        worth = np.where(begin, worth, worth[begin][np.cumsum(begin) - 1] & (chance >= LEAST))
        kept.append(found.where(worth))
    return kept
