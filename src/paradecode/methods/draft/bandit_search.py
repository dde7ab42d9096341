"""Monte-Carlo search for a draft: descend by an upper confidence bound, add a node, update its
path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

from paradecode.core.tree import ROOT
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.model_free import RatedTree

Options = Callable[[tuple[int, ...]], list[tuple[int, float]]]
"""Path of draft tokens -> the tokens that may follow it, each with its probability."""


@dataclass
class _Place:
    """A node of the search: the tokens that may follow it, its visits, and the sum of their
    values."""

    path: tuple[int, ...]
    options: list[tuple[int, float]]
    visits: int = 1
    value: float = 0.0
    children: dict[int, _Place] = field(default_factory=dict)


class BanditSearch:
    """Adds one node a descent; the nodes that were visited most become the draft.

    Args:
        options: the tokens that may follow a path.
        depth: the most tokens in a row.
        exploration: weight of options that were tried less often.
    """

    def __init__(self, options: Options, depth: int, exploration: float) -> None:
        self._options, self._depth, self._exploration = options, depth, exploration
        self._root = _Place((), options(()))

    def descend(self) -> None:
        """Walk to a new node, and add its value to all nodes on the way."""
        walked, chances = [self._root], [1.0]
        while len(walked[-1].path) < self._depth:
            here = walked[-1]
            best = self._choose(here)
            if best is None:
                break
            token, chance = best
            chances.append(chance)
            known = here.children.get(token)
            if known is None:
                path = (*here.path, token)
                here.children[token] = _Place(path, self._options(path))
                walked.append(here.children[token])
                break
            walked.append(known)
        reward = 1.0
        for place, chance in zip(reversed(walked), reversed(chances), strict=True):
            reward *= chance
            place.visits += 1
            place.value += reward

    def plant(self, draft: RatedTree, limit: int) -> None:
        """Add the most visited nodes; a parent is never visited less than its child."""
        fringe = [(ROOT, self._root, child) for child in self._root.children.items()]
        while fringe and len(draft) < limit:
            best = max(range(len(fringe)), key=lambda i: fringe[i][2][1].visits)
            parent, above, (token, place) = fringe.pop(best)
            node = draft.rate(parent, token, kind_of(dict(above.options)[token]))
            fringe += [(node, place, child) for child in place.children.items()]

    def _choose(self, here: _Place) -> tuple[int, float] | None:
        """The option with the highest upper confidence bound; None where nothing may follow."""
        best, found = -1.0, None
        spread = self._exploration * sqrt(here.visits)
        for token, chance in here.options:
            child = here.children.get(token)
            visits = 0 if child is None else child.visits - 1
            mean = 0.0 if child is None or visits == 0 else child.value / visits
            bound = mean + spread * chance / (1 + visits) + 1e-6 * chance
            if bound > best:
                best, found = bound, (token, chance)
        return found
