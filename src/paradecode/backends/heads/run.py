"""Run draft heads on any backend that runs networks: one call makes all levels of a draft.

The native core has its own loop, in csrc/head.cpp, which is tested against this one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.attention import NewRows, keep_text, through
from paradecode.backends.heads.blocks import grow_in_blocks
from paradecode.backends.heads.tree import GrowingTree
from paradecode.core.head import Array, Cell, Head, HeadDraft, Item, Network, Run, took_in
from paradecode.core.tree import ROOT, TokenTree


def grow_with_cell(
    cell: Cell, out: Network, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
) -> int:
    """Draft level by level until no node is worth expanding; return the number of levels.

    Args:
        out: reads the result of the cell's steps; its result is the logits.
        states: float32 [n, width] for each request; the last row belongs to the last known token.
    """
    above, width = [rows[-1:] for rows in states], states[0].shape[1]
    beams = [[ROOT] for _ in growing]
    lively = list(range(len(growing)))
    level = 0
    while lively:
        tokens = [np.array([growing[i].token(node) for node in beams[i]]) for i in lively]
        embedded = run(cell.embed, [{"token": each} for each in tokens])
        entering: list[Item] = [
            {"state": above[i], "embedded": rows} for i, rows in zip(lively, embedded)
        ]
        made = run(cell.steps[min(level, len(cell.steps) - 1)], entering)
        logits = run(out, [{"state": rows[:, width:]} for rows in made])
        for i, rows, scores in zip(lively, made, logits):
            parents, tree = beams[i], growing[i]
            beams[i] = tree.extend(parents, scores, level)
            places = [parents.index(tree.parents[node]) for node in beams[i]]
            above[i] = rows[places, :width]
        lively = [i for i in lively if len(beams[i])]
        level += 1
    return level


# Drafts of heads that see committed tokens through the target's states, and new tokens directly.


def grow_on_text(head: Head, growing: Sequence[GrowingTree], run: Run) -> int:
    """Store the committed rows, and draft level by level; return the number of levels.

    The last known token and each drafted token is a row, which sees the committed rows, the rows of
    its path, and itself.
    """
    drafts = [each.draft for each in growing]
    keep_text(head, drafts, run)
    anchors = None
    if head.anchor is not None:
        anchors = run(head.anchor, [{"features": draft.features[-1:]} for draft in drafts])
    known = [np.concatenate([draft.memory.recent, draft.tokens]) for draft in drafts]
    bases = [draft.memory.length + len(draft.tokens) for draft in drafts]
    slots: list[list[int]] = [[] for _ in growing]
    beams = [[ROOT] for _ in growing]
    lively, level = list(range(len(growing))), 0
    while lively:
        at, views, grams = [], [], []
        for i in lively:
            at.append(bases[i] + len(slots[i]))
            slots[i] += beams[i]
            paths = [{ROOT, *growing[i].above(node)} for node in beams[i]]
            seen = np.array([[slot in path for slot in slots[i]] for path in paths])
            views.append(NewRows(np.full(len(beams[i]), growing[i].end + level), seen))
            rows = [_gram(known[i], growing[i], node, head.grams) for node in beams[i]]
            grams.append(np.array(rows))
        states = through(head, [drafts[i] for i in lively], at, [], grams, views, run)
        if anchors is not None:
            states = [np.concatenate([np.tile(anchors[i], (len(rows), 1)), rows], axis=1)
                      for i, rows in zip(lively, states)]  # fmt: skip
        fed: list[Item] = [{"state": rows} for rows in states]
        for i, logits in zip(lively, run(head.outs[min(level, len(head.outs) - 1)], fed)):
            beams[i] = growing[i].extend(beams[i], logits, level)
        lively = [i for i in lively if beams[i]]
        level += 1
    for draft, tokens in zip(drafts, known):
        # Nothing can fail any more.
        draft.memory.recent = tokens[-max(head.grams - 1, 1) :]
    return level


def _gram(known: NDArray[np.int64], tree: GrowingTree, node: int, count: int) -> list[int]:
    """Return the last ``count`` tokens up to a node, oldest first.

    If too few tokens are known, the first known token is repeated in front.
    """
    tokens: list[int] = []
    while node != ROOT and len(tokens) < count:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    before = known[len(known) - min(count - len(tokens), len(known)) :].tolist()
    tokens = before + tokens
    return [int(known[0])] * (count - len(tokens)) + tokens


def run_head(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[TokenTree]:
    """Draft with a head for several requests, and return their trees.

    Each network runs once for a level of all drafts. The estimate of a node is the head's own
    probability of its token.
    """
    started = time.perf_counter()
    growing = [GrowingTree(draft, head.to_target) for draft in drafts]
    levels = grow_in_blocks(head, growing, run) if head.lstm else _grow(head, growing, run)
    took_in(head, drafts, started, levels)
    return [each.tree() for each in growing]


def _grow(head: Head, growing: Sequence[GrowingTree], run: Run) -> int:
    """Read the committed rows, and draft as the head's kind does; return the number of levels."""
    if head.on_text and head.masks is None:
        return grow_on_text(head, growing, run)
    drafts = [each.draft for each in growing]
    states = _entered(head, drafts, run) if head.masks is None else _masked(head, drafts, run)
    if head.cell is not None:
        return grow_with_cell(head.cell, head.outs[0], growing, states, run)
    if head.masks is not None and head.masks.bias is not None and not head.masks.blind:
        _each_knowing_the_one_before(head, head.masks.bias, growing, states, run)
    elif head.masks is not None or head.mask is not None or not head.blocks:
        _at_once(head, growing, states, run)
    else:
        return _level_by_level(head, growing, states, run)
    return 1


def _entered(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[Array]:
    """Run the committed rows; return each request's last state.

    For a head with ``mask``, the states of the mask rows after it are returned, too.
    """
    features, tokens = [draft.features for draft in drafts], [draft.tokens for draft in drafts]
    ahead = 0
    if head.mask is not None:
        ahead = max(draft.depth for draft in drafts) - 1
        masked, token = head.mask
        features = [np.concatenate([each, np.tile(masked, (ahead, 1))]) for each in features]
        tokens = [np.append(each, np.full(ahead, token)) for each in tokens]
    states = run(head.enter, [{"features": each} for each in features])
    views = [NewRows(draft.start + np.arange(len(t)), np.tri(len(t), dtype=bool))
             for draft, t in zip(drafts, tokens)]  # fmt: skip
    states = through(head, drafts, [draft.memory.length for draft in drafts], states, tokens,
                      views, run)  # fmt: skip
    return [each[-ahead - 1 :] for each in states]


def _masked(head: Head, drafts: Sequence[HeadDraft], run: Run) -> list[Array]:
    """Store the committed rows' keys and values; return the states of the guessing mask rows."""
    assert head.masks is not None
    rows = head.masks.rows
    keep_text(head, drafts, run)
    tokens = [np.append(d.tokens[-1:], np.full(rows - 1, head.masks.token)) for d in drafts]
    if head.masks.blind:
        tokens = [np.full(rows, head.masks.token)] * len(drafts)
    views = [NewRows(draft.start + len(draft.tokens) + np.arange(rows), np.ones((rows, rows), bool))
             for draft in drafts]  # fmt: skip
    at = [draft.memory.length + len(draft.tokens) for draft in drafts]
    states = through(head, drafts, at, [], tokens, views, run)
    return [each[head.masks.first :] for each in states]


def _at_once(head: Head, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run) -> None:
    """Guess all levels independently, and add the best tree of these guesses."""
    if len(head.outs) == 1:
        rows = [list(each) for each in run(head.outs[0], [{"state": state} for state in states])]
        if head.masks is not None and head.masks.bias is not None:
            known: list[Item] = [
                {"token": np.full(len(state), each.draft.tokens[-1]), "state": state}
                for each, state in zip(growing, states)
            ]
            added = run(head.masks.bias, known)
            rows = [[a + b for a, b in zip(*each)] for each in zip(rows, added)]
    else:
        each_out = [run(out, [{"state": state[-1:]} for state in states]) for out in head.outs]
        rows = [[out[item][0] for out in each_out] for item in range(len(states))]
    for each, levels in zip(growing, rows):
        each.cross(levels)


def _each_knowing_the_one_before(
    head: Head, bias: Network, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
) -> None:
    """Guess all levels at once, then correct each level's logits by the token before it."""
    logits = run(head.outs[0], [{"state": state} for state in states])
    beams, top = [[ROOT] for _ in growing], head.masks.top if head.masks is not None else 0
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
            said = logits[i][level]
            if 0 < top < len(said):
                said = np.where(said >= np.partition(said, -top)[-top], said, -np.inf)
            beams[i] = growing[i].extend(beams[i], said + added, level)


def _level_by_level(
    head: Head, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
) -> int:
    """Draft levels until no node is worth expanding (as in EAGLE-2); return their number."""
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
            views.append(NewRows(places, seen))
        fresh = through(
            head, [growing[i].draft for i in lively], at, entered,
            [np.array([growing[i].tokens[node] for node in beams[i]]) for i in lively], views, run,
        )  # fmt: skip
        for i, rows in zip(lively, fresh):
            made[i] |= dict(zip(beams[i], rows))
    return level
