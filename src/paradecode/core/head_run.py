"""Draft heads on any backend that runs networks: all levels of a draft in one request.

The native core has a loop of its own, for which this one is the oracle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.head import Head, HeadDraft, took_in
from paradecode.core.head_recurrent import grow_with_cell
from paradecode.core.head_tree import GrowingTree
from paradecode.core.network import Array, Item, Network, Run
from paradecode.core.tree import ROOT, TokenTree

ROWS_AT_A_TIME = 256


def run_head(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[TokenTree]:
    """The drafts of several requests; each level of all of them is one run of each network.

    The estimate of a node is the head's probability of its token, uncorrected.
    """
    started = time.perf_counter()
    growing = [GrowingTree(draft, head.to_target) for draft in drafts]
    states = _entered(head, drafts, run) if head.masks is None else _masked(head, drafts, run)
    levels = 1
    if head.cell is not None:
        levels = grow_with_cell(head.cell, head.outs[0], growing, states, run)
    elif head.masks is not None and head.masks.bias is not None:
        _each_knowing_the_one_before(head, head.masks.bias, growing, states, run)
    elif head.masks is not None or head.mask is not None or not head.blocks:
        _at_once(head, growing, states, run)
    else:
        levels = _level_by_level(head, growing, states, run)
    took_in(head, drafts, started, levels)
    return [each.tree() for each in growing]


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


def _at_once(head: Head, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run) -> None:
    """Every level's guesses, made without knowing the others', then the best tree of them."""
    if len(head.outs) == 1:
        rows = [list(each) for each in run(head.outs[0], [{"state": state} for state in states])]
    else:
        each_out = [run(out, [{"state": state[-1:]} for state in states]) for out in head.outs]
        rows = [[out[item][0] for out in each_out] for item in range(len(states))]
    for each, levels in zip(growing, rows):
        each.cross(levels)


def _each_knowing_the_one_before(
    head: Head, bias: Network, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
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
    head: Head, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
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
