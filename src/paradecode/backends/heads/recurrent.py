"""Drafts of recurrent heads: each node of a tree has a state of its own, computed from its
parent's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.backends.heads.tree import GrowingTree
from paradecode.core.head import Cell
from paradecode.core.network import Array, Item, Network, Run
from paradecode.core.tree import ROOT


def grow_with_cell(
    cell: Cell, out: Network, growing: Sequence[GrowingTree], states: Sequence[Array], run: Run
) -> int:
    """Draft levels until no node is worth a row; returns the number of levels.

    Args:
        out: reads the result of the cell's steps, and gives logits.
        states: float32 [n, width] of each request; the last row is that of the last known token.
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
