"""Draft heads: small networks that guess what follows from the target's own hidden states.

A head reads, for each committed position t, the target's states at t and the token at t + 1, and
guesses the token at t + 2. It is networks and a few numbers, which
:mod:`paradecode.backends.heads.run` runs on any backend. Its keys and values belong to the request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Warp
from paradecode.core.network import Array, Network

USUAL_ROWS = 32
"""More rows than this are a prompt's, whose time says nothing of the drafts that follow."""


@dataclass(frozen=True, eq=False)
class Block:
    """One layer: what comes before its attention, and what comes after it.

    Attributes:
        before: reads ``state`` (and ``token`` in the first block); its result are queries, keys,
            values and what ``after`` goes on with, side by side.
        after: reads ``mixed`` (what attention gives) and ``rest``; its result is the next state.
        heads, kv_heads, size: of the attention; ``size`` numbers a head.
        frequencies: float64 [size / 2], by which positions rotate queries and keys.
        epsilon, q_norm, k_norm: of the norms of each head of queries and keys, where there are any.
        text: of a head that sees the text apart: reads ``state``, what ``enter`` makes of the
            features; its result are the keys and values of the text's rows, side by side. None in
            the first block: it reads the text's tokens as it reads a draft's.
        text_norm: of the norm of each head of these keys, where there is one.
        part: which of the states that ``enter`` makes side by side ``text`` reads, from 0.
        crosses: its rows see the text alone: ``before`` makes no keys and values.
        window: a row sees so many positions before its own; of the text no more are kept. 0: all.
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

    def rotated(self, x: Array, gain: Array | None, positions: NDArray[np.int64]) -> Array:
        """float32 [n, heads, size]: normed if there is a gain, and its halves turned."""
        angles = np.multiply.outer(positions, self.frequencies)[:, None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        x = x.reshape(len(x), -1, self.size)
        if gain is not None:
            x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.epsilon) * gain
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@dataclass(frozen=True)
class HeadCarry:
    """Where the LSTM layers of a head are behind some row.

    Attributes:
        hidden, cells: float32 [n, width] of each layer, for n texts that go on apart.
        last: float32 [rows, width], what the block has read of the last committed rows: of as many
            as see one another, less 1.
    """

    hidden: tuple[Array, ...]
    cells: tuple[Array, ...]
    last: Array


class Memory:
    """Keys and values of one request in one head; rows behind ``length`` are a draft's.

    Attributes:
        length: committed rows.
        carried: what a head with LSTM layers takes along from the committed rows.
        recent: the last known tokens; the newest is that of the next row to be committed. Empty
            before the first, if nobody said it.
    """

    def __init__(self) -> None:
        self.length = 0
        self.carried: HeadCarry | None = None
        self.recent = np.zeros(0, np.int64)
        self._kept: list[tuple[int, Array, Array]] = []  # The first slot, keys, values.

    def store(self, block: int, at: int, keys: Array, values: Array, oldest: int = 0) -> None:
        """Put rows [n, kv_heads, size] at slot ``at``; those before ``oldest`` may be forgotten."""
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
        """Keys and values [kv_heads, n, size] of the slots from ``oldest`` to ``end``."""
        first, keys, values = self._kept[block]
        return keys[:, oldest - first : end - first], values[:, oldest - first : end - first]


@dataclass
class DraftPace:
    """What a draft has taken of late, in seconds: all of it, and one level; 0 before the first.

    Attributes:
        row: of a row of the text, where more came than usual.
    """

    draft: float = 0.0
    level: float = 0.0
    row: float = 0.0

    def behind(self, rows: int) -> float:
        """The time of a draft that takes in so many rows first."""
        return self.draft + self.row * max(0, rows - USUAL_ROWS)

    def book(self, seconds: float, levels: int) -> None:
        weight = 0.1 if self.draft else 1.0
        self.draft += weight * (seconds - self.draft)
        self.level += weight * (seconds / levels - self.level)

    def book_rows(self, seconds: float, rows: int) -> None:
        self.row = seconds / rows


@dataclass(frozen=True)
class Masks:
    """What a head drafts on: the last token and masks behind it, which all see one another.

    The target's states are seen as keys and values of the rows of the text, and nowhere else. The
    first block reads ``token`` alone.

    Attributes:
        rows: of a draft, the last token's included.
        token: the mask's.
        first: the row that guesses the first token: 0 if rows guess the token behind them (DSpark),
            1 if masks guess their own.
        bias: reads ``token``, the one in front of the guess, and ``state``, the guessing row's; is
            added to the logits. So a guess knows of the one before it.
        blind: the first row is a mask, too, and the last token is what ``bias`` reads for every row
            (FlexDraft). So the rows can be computed before that token is known.
    """

    rows: int
    token: int
    first: int
    bias: Network | None = None
    blind: bool = False


@dataclass(frozen=True, eq=False)
class Cell:
    """How a recurrent head goes on behind a token: no attention, so a level costs little.

    Attributes:
        embed: reads ``token``; makes what ``steps`` read as ``embedded``.
        steps: read ``state`` and ``embedded``; make the next state and, behind its numbers, what
            ``outs`` read. The first takes the last row's state and the token behind it, each
            other one a level; the last one takes all levels from its own on.
    """

    embed: Network
    steps: tuple[Network, ...]


@dataclass(frozen=True, eq=False)
class Lstm:
    """A layer that takes a state along from row to row.

    Attributes:
        before: reads ``state``, and in the first layer ``token``; its result is what the row gives
            to the four gates (input, forget, candidate, output), side by side.
        step: reads these as ``input``, ``forget``, ``candidate`` and ``output``, and ``hidden`` and
            ``cell`` of the row before; its result are the row's own hidden and cell, side by side.
            The hidden ones are what the next layer reads.
    """

    before: Network
    step: Network


@dataclass(frozen=True, eq=False)
class Head:
    """A head as data.

    Attributes:
        kind: the head's; a method says which kinds it runs.
        taps: layers of the target whose outputs, side by side, are the features.
        width: numbers of a state.
        enter: reads ``features``; makes the state of a committed row.
        blocks: in order; none if the features say it all.
        outs: read ``state``; each makes logits over the head's vocabulary. Several (Medusa) speak
            of the tokens one, two, ... further on.
        back: reads ``state``; what a draft's next row has in place of features; None: the state.
        to_target: int32 [V], the target's ids of the head's tokens, ascending; None: the same.
        mask: of a head that drafts in one forward: the features [1, F] and the token of the rows
            behind the last committed one. None drafts one level after the other.
        masks: of a head that drafts on masks.
        prompts: float32 [m, width], embeddings of rows in the target's own forward (PPD).
        transfers: of rows that enter the target's forward behind the layers ``taps``, which ascend
            (Hidden Transfer), one a level: reads ``state``, the node's there, and makes the row.
        cell: of a recurrent head, whose blocks run for rows of the text alone.
        lstm: layers in front of the one block of a semi-autoregressive head.
        together: rows of such a head that see one another, and guess one token each.
        grams: tokens that the first block reads: the row's, and those before it as ``token1``,
            ``token2``, ... More than one: of a head whose blocks have a ``text``.
        anchor: of a head of n-grams: reads the features of the last row; what ``outs``, one a
            level, read in front of a new row's state.
        pace: what drafts take.
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
        """Whether the text's keys and values are made apart from those of a draft's rows."""
        return any(block.text is not None for block in self.blocks)

    @property
    def at_once(self) -> bool:
        """Whether all levels of a draft are made together: a further one costs nothing."""
        levels = self.cell is not None or self.lstm or self.grams > 1
        together = self.masks is not None or self.mask is not None or not self.blocks
        return together and not levels

    def held_in(self, dtype: str) -> Head:
        """The same with networks of another ``dtype``."""

        def held(network: Network) -> Network:
            return replace(network, dtype=dtype)

        def perhaps(network: Network | None) -> Network | None:
            return network and held(network)

        blocks = tuple(
            replace(b, before=held(b.before), after=held(b.after), text=perhaps(b.text))
            for b in self.blocks
        )
        masks, cell = self.masks, self.cell
        return replace(
            self, enter=held(self.enter), blocks=blocks, outs=tuple(map(held, self.outs)),
            back=perhaps(self.back), anchor=perhaps(self.anchor),
            masks=masks and replace(masks, bias=perhaps(masks.bias)),
            transfers=tuple(map(held, self.transfers)),
            cell=cell and Cell(held(cell.embed), tuple(map(held, cell.steps))),
            lstm=tuple(Lstm(held(layer.before), held(layer.step)) for layer in self.lstm),
            pace=DraftPace(),
        )  # fmt: skip

    def check(self, draft: HeadDraft) -> None:
        """Raise InvalidInput unless the rows of a draft are rows for this head."""
        wanted, given = self.enter.inputs["features"], draft.features.shape
        if given != (len(draft.tokens), wanted) or len(draft.tokens) == 0:
            raise InvalidInput("features", given, f"give rows of {wanted} numbers")


@dataclass(frozen=True, eq=False)
class HeadDraft:
    """What a head is to do for one request: take rows in, and draft behind the last of them.

    Attributes:
        memory: of this request; the rows are added to it.
        features: float32 [n, F], n > 0: the target's states at positions ``start``, ...
        tokens: int64 [n]: the token that follows each of these positions.
        count, width, depth: most nodes, children of a node and expanded nodes of a level, levels.
        least: reach below which a node is not expanded.
        warp, keys: of the request's sampling. With keys (of noise, one a level), tokens are ranked
            with the noise that the target's own draw will see.
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
    """The rows of these drafts are in their memories from now on, and their time is booked.

    For whoever runs a head, when nothing can fail any more: who failed may be asked again.

    Args:
        started: ``time.perf_counter()`` when it began.
        levels: that were run.
    """
    for draft in drafts:
        draft.memory.length += len(draft.tokens)
    seconds, rows = time.perf_counter() - started, [len(draft.tokens) for draft in drafts]
    if max(rows) <= USUAL_ROWS:
        head.pace.book(seconds / len(drafts), levels)
    else:
        head.pace.book_rows(seconds, sum(rows))
