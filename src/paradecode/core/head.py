"""Draft heads: small networks that guess the next tokens from the target's hidden states.

For each committed position t, a head reads the target's hidden states at t and the token at t + 1,
and guesses the token at t + 2. It consists of networks and a few numbers, which
:mod:`paradecode.backends.heads.run` runs on any backend. Its keys and values belong to the request.

A row is one position that a head reads: a committed token with hidden states, a draft token or a
mask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Warp
from paradecode.core.network import Array, Item, Network

Run = Callable[[Network, Sequence[Item]], Sequence[Array]]
"""The type of ``Backend.apply``."""
USUAL_ROWS = 32
"""The most new rows of an ordinary draft.

Longer runs contain a prompt, and their time is recorded separately.
"""


@dataclass(frozen=True, eq=False)
class Block:
    """One attention layer of a head: a network before its attention, and a network after it.

    Attributes:
        before: reads ``state`` (and ``token`` in the first block). Its result is queries, keys,
            values and the input ``rest`` of ``after``, concatenated.
        after: reads ``mixed`` (the result of attention) and ``rest``; its result is the next state.
        heads, kv_heads: numbers of query heads and of key heads.
        size: numbers in a head.
        frequencies: float64 [size / 2], the rotary frequencies of queries and keys.
        epsilon, q_norm, k_norm: epsilon and gains of the norms of queries and keys, if there are
            any.
        text: network for committed rows, in a head that treats committed rows and draft rows
            differently. It reads ``state``, a slice of the result of ``enter``; its result is the
            keys and values of the committed rows, concatenated. None in the first block, which
            treats both alike.
        text_norm: gain of the norm of the keys of committed rows, if there is one.
        part: index of the slice of the result of ``enter`` that ``text`` reads, from 0.
        crosses: True if rows attend to committed rows alone, so that ``before`` makes no keys and
            values.
        window: number of positions before its own that a row attends to; older committed rows are
            forgotten. 0 means all. Mask rows attend to this many positions before the first of
            them, unless ``trails``.
        trails: True if each mask row attends to ``window`` positions before its own.
        causal: True if a mask row attends to no later mask row.
    """

    before: Network
    after: Network
    heads: int
    kv_heads: int
    size: int
    frequencies: NDArray[np.float64]
    epsilon: float = 1e-6
    q_norm: Array | None = None
    k_norm: Array | None = None
    text: Network | None = None
    text_norm: Array | None = None
    part: int = 0
    crosses: bool = False
    window: int = 0
    trails: bool = False
    causal: bool = False

    def rotated(self, x: Array, gain: Array | None, positions: NDArray[np.int64]) -> Array:
        """Return float32 [n, heads, size]: ``x`` rotated to positions, normed if ``gain`` is
        given.
        """
        angles = np.multiply.outer(positions, self.frequencies)[:, None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        x = x.reshape(len(x), -1, self.size)
        if gain is not None:
            x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.epsilon) * gain
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@dataclass(frozen=True)
class HeadCarry:
    """The state that the LSTM layers of a head carry from row to row.

    Attributes:
        hidden, cells: float32 [n, width] of each layer, for n independent sequences.
        last: float32 [rows, width], the inputs of the block for the last committed rows. Their
            number is one less than the number of rows that attend to one another.
    """

    hidden: tuple[Array, ...]
    cells: tuple[Array, ...]
    last: Array


class Memory:
    """The keys and values of one request in one head; rows after ``length`` belong to a draft.

    Attributes:
        length: number of committed rows.
        carried: state of the LSTM layers after the committed rows, if the head has such layers.
        recent: the last known tokens. The newest one belongs to the next row to be committed. Empty
            before the first row if its token is unknown.
    """

    def __init__(self) -> None:
        self.length = 0
        self.carried: HeadCarry | None = None
        self.recent = np.zeros(0, np.int64)
        self._kept: list[tuple[int, Array, Array]] = []  # The first slot, keys, values.

    def store(self, block: int, at: int, keys: Array, values: Array, oldest: int = 0) -> None:
        """Store rows [n, kv_heads, size] from slot ``at``; slots before ``oldest`` may be lost."""
        rows, heads, size = keys.shape
        if block == len(self._kept):
            none = np.empty((heads, 0, size), np.float32)
            self._kept.append((oldest, none, none))
        first, *kept = self._kept[block]
        if at + rows - first > kept[0].shape[1]:
            stay = slice(oldest - first, at - first)
            room = np.empty((heads, max(rows, at - oldest), size), np.float32)
            kept = [np.concatenate([old[:, stay], room], axis=1) for old in kept]
            first = oldest
            self._kept[block] = first, kept[0], kept[1]
        for old, new in zip(kept, (keys, values)):
            old[:, at - first : at - first + rows] = new.swapaxes(0, 1)

    def rows(self, block: int, oldest: int, end: int) -> tuple[Array, Array]:
        """Return keys and values [kv_heads, n, size] of the slots from ``oldest`` to ``end``."""
        first, keys, values = self._kept[block]
        return keys[:, oldest - first : end - first], values[:, oldest - first : end - first]


@dataclass
class DraftPace:
    """Running averages of a head's times, in seconds; 0 before the first draft.

    Attributes:
        draft: seconds of a whole draft.
        level: seconds of one level of a draft.
        row: seconds of a row of the last run that had more than ``USUAL_ROWS`` new rows.
    """

    draft: float = 0.0
    level: float = 0.0
    row: float = 0.0

    def behind(self, rows: int) -> float:
        """Return the estimated seconds of a draft that first reads ``rows`` new rows."""
        return self.draft + self.row * max(0, rows - USUAL_ROWS)

    def book(self, seconds: float, levels: int) -> None:
        weight = 0.1 if self.draft else 1.0
        self.draft += weight * (seconds - self.draft)
        self.level += weight * (seconds / levels - self.level)

    def book_rows(self, seconds: float, rows: int) -> None:
        self.row = seconds / rows


@dataclass(frozen=True)
class Masks:
    """The rows on which a head drafts: the last token, then masks. They attend to one another.

    The keys and values of committed rows are computed from the target's hidden states only. The
    first block reads ``token`` alone.

    Attributes:
        rows: number of rows of a draft, including the last token's row.
        token: id of the mask token.
        first: index of the row that guesses the first token: 0 if each row guesses the next token
            (DSpark), 1 if each mask guesses its own token.
        bias: a network that reads ``token``, the token before the guess, and ``state``, the state
            of the guessing row. Its result is added to the logits, so that a guess depends on the
            guess before it.
        blind: True if the first row is a mask, too, and ``bias`` reads the last token for every row
            (FlexDraft). The rows can then be computed before that token is known.
        top: number of a row's most probable tokens among which ``bias`` decides; 0 means all.
    """

    rows: int
    token: int
    first: int
    bias: Network | None = None
    blind: bool = False
    top: int = 0


@dataclass(frozen=True, eq=False)
class Cell:
    """The recurrent step of a head after a token: it has no attention, so a level costs little.

    Attributes:
        embed: reads ``token``; its result is the input ``embedded`` of ``steps``.
        steps: networks that read ``state`` and ``embedded``. Each result is the next state and then
            the input of ``outs``. The first step reads the last row's state and the token after it.
            Each later step makes one level; the last step makes all further levels.
    """

    embed: Network
    steps: tuple[Network, ...]


@dataclass(frozen=True, eq=False)
class Lstm:
    """A recurrent layer that carries a state from row to row.

    Attributes:
        before: reads ``state``, and in the first layer ``token``; its result is the row's inputs to
            the four gates (input, forget, candidate, output), concatenated.
        step: reads the gate inputs as ``input``, ``forget``, ``candidate`` and ``output``, and
            ``hidden`` and ``cell`` of the row before. Its result is the row's own hidden state and
            cell, concatenated. The next layer reads the hidden state.
    """

    before: Network
    step: Network


@dataclass(frozen=True, eq=False)
class Head:
    """A draft head as data: its networks and their sizes.

    Attributes:
        kind: kind of the head; a method says which kinds it runs.
        taps: layers of the target whose concatenated outputs are the features.
        width: numbers in a state.
        enter: reads ``features``; its result is the state of a committed row.
        blocks: the attention layers, in order; empty if ``enter`` is all that the head needs.
        outs: networks that read ``state``; each result is logits over the head's vocabulary. If
            there are several (Medusa), network i guesses the token i positions further on.
        back: reads ``state``; its result replaces the features for the next row of a draft. None:
            the state itself is used.
        to_target: int32 [V], the target's token ids of the head's tokens, ascending; None: the same
            ids.
        mask: for a head that drafts in one forward pass: the features [1, F] and the token id of
            the rows after the last committed one. None drafts one level after the other.
        masks: for a head that drafts on mask tokens.
        prompts: float32 [m, width], embeddings of rows in the target's own forward (PPD).
        transfers: for rows that enter the target's forward after the layers ``taps``, which ascend
            (Hidden Transfer). There is one network for each level: it reads the node's ``state``
            after this layer, and its result is the row.
        cell: for a recurrent head, whose blocks run for committed rows alone.
        lstm: recurrent layers before the one block of a semi-autoregressive head.
        together: number of rows of a semi-autoregressive head that attend to one another; each
            guesses one token.
        grams: number of tokens that the first block reads: the row's token, and the tokens before
            it as ``token1``, ``token2``, ... More than one needs blocks with a ``text``.
        anchor: for a head of n-grams: reads the features of the last row. Its result is one vector
            for each level, which comes before the new row's state in the input of ``outs``.
        pace: the average times of drafts.
    """

    kind: str
    taps: tuple[int, ...]
    width: int
    enter: Network
    blocks: tuple[Block, ...]
    outs: tuple[Network, ...]
    back: Network | None = None
    to_target: NDArray[np.int32] | None = None
    mask: tuple[Array, int] | None = None
    masks: Masks | None = None
    prompts: Array | None = None
    transfers: tuple[Network, ...] = ()
    cell: Cell | None = None
    lstm: tuple[Lstm, ...] = ()
    together: int = 1
    grams: int = 1
    anchor: Network | None = None
    pace: DraftPace = field(default_factory=DraftPace)

    @property
    def on_text(self) -> bool:
        """True if keys and values of committed rows and draft rows are computed differently."""
        return any(block.text is not None for block in self.blocks)

    @property
    def at_once(self) -> bool:
        """True if one run makes all levels of a draft, so that a further level costs nothing."""
        levels = self.cell is not None or self.lstm or self.grams > 1
        together = self.masks is not None or self.mask is not None or not self.blocks
        return together and not levels

    def held_in(self, dtype: str) -> Head:
        """Return a copy of this head whose networks have another ``dtype``."""

        def held(part: Any) -> Any:
            if isinstance(part, Network):
                return replace(part, dtype=dtype)
            if isinstance(part, tuple):
                return tuple(map(held, part))
            if not isinstance(part, (Block, Masks, Cell, Lstm, Head)):
                return part
            parts = {each.name: held(getattr(part, each.name)) for each in fields(part)}
            return replace(part, **parts)

        head: Head = replace(held(self), pace=DraftPace())
        return head

    def check(self, draft: HeadDraft) -> None:
        """Raise InvalidInput if the features and tokens of a draft do not fit this head."""
        wanted, given = self.enter.inputs["features"], draft.features.shape
        if given != (len(draft.tokens), wanted) or len(draft.tokens) == 0:
            raise InvalidInput("features", given, f"give rows of {wanted} numbers")


@dataclass(frozen=True, eq=False)
class HeadDraft:
    """A request's input to a head: rows to read, and the limits of the draft after the last row.

    Attributes:
        memory: the request's memory, to which the rows are added.
        features: float32 [n, F], n > 0: the target's hidden states at the positions from ``start``
            on.
        tokens: int64 [n]: the token that follows each of these positions.
        start: position of the first row.
        count: largest number of nodes of the draft.
        width: largest number of children of a node, and of expanded nodes of a level.
        depth: largest number of levels.
        least: a node whose path has a lower probability is not expanded.
        warp: the request's temperature and filters.
        keys: keys of random numbers, one for each level. If given, tokens are ranked with the same
            random numbers with which the target will sample.
    """

    memory: Memory
    features: Array
    tokens: NDArray[np.int64]
    start: int
    count: int
    width: int
    depth: int
    least: float = 0.0
    warp: Warp = field(default_factory=lambda: Warp(0.0))
    keys: tuple[int, ...] = ()


def took_in(head: Head, drafts: Sequence[HeadDraft], started: float, levels: int) -> None:
    """Record that the rows of these drafts are in their memories, and how long the drafts took.

    The code that runs a head calls this only when nothing can fail any more, because a failed run
    is repeated.

    Args:
        started: ``time.perf_counter()`` when the run began.
        levels: number of levels that were run.
    """
    for draft in drafts:
        draft.memory.length += len(draft.tokens)
    seconds, rows = time.perf_counter() - started, [len(draft.tokens) for draft in drafts]
    if max(rows) <= USUAL_ROWS:
        head.pace.book(seconds / len(drafts), levels)
    else:
        head.pace.book_rows(seconds, sum(rows))
