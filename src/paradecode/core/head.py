"""Draft heads: small networks that guess what follows from the target's own hidden states.

A head reads, for each committed position t, the target's states at t and the token at t + 1, and
guesses the token at t + 2. It is networks and a few numbers; any backend that runs networks runs
it (:func:`run_head`), all levels of a draft in one request; the native core has a loop of its own,
for which this one is the oracle. Its keys and values belong to the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Warp, kept
from paradecode.core.network import Array, Item, Network
from paradecode.core.noise import gumbel
from paradecode.core.tree import EMPTY, ROOT, TokenTree

Run = Callable[[Network, Sequence[Item]], Sequence[Array]]
"""``Backend.apply``."""

POOL = 64
"""Best tokens of a row that are looked at when noise reorders them."""
ROWS_AT_A_TIME = 256
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
        text: of a head with masks: reads ``state``, what ``enter`` makes of the features; its
            result are the keys and values of the text's rows, side by side.
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

    def rotated(self, x: Array, gain: Array | None, positions: NDArray[np.int64]) -> Array:
        """float32 [n, heads, size]: normed if there is a gain, and its halves turned."""
        angles = np.multiply.outer(positions, self.frequencies)[:, None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        x = x.reshape(len(x), -1, self.size)
        if gain is not None:
            x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.epsilon) * gain
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Memory:
    """Keys and values of one request in one head; rows behind ``length`` are a draft's.

    Attributes:
        length: committed rows.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: list[tuple[Array, Array]] = []

    def store(self, block: int, at: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Put rows [n, kv_heads, size] at slot ``at``; returns all up to their end, by head."""
        rows, heads, size = keys.shape
        end = at + rows
        if block == len(self._kept):
            self._kept.append((np.empty((heads, 0, size), np.float32),) * 2)
        if end > self._kept[block][0].shape[1]:
            room = np.empty((heads, max(end, 2 * at) - at, size), np.float32)
            grown = [np.concatenate([old[:, :at], room], axis=1) for old in self._kept[block]]
            self._kept[block] = grown[0], grown[1]
        for old, new in zip(self._kept[block], (keys, values)):
            old[:, at:end] = new.swapaxes(0, 1)
        return self._kept[block][0][:, :end], self._kept[block][1][:, :end]


@dataclass
class DraftPace:
    """What a draft has taken of late, in seconds: all of it, and one level; 0 before the first."""

    draft: float = 0.0
    level: float = 0.0

    def book(self, seconds: float, levels: int) -> None:
        weight = 0.1 if self.draft else 1.0
        self.draft += weight * (seconds - self.draft)
        self.level += weight * (seconds / levels - self.level)


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
    """

    rows: int
    token: int
    first: int
    bias: Network | None = None


@dataclass(frozen=True, eq=False)
class Head:
    """A head as data.

    Attributes:
        kind: ``eagle``, ``eagle3``, ``medusa``, ``mtp``, ``p-eagle``, ``dflash`` or ``dspark``.
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
    pace: DraftPace = field(default_factory=DraftPace)

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


def run_head(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[TokenTree]:
    """The drafts of several requests; each level of all of them is one run of each network.

    The estimate of a node is the head's probability of its token, uncorrected.
    """
    started = time.perf_counter()
    growing = [_Growing(draft, head.to_target) for draft in drafts]
    states = _entered(head, drafts, run) if head.masks is None else _masked(head, drafts, run)
    levels = 1
    if head.masks is not None and head.masks.bias is not None:
        _each_knowing_the_one_before(head, head.masks.bias, growing, states, run)
    elif head.masks is not None or head.mask is not None or not head.blocks:
        _at_once(head, growing, states, run)
    else:
        levels = _level_by_level(head, growing, states, run)
    took_in(head, drafts, started, levels)
    return [each.tree() for each in growing]


def took_in(head: Head, drafts: Sequence[HeadDraft], started: float, levels: int) -> None:
    """The rows of these drafts are in their memories from now on, and their time is booked.

    For whoever runs a head, when nothing can fail any more: who failed may be asked again.

    Args:
        started: ``time.perf_counter()`` when it began.
        levels: that were run.
    """
    for draft in drafts:
        draft.memory.length += len(draft.tokens)
    if max(len(draft.tokens) for draft in drafts) <= USUAL_ROWS:
        head.pace.book((time.perf_counter() - started) / len(drafts), levels)


def _entered(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[Array]:
    """Take the rows in; their last state, and with it those that draft in the same forward."""
    features, tokens = [draft.features for draft in drafts], [draft.tokens for draft in drafts]
    ahead = 0
    if head.mask is not None:
        ahead = max(draft.depth for draft in drafts) - 1
        masked, token = head.mask
        features = [np.concatenate([each, np.tile(masked, (ahead, 1))]) for each in features]
        tokens = [np.append(each, np.full(ahead, token)) for each in tokens]
    states = run(head.enter, [{"features": each} for each in features])
    views = [_Rows(draft.start + np.arange(len(t)), np.tri(len(t), dtype=bool))
             for draft, t in zip(drafts, tokens)]  # fmt: skip
    states = _through(head, drafts, [draft.memory.length for draft in drafts], states, tokens,
                      views, run)  # fmt: skip
    return [each[-ahead - 1 :] for each in states]


def _masked(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[Array]:
    """Take the rows in as keys and values; the states of the masks behind them that guess."""
    assert head.masks is not None
    rows = head.masks.rows
    text = run(head.enter, [{"features": draft.features} for draft in drafts])
    for number, block in enumerate(head.blocks):
        assert block.text is not None
        for draft, made in zip(drafts, run(block.text, [{"state": each} for each in text])):
            keys, values = np.split(made, 2, axis=1)
            places = draft.start + np.arange(len(made))
            draft.memory.store(
                number, draft.memory.length, block.rotated(keys, block.k_norm, places),
                values.reshape(len(made), -1, block.size),
            )  # fmt: skip
    tokens = [np.append(d.tokens[-1:], np.full(rows - 1, head.masks.token)) for d in drafts]
    views = [_Rows(draft.start + len(draft.tokens) + np.arange(rows), np.ones((rows, rows), bool))
             for draft in drafts]  # fmt: skip
    at = [draft.memory.length + len(draft.tokens) for draft in drafts]
    states = _through(head, drafts, at, [], tokens, views, run)
    return [each[head.masks.first :] for each in states]


@dataclass(frozen=True)
class _Rows:
    """Positions of new rows, and which of the rows behind the committed ones each sees."""

    positions: NDArray[np.int64]
    seen: NDArray[np.bool_]


def _through(
    head: Head, drafts: Sequence[HeadDraft], at: Sequence[int], states: Sequence[Array],
    tokens: Sequence[NDArray[np.int64]], views: Sequence[_Rows], run: Run,
) -> Sequence[Array]:  # fmt: skip
    """The states of new rows behind all blocks; their keys and values are stored at ``at``."""
    for number, block in enumerate(head.blocks):
        items: list[Item] = [{"state": state} for state in states]
        if number == 0 and head.masks is not None:
            items = [{"token": each} for each in tokens]
        elif number == 0:
            items = [{"state": s, "token": t} for s, t in zip(states, tokens)]
        mixed = []
        for draft, place, view, made in zip(drafts, at, views, run(block.before, items)):
            wide, narrow = block.heads * block.size, block.kv_heads * block.size
            q, k, v, rest = np.split(made, np.cumsum([wide, narrow, narrow]), axis=1)
            keys, values = draft.memory.store(
                number, place, block.rotated(k, block.k_norm, view.positions),
                v.reshape(len(v), -1, block.size),
            )  # fmt: skip
            q = block.rotated(q, block.q_norm, view.positions)
            mixed.append({"mixed": _attend(q, keys, values, view.seen), "rest": rest})
        states = run(block.after, mixed)
    return states


def _attend(q: Array, keys: Array, values: Array, seen: NDArray[np.bool_]) -> Array:
    """float32 [n, heads * size]. Rows see all rows but the last ``seen.shape[1]``, and of these
    what ``seen`` says.

    Args:
        q: [n, heads, size].
        keys, values: [kv_heads, m, size].
    """
    rows, heads, size = q.shape
    groups, known, _ = keys.shape
    first = known - seen.shape[1]
    out = np.empty((rows, heads * size), np.float32)
    for start in range(0, rows, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        query = q[part].reshape(-1, groups, heads // groups, size).transpose(1, 2, 0, 3)
        query = np.ascontiguousarray(query * np.float32(size**-0.5)).reshape(groups, -1, size)
        scores = (query @ keys.swapaxes(1, 2)).reshape(groups, heads // groups, -1, known)
        scores[..., first:][..., ~seen[part]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = weights.reshape(groups, -1, known) @ values
        mixed = mixed.reshape(groups, heads // groups, -1, size)
        out[part] = mixed.transpose(2, 0, 1, 3).reshape(-1, heads * size)
    return out


def _at_once(head: Head, growing: Sequence[_Growing], states: Sequence[Array], run: Run) -> None:
    """Every level's guesses, made without knowing the others', then the best tree of them."""
    if len(head.outs) == 1:
        rows = [list(each) for each in run(head.outs[0], [{"state": state} for state in states])]
    else:
        each_out = [run(out, [{"state": state[-1:]} for state in states]) for out in head.outs]
        rows = [[out[item][0] for out in each_out] for item in range(len(states))]
    for each, levels in zip(growing, rows):
        each.cross(levels)


def _each_knowing_the_one_before(
    head: Head, bias: Network, growing: Sequence[_Growing], states: Sequence[Array], run: Run
) -> None:
    """Every level's logits at once; what the token before adds to them, level by level."""
    logits = run(head.outs[0], [{"state": state} for state in states])
    beams = [[ROOT] for _ in growing]
    for level in range(len(states[0])):
        lively = [i for i in range(len(growing)) if len(beams[i])]
        if not lively:
            return
        before: list[Item] = [
            {"token": np.array([growing[i].token(node) for node in beams[i]]),
             "state": np.tile(states[i][level], (len(beams[i]), 1))}
            for i in lively
        ]  # fmt: skip
        for i, added in zip(lively, run(bias, before)):
            beams[i] = growing[i].extend(beams[i], logits[i][level] + added, level)


def _level_by_level(
    head: Head, growing: Sequence[_Growing], states: Sequence[Array], run: Run
) -> int:
    """Levels until no node is worth a row (the dynamic tree of EAGLE-2); returns how many."""
    bases = [each.draft.memory.length + len(each.draft.tokens) for each in growing]
    beams = [[ROOT] for _ in growing]
    lively = list(range(len(growing)))
    made = [{ROOT: state[-1]} for state in states]
    slots: list[list[int]] = [[] for _ in growing]
    level = 0
    while lively:
        fed = [{"state": np.stack([made[i][node] for node in beams[i]])} for i in lively]
        for i, logits in zip(lively, run(head.outs[0], fed)):
            beams[i] = growing[i].extend(beams[i], logits, level)
        level += 1
        lively = [i for i in lively if len(beams[i])]
        if not lively:
            break
        parents = [[growing[i].parents[node] for node in beams[i]] for i in lively]
        entering: list[Item] = [
            {"state": np.stack([made[i][parent] for parent in above])}
            for i, above in zip(lively, parents)
        ]
        entered = [item["state"] for item in entering]
        if head.back is not None:
            entered = list(run(head.back, entering))
        views, at = [], []
        for i in lively:
            at.append(bases[i] + len(slots[i]))
            slots[i] += beams[i]
            seen = np.array([[s in growing[i].above(n) for s in slots[i]] for n in beams[i]])
            places = np.full(len(beams[i]), growing[i].end + level - 1)
            views.append(_Rows(places, seen))
        fresh = _through(
            head, [growing[i].draft for i in lively], at, entered,
            [np.array([growing[i].tokens[node] for node in beams[i]]) for i in lively], views, run,
        )  # fmt: skip
        for i, rows in zip(lively, fresh):
            made[i] |= dict(zip(beams[i], rows))
    return level


class _Growing:
    """A tree in the making; tokens are the target's."""

    def __init__(self, draft: HeadDraft, to_target: NDArray[np.int32] | None) -> None:
        self.draft, self._to_target = draft, to_target
        self.end = draft.start + len(draft.tokens)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._chances: list[float] = []
        self._reach: list[float] = []

    def tree(self) -> TokenTree:
        if not self.tokens:
            return EMPTY
        chances = np.array(self._chances, np.float32)
        tree = TokenTree(np.array(self.tokens), np.array(self.parents), chances)
        return tree.best(self.draft.count)

    def token(self, node: int) -> int:
        """A node's token; ROOT's is the last one known."""
        return int(self.draft.tokens[-1]) if node == ROOT else self.tokens[node]

    def above(self, node: int) -> set[int]:
        """A node and its ancestors."""
        path = set()
        while node != ROOT:
            path.add(node)
            node = self.parents[node]
        return path

    def extend(self, beam: Sequence[int], logits: Array, level: int) -> list[int]:
        """Add the likeliest children of each node; returns those to expand, likeliest first."""
        first = len(self.tokens)
        for node, row in zip(beam, logits):
            for token, chance in zip(*self._ranked(row, level)):
                self._add(node, token, chance)
        if level + 1 >= self.draft.depth:
            return []
        bar = self.draft.least
        if len(self._reach) > self.draft.count:  # A child must be among the best to be kept.
            bar = max(bar, sorted(self._reach)[-self.draft.count])
        fresh = sorted(range(first, len(self.tokens)), key=lambda n: -self._reach[n])
        return [node for node in fresh if self._reach[node] > bar][: self.draft.width]

    def cross(self, levels: Sequence[Array]) -> None:
        """The likeliest paths through guesses that do not know of one another, best first."""
        ranked = [self._ranked(row, level) for level, row in enumerate(levels[: self.draft.depth])]
        # (reach, parent, level, rank), the best of what may be added next.
        open_: list[tuple[float, int, int, int]] = [(ranked[0][1][0], ROOT, 0, 0)]
        while open_ and len(self.tokens) < self.draft.count:
            best = max(open_, key=lambda each: each[0])
            open_.remove(best)
            reach, parent, level, rank = best
            tokens, chances = ranked[level]
            if reach <= self.draft.least:
                return
            node = self._add(parent, tokens[rank], chances[rank])
            if rank + 1 < len(tokens):
                above = 1.0 if parent == ROOT else self._reach[parent]
                open_.append((above * chances[rank + 1], parent, level, rank + 1))
            if level + 1 < len(ranked):
                open_.append((reach * ranked[level + 1][1][0], node, level + 1, 0))

    def _add(self, parent: int, token: int, chance: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self._chances.append(chance)
        self._reach.append(chance if parent == ROOT else chance * self._reach[parent])
        return len(self.tokens) - 1

    def _ranked(self, row: Array, level: int) -> tuple[list[int], list[float]]:
        """The likeliest tokens in the target's ids, and how likely each is."""
        width, scores = self.draft.width, row.astype(np.float64)
        noisy = self.draft.warp.temperature > 0 and len(self.draft.keys) > level
        pool = min(POOL if noisy else width, len(scores))
        ids: NDArray[np.integer] = np.argpartition(-scores, pool - 1)[:pool]
        top = scores.max()
        scores = scores[ids] - top - np.log(np.exp(scores - top).sum())
        if self._to_target is not None:
            ids = self._to_target[ids]
        if noisy:
            places, scaled = kept(scores, self.draft.warp)
            ids, scores = ids[places], scaled + gumbel(self.draft.keys[level], ids[places])
            scores = scores - scores.max()
            scores -= np.log(np.exp(scores).sum())
        order = np.lexsort((ids, -scores))[:width]
        return ids[order].tolist(), np.exp(scores[order]).tolist()
