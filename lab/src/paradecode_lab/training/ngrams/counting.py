"""Count which tokens follow n-grams in a corpus, and keep the entries that help to draft."""

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
"""The most tokens of a piece. Longer texts are cut into pieces."""
SET_ASIDE = 10
"""One piece in this many is not counted at first. It measures how often the counts are right."""


def count_ngrams(texts: Sequence[Sequence[int]], vocabulary: int, ranks: int = 1) -> NgramTable:
    """Return the n-gram table of a corpus.

    Args:
        texts: token ids of each text; n-grams do not cross the ends of texts.
        vocabulary: number of token ids; all ids are below it.
        ranks: the most tokens that are kept for a context.

    Raises:
        InvalidInput: for fewer than SET_ASIDE pieces of text, ids out of range, or a vocabulary
            that is too large.
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
    """All places of a corpus that follow a context of ``size`` tokens.

    Attributes:
        size: number of tokens in a context.
        keys: uint32 [n], hash keys of the contexts.
        following: int64 [n], the token at each place.
        shorter: uint32 [n, size - 1], hash keys of the last 1, 2, ... tokens of each context.
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
        """Return, for each context, the ``ranks`` tokens that follow it most often.

        Contexts of 3 or more tokens need at least two occurrences of the token.
        """
        pair = np.lexsort((self.following, self.keys))
        keys, tokens = self.keys[pair], self.following[pair]
        first = np.flatnonzero(_news(keys) | _news(tokens))  # Where each pair begins.
        counts = np.diff(np.append(first, len(keys)))
        keys, tokens, places = keys[first], tokens[first], pair[first]
        order = np.lexsort((tokens, -counts, keys))
        keys, tokens, places, counts = keys[order], tokens[order], places[order], counts[order]
        begin = np.flatnonzero(_news(keys))
        group = np.cumsum(_news(keys)) - 1
        rank = np.arange(len(keys)) - begin[group]
        total = np.add.reduceat(counts, begin)[group] if len(keys) else counts
        # The 1 in the divisor gives the share one half to a context that was seen only once.
        share = counts * SHARES // (total + 1)
        kept = (rank < ranks) & ((counts > 1) | (self.size <= 2))
        buckets = ((self.size - 1) * RANKS + np.minimum(rank, RANKS - 1)) * SHARES + share
        return Entries(keys[kept], tokens[kept], buckets[kept], self.shorter[places[kept]])


@dataclass(frozen=True, eq=False)
class Entries:
    """Table entries for contexts of one size, each array with n elements in the table's order.

    For ``shorter``, see :class:`Ends`.
    """

    keys: Numbers
    tokens: NDArray[np.int64]
    buckets: NDArray[np.int64]
    shorter: Numbers

    def find(self, keys: Numbers) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the index of each key's first entry, and whether the key has an entry."""
        place = np.searchsorted(self.keys, keys)
        there = place < len(self.keys)
        place[~there] = 0
        if len(self.keys):
            there &= self.keys[place] == keys
        return place, there

    def where(self, kept: NDArray[np.bool_]) -> Entries:
        return Entries(self.keys[kept], self.tokens[kept], self.buckets[kept], self.shorter[kept])


def _news(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return where a sorted array differs from the element before; the first element counts."""
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
    """Measure how often the tokens of each bucket are right in these texts.

    A bucket holds entries of equal context size, rank, and share of the context's counts. Only the
    longest context that has an entry counts at each place.
    """
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
    """Return entries that are right often enough, and that differ from their shorter context.

    Args:
        priors: for each bucket, how often its tokens are right.
    """
    chances = np.array(priors)
    kept: list[Entries] = []
    for size in _SIZES:
        found = Ends.of(pieces, size).entries(ranks)
        chance = chances[found.buckets]
        heard, said, sure = np.zeros(len(chance), np.bool_), found.tokens.copy(), 0 * chance
        for other, keys in zip(reversed(kept), found.shorter.T[::-1]):  # The longest counts.
            place, there = other.find(keys)
            new = there & ~heard
            said[new], sure[new] = other.tokens[place[new]], chances[other.buckets[place[new]]]
            heard |= there
        worth = (chance >= LEAST) | heard
        worth &= ~heard | (said != found.tokens) | (chance > sure + 0.1)
        # If a context's most likely token is left out, its other tokens repeat the shorter context.
        begin = _news(found.keys)
        worth = np.where(begin, worth, worth[begin][np.cumsum(begin) - 1] & (chance >= LEAST))
        kept.append(found.where(worth))
    return kept
