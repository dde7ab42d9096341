"""A model made of hashes: an error in what a row sees almost certainly changes its logits.

It has the parts of a transformer (embedding, layers that store one value per slot and position,
visibility, a residual stream, a head), but "attention" is a sum of 64-bit hashes. So a wrong mask,
slot, position, page, copy or layer almost certainly gives other logits, while those of a real model
might hardly change. It is also a hundred times faster.

A layer's attention adds the visible values to the stream. Its MLP mixes the bits of the stream, in
the same way in every layer.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Span, SpanResult, check_spans, windows_of
from paradecode.core.layers import halves
from paradecode.core.logits import ArrayLogits
from paradecode.core.network import Array, Item, Network
from paradecode.core.noise import GOLDEN, mixed
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.parts import Feed, Layer
from paradecode.testing.network_reference import apply_network

Hashes = NDArray[np.uint64]
WIDTH = 5
"""Hidden size: four 16-bit pieces of the hash, and the token id. All are exact in float32."""
_ADDED = np.uint64(GOLDEN)
_PIECES = np.array([0, 16, 32, 48], np.uint64)


def toy_config(
    vocab_size: int = 29,
    context_length: int = 160,
    attention: str = "causal",
    block_length: int = 0,
    shift: bool = False,
    masked: bool = False,
    windows: tuple[int, int] = (0, 0),
) -> ModelConfig:
    """Return the config of a toy model, whose two layers have sliding ``windows``.

    If it is not causal, or if it is ``masked``, its last token is the mask token.
    """
    config = uniform(
        name="toy",
        architecture="toy",
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        layers=2,
        heads=1,
        kv_heads=1,
        head_dim=2,
        intermediate_size=1,
        context_length=context_length,
        rope=Rope(dim=2),
        attention=attention,
        block_length=block_length,
        mask_token=vocab_size - 1 if masked or attention != "causal" else None,
        shift=shift,
        eos_tokens=(3,),
    )
    first, feed = next(config.attentions())[1], Feed(1)
    stack = [Layer((replace(first, window=window), feed)) for window in windows]
    return replace(config, stack=tuple(stack))


class ToyBackend:
    """Implements :class:`paradecode.backends.interface.Backend` in NumPy, without weights.

    Its attention weights are hashes of a row and of what the row sees.

    Args:
        config: a config of :func:`toy_config`.
        seed: seed of the hashes. Models with different seeds agree on most tokens (see
            :meth:`head`), so one can draft for the other.
        surprise: in how many of 1024 cases the next token is not the usual successor of the last
            one.
    """

    gives_attention = True

    def __init__(
        self, config: ModelConfig | None = None, seed: int = 0, surprise: int = 200
    ) -> None:
        self.name = "toy"
        self.config = config or toy_config()
        self.seed, self.surprise = seed, surprise
        self.pages = 0
        self.values = np.empty((self.config.layers, 0), np.uint64)
        self.windows = [part.window for _, part in self.config.attentions()]
        ids = np.arange(self.config.vocab_size)
        self._ids, self._successors = ids.astype(np.uint64) * _ADDED, successor(ids, len(ids))

    def reserve(self, pages: int) -> None:
        self.pages = pages
        garbage = np.arange(self.config.layers * pages * PAGE, dtype=np.uint64)
        self.values = mix(garbage + np.uint64(77)).reshape(self.config.layers, -1)

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        check_spans(self.config, self.pages, spans)
        x, tokens = self._entering(spans)
        positions = np.concatenate([span.positions for span in spans])
        # All mask tokens are equal and may see the same rows, so only their positions tell them
        # apart.
        place = positions.astype(np.uint64) * np.uint64(self.config.mask_token is not None)
        ranges = _slices(len(span.positions) for span in spans)
        seen = [_Seen(*each, windows_of(self.config)) for each in zip(spans, ranges)]
        layers = spans[0].layers if spans[0].layers is not None else range(self.config.layers)
        hidden: dict[int, NDArray[np.float32]] = {}
        for layer, attends, feeds in map(halves, layers):
            if attends:
                new = _value(x, positions, layer)
                cached, window = self.values[layer], self.windows[layer]
                sums = [one.attend(layer, window, cached, x, new) for one in seen]
                x = x + place + np.concatenate(sums)
            if feeds:
                x = mix(x)
            if any(layer in span.hidden for span in spans):
                hidden[layer] = _pack(x, tokens)
        wanted = np.concatenate([one.span.logits + one.rows.start for one in seen])
        logits = self.head(x[wanted], tokens[wanted])
        return [
            SpanResult(
                ArrayLogits(logits[part]),
                {number: hidden[number][one.rows] for number in one.span.hidden},
                one.shares,
            )
            for one, part in zip(seen, _slices(len(span.logits) for span in spans))
        ]

    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        for values, own in zip(self.values, self.windows):
            if window is None or own == window:
                values[target] = values[source]

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        return apply_network(network, items)

    def close(self) -> None:
        self.values = np.empty((self.config.layers, 0), np.uint64)
        self.pages = 0

    def embed(self, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return embeddings that a span may carry in place of tokens, float32 [K, WIDTH]."""
        return _pack(self._hashes(tokens), tokens)

    def head(self, states: Hashes, tokens: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return logits, float64 [R, V], which mostly favour the usual successor of the last token.

        In other cases the hash decides.
        """
        noise = mix(states[:, None] + self._ids)
        logits = (noise >> np.uint64(11)).astype(np.float64) * 2.0**-53
        (usual,) = (states % np.uint64(1024) >= np.uint64(self.surprise)).nonzero()
        logits[usual, self._successors[tokens[usual]]] += 6.0
        return logits

    def plain_logits(self, tokens: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the logits after ``tokens``, float64 [V], by the definition, without a cache."""
        return self.logits_of(self.embed(tokens))

    def logits_of(
        self, embeddings: NDArray[np.float32], positions: NDArray[np.integer] | None = None
    ) -> NDArray[np.float64]:
        """Return the logits after embeddings [K, WIDTH], float64 [V]. They need not be of tokens.

        Args:
            positions: positions of the embeddings; None means 0, 1, ....
        """
        x, last = _unpack(embeddings)
        positions = np.arange(len(x)) if positions is None else positions
        for layer, window in enumerate(self.windows):
            sums = np.cumsum(_value(x, positions, layer), dtype=np.uint64)
            if window:  # What left the window, counted up to each row.
                sums -= np.concatenate([np.zeros(window, np.uint64), sums])[: len(sums)]
            x = mix(x + sums)
        return self.head(x[-1:], last[-1:])[0]

    def _hashes(self, tokens: NDArray[np.integer]) -> Hashes:
        return mix(tokens.astype(np.uint64) + np.uint64(self.seed << 20))

    def _entering(self, spans: Sequence[Span]) -> tuple[Hashes, NDArray[np.int64]]:
        """Return what enters the first layer that runs, and the token of each row."""
        given = [span.resume if span.resume is not None else span.embeddings for span in spans]
        if all(one is None for one in given):
            tokens = np.concatenate([span.tokens for span in spans])
            return self._hashes(tokens), tokens.astype(np.int64)
        rows = []
        for span, one in zip(spans, given):
            own = np.empty((0, WIDTH), np.float32) if one is None else one
            rows += [self.embed(span.tokens[: len(span.slots) - len(own)]), own]
        return _unpack(np.concatenate(rows))


class _Seen:
    """The rows to which a span attends: cached rows, tentative rows before them, and its own.

    Attributes:
        rows: the slice of the packed forward that has the span's rows.
        shares: layer -> the attention weights that the span asks for.
    """

    def __init__(self, span: Span, rows: slice, windows: Sequence[int]) -> None:
        self.span, self.rows = span, rows
        self.shares: dict[int, NDArray[np.float32]] = {}
        base = np.arange(span.context) if span.visible is None else span.visible
        self._cached, self._prefix = np.concatenate([base, span.tail]).astype(np.int64), len(base)
        self._kept = span.slots >= 0
        count, tail = len(span.positions), len(span.tail)
        self._mask = None if span.mask is None else span.mask[:, tail:]
        self._tail = np.ones((count, tail), bool) if span.mask is None else span.mask[:, :tail]
        self._at = np.concatenate([base, span.tail_positions, span.positions])
        self._tables = {window: self._table(window) for window in windows}

    def _table(
        self, window: int
    ) -> tuple[NDArray[np.bool_] | None, NDArray[np.int64], NDArray[np.int64]]:
        """Return what the rows see in layers with a window, bool [K, cached + K]; None: all cached.

        Then the physical slots of the cached rows that any row sees (0 for the others), and of the
        span's own rows.
        """
        own = self.span.physical(window, self.span.slots[self._kept])
        if not window:
            return None, self.span.physical(0, self._cached), own
        seen = self._all() & (self._at > self.span.positions[:, None] - window)
        read = seen[:, : len(self._cached)].any(0)
        slots = np.zeros(len(self._cached), np.int64)
        slots[read] = self.span.physical(window, self._cached[read])
        return seen, slots, own

    def _all(self) -> NDArray[np.bool_]:
        """Return what the rows see in layers without a window, bool [K, cached + K]."""
        count = len(self.span.positions)
        own = np.tri(count, dtype=bool) if self._mask is None else self._mask
        return np.concatenate([np.ones((count, self._prefix), bool), self._tail, own], axis=1)

    def attend(self, layer: int, window: int, cached: Hashes, x: Hashes, new: Hashes) -> Hashes:
        """Return the sum of the values that each row sees, uint64 [K]. Store the rows' own values.

        Args:
            window: the layer's window.
            cached: the layer's values in all slots.
            x, new: stream, and new values, of all rows of the packed forward.
        """
        x, new, mask = x[self.rows], new[self.rows], self._mask
        seen, slots, own = self._tables[window]
        values = cached[slots]
        if self.span.attention is not None and len(self.span.attention):
            shown = self._all() if seen is None else seen
            self.shares[layer] = _shares(self.span, x, np.concatenate([values, new]), shown)
        if seen is not None:
            total = (seen * np.concatenate([values, new])).sum(1, dtype=np.uint64)
        else:
            total = new.cumsum() if mask is None else (mask * new).sum(1, dtype=np.uint64)
            total += values[: self._prefix].sum()
            if len(self._tail[0]):
                total += (self._tail * values[self._prefix :]).sum(1, dtype=np.uint64)
        cached[own] = new[self._kept]
        return total


def _slices(counts: Iterable[int]) -> list[slice]:
    """Return consecutive slices of these lengths."""
    return [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))]


def successor(tokens: NDArray[np.integer], vocab_size: int) -> NDArray[np.int64]:
    """Return the token that usually follows each token, int64.

    The tokens form short cycles, so that texts repeat themselves.
    """
    ids = tokens.astype(np.int64)
    inside = ids // 5 * 5 + (ids + 1) % 5
    return np.where(inside < vocab_size, inside, ids // 5 * 5)


class LetterText:
    """A detokenizer that writes one letter for each token at once."""

    def push(self, token: int) -> str:
        return letter(token)

    def flush(self) -> str:
        return ""


def letter(token: int) -> str:
    return string.ascii_letters[token % len(string.ascii_letters)]


def mix(values: Hashes) -> Hashes:
    """Apply SplitMix64's finalizer to each element."""
    return mixed(values + _ADDED)


def _value(x: Hashes, positions: NDArray[np.integer], layer: int) -> Hashes:
    """Return what one layer stores for rows with residual ``x`` at ``positions``."""
    return mix(mix(x + np.uint64(layer)) + positions.astype(np.uint64))


def _shares(span: Span, x: Hashes, values: Hashes, seen: NDArray[np.bool_]) -> Array:
    """Return attention weights, float32 [A, 1, S]: scaled positive hashes of rows and values."""
    at = np.concatenate([span.tail_positions, span.positions])
    first = len(values) - len(at)
    order = np.concatenate([np.arange(first), first + np.argsort(at, kind="stable")])
    assert span.attention is not None
    mixed = mix(x[span.attention][:, None] ^ values[order]) >> np.uint64(40)
    weights = (mixed.astype(np.float64) + 1.0) * seen[span.attention][:, order]
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)[:, None]


def _pack(states: Hashes, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
    pieces = (states[:, None] >> _PIECES) & np.uint64(0xFFFF)
    return np.concatenate([pieces, tokens.astype(np.uint64)[:, None]], axis=1).astype(np.float32)


def _unpack(hidden: NDArray[np.float32]) -> tuple[Hashes, NDArray[np.int64]]:
    states = (hidden[:, :4].astype(np.uint64) << _PIECES).sum(axis=1, dtype=np.uint64)
    return states, hidden[:, 4].astype(np.int64)
