"""Rows of prompt tokens below a draft: how many, where, and a forward with them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.core.request import Forward, Reply
from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.budgets.auto import OTHERS

LEAST = 0.01
"""Tokens: no machine runs a row for less."""
Counts = NDArray[np.int64]
"""[1 + nodes]: prompt rows below the root, and below each node."""


def new_odds(levels: int, width: int) -> Odds:
    """How often guesses are right, before one was seen: rank r at level k is kind k * width + r."""
    return Odds([0.3 * 0.7**k * 0.5**r for k in range(levels) for r in range(width)])


def gains(odds: Odds, levels: int, width: int, count: int) -> list[float]:
    """What each further level of guesses adds to the tokens that a draft is expected to bring.

    Args:
        odds: as :func:`new_odds` orders them.
        count: nodes of a draft, the likeliest paths.
    """
    paths, every, brought = np.ones(1), np.empty(0), [0.0]
    for level in range(levels):
        rates = np.array([odds.of(level * width + rank) for rank in range(width)])
        paths = -np.sort(-np.outer(paths, rates).ravel())[:count]
        every = -np.sort(-np.concatenate([every, paths]))[:count]
        brought.append(float(every.sum()))
    # A level stands on those before it, so none may look better than these.
    return list(accumulate(np.diff(brought).tolist(), min))


def hung(
    tree: TokenTree, gains: list[float], most: Counts, room: int,
    worth: Callable[[float, int], NDArray[np.float64]] | None,
) -> Counts:  # fmt: skip
    """How many prompt rows each row of a verification gets.

    A prompt row is read only if the verification ends above it. So its promise is the chance of
    that times what its level adds to the next draft.

    Args:
        most: [1 + nodes], the most below the root and each node.
        room: the most of all.
        worth: what 0, 1, ... rows cost in tokens, of the tokens that this step brings and the most
            rows; None takes all there is room for.
    """
    reach = np.concatenate([[1.0], tree.reach])
    ends = reach.copy()
    np.subtract.at(ends, tree.parents + 1, tree.reach)
    promises = np.outer(np.maximum(ends, 0.0), gains)
    promises[np.arange(len(gains)) >= most[:, None]] = -1.0
    order = np.argsort(-promises.ravel(), kind="stable")[:room]
    order = order[promises.ravel()[order] >= (0.0 if worth is None else LEAST)]
    if worth is not None:
        brought = np.concatenate([[0.0], np.cumsum(promises.ravel()[order])])
        order = order[: int((brought - worth(float(tree.reach.sum()), len(order))).argmax())]
    counts: Counts = np.bincount(order // len(gains), minlength=len(reach))
    return counts


def paying(
    seq: Sequence, forward: Forward, odds: Odds, levels: int, width: int, count: int
) -> Counts:
    """The prompt rows of a verification that pay by this machine's measured cost of rows.

    Args:
        odds, width: as :func:`gains` takes them.
        levels: prompt tokens that there are.
        count: most nodes of the next draft.
    """
    rows, room = len(forward.tokens) + len(forward.tree), _room(seq, forward)

    def worth(brought: float, most: int) -> NDArray[np.float64]:
        seconds = np.array([seq.step_seconds(rows + more) or 0.0 for more in range(most + 1)])
        return (seconds / seconds[0] - 1.0) * (1.0 + OTHERS * seq.neighbours + brought)

    measured = seq.step_seconds(rows) is not None
    most, promised = _most(seq, forward.tree, levels), gains(odds, levels, width, count)
    return hung(forward.tree, promised, most, room, worth if measured else None)


def root_only(seq: Sequence, forward: Forward, levels: int) -> Counts:
    """Prompt rows below the root, whatever they promise."""
    counts = np.zeros(1 + len(forward.tree), np.int64)
    counts[0] = min(_most(seq, forward.tree, levels)[0], _room(seq, forward))
    return counts


def _room(seq: Sequence, forward: Forward) -> int:
    return max(seq.scratch - len(forward.tree), 0)


def _most(seq: Sequence, tree: TokenTree, levels: int) -> Counts:
    """Rows below the root and each node whose guesses have a place in the output."""
    depths = np.concatenate([[0], tree.depths])
    # The last place is for a token that is not drafted.
    return np.clip(seq.room - 2 - depths, 0, levels).astype(np.int64)


@dataclass
class PromptRows:
    """The prompt rows of one verification, and what they said.

    Args:
        prompts: float32 [m, hidden size], embeddings of the prompt tokens.
        counts: prompt rows below the root and below each node; those of the root come first.
    """

    prompts: NDArray[np.float32]
    counts: Counts
    _said: Logits | None = field(default=None, init=False)

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        """Run a verification with these rows behind its tree; the reply is without them."""
        count, real = int(self.counts.sum()), 1 + len(forward.tree)
        if count == 0:
            return (yield forward)
        reply = yield self._wider(forward)
        self._said = reply.logits.select(list(range(real, real + count)))
        hidden = {layer: states[:-count] for layer, states in reply.hidden.items()}
        return Reply(reply.logits.select(list(range(real))), hidden)

    def behind(self, row: int) -> Logits | None:
        """What the rows below the root (0) or below node ``row`` - 1 guess, the nearest first."""
        begin, count = int(self.counts[:row].sum()), int(self.counts[row])
        if self._said is None or count == 0:
            return None
        return self._said.select(list(range(begin, begin + count)))

    def _wider(self, forward: Forward) -> Forward:
        tree, parents, given = forward.tree, list[int](), list[int]()
        for row, count in enumerate(self.counts.tolist()):
            for number in range(count):
                last = len(tree) + len(parents) - 1
                parents.append(last if number else (row - 1 if row else ROOT))
                given.append(number)
        tokens = np.concatenate([tree.tokens, np.full(len(given), -1, np.int32)])
        wider = TokenTree(tokens, np.concatenate([tree.parents, np.array(parents, np.int32)]))
        return replace(forward, tree=wider, given=self.prompts[given])
