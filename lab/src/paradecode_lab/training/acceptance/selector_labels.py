"""Tokens and seconds of each action of a delayed tree, computed from the ranks of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.methods.draft.budgets.shapes import Action


def tokens_of(ranks: NDArray[np.int64], options: Sequence[Action]) -> NDArray[np.float32]:
    """Tokens that a step with each action gives at each position of a text, float32 [n, A].

    Args:
        ranks: int64 [L], rank of each token among the draft's choices for its position. The last
            positions have no result (n < L), because the text after them is not known.
    """
    deepest = max(action.trunk + action.length for action in options)
    places = np.arange(max(len(ranks) - deepest, 0))
    run = np.zeros(len(ranks) + 1, np.int64)  # How many first choices in a row are right.
    for place in range(len(ranks) - 1, -1, -1):
        run[place] = run[place + 1] + 1 if ranks[place] == 0 else 0
    tokens = np.ones((len(places), len(options)), np.float32)
    for column, action in enumerate(options):
        trunk = np.minimum(run[places], action.trunk)
        tokens[:, column] += trunk
        if action.length:
            fork = places + action.trunk
            taken = (trunk == action.trunk) & (ranks[fork] < action.branches)
            tokens[:, column] += taken * (1 + np.minimum(run[fork + 1], action.length - 1))
    return tokens


def seconds_of(action: Action, draft: Sequence[float], verify: Sequence[float]) -> float:
    """Seconds of an action, including the draft's first forward, which precedes the choice."""
    narrow = max(1, action.trunk + min(action.length, 1))
    wide = max(0, action.length - 1)
    return narrow * draft[0] + wide * draft[action.branches - 1] + verify[action.nodes]
