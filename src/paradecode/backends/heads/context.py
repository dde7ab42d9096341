"""Drafts of heads that see the text through the target's states, and new tokens by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.attention import NewRows, keep_text, through
from paradecode.backends.heads.tree import GrowingTree
from paradecode.core.head import Head
from paradecode.core.network import Item, Run
from paradecode.core.tree import ROOT


def grow_on_text(head: Head, growing: Sequence[GrowingTree], run: Run) -> int:
    """Take the rows in, and draft level by level; returns the number of levels.

    The last known token and each drafted one is a row; it sees the text, the rows of its path, and
    itself.
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
    """The last ``count`` tokens up to a node, oldest first; the first known one stands for those
    before."""
    tokens: list[int] = []
    while node != ROOT and len(tokens) < count:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    before = known[len(known) - min(count - len(tokens), len(known)) :].tolist()
    tokens = before + tokens
    return [int(known[0])] * (count - len(tokens)) + tokens
