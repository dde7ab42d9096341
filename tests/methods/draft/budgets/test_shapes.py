"""The dynamic programme finds the best tree shape, as a search over all trees does."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.delayed import Delayed, actions
from paradecode.methods.draft.budgets.shapes import Forest, Ranks, Sequoia, Shape, paths_of
from tiers import examples


@cache
def forests(nodes: int, depth: int, width: int) -> list[tuple]:
    """Yield every ordered forest as nested tuples, with ``width`` children and ``depth`` levels."""
    if nodes == 0:
        return [()]
    if depth == 0 or width == 0:
        return []
    found = []
    for share in range(1, nodes + 1):
        for inner in forests(share - 1, depth - 1, 3):
            for rest in forests(nodes - share, depth, width - 1):
                found.append((inner, *rest))
    return found


def worth(forest: tuple, rates: list[float]) -> float:
    return sum(rate * (1 + worth(child, rates)) for child, rate in zip(forest, rates))


def worth_of(shape: Shape, rates: list[float]) -> float:
    """Return a shape's expected tokens: the sum over its nodes of the rates' product on a path."""
    nodes = [(*path, rank) for path, count in shape.items() for rank in range(count)]
    return sum(float(np.prod([rates[rank] for rank in path])) for path in nodes)


@examples(25)
@given(
    st.lists(st.floats(0.01, 0.9), min_size=3, max_size=3),
    st.integers(1, 7),
    st.integers(1, 4),
)
def test_sequoia_is_the_best_of_all_trees(rates, nodes, depth):
    rates = sorted(rates, reverse=True)
    forest = Forest(np.array(rates), nodes, depth)
    smaller = [f for size in range(nodes + 1) for f in forests(size, depth, 3)]
    best = max(worth(f, rates) for f in smaller)
    assert forest.value[depth, nodes] == pytest.approx(best)
    shape = forest.shape(nodes, depth)
    assert sum(shape.values()) <= nodes
    assert max((len(path) + 1 for path in shape), default=0) <= depth
    assert worth_of(shape, rates) == pytest.approx(best)


def test_sequoia_weighs_depth_against_the_time_of_draft_forwards():
    budget, seq = Sequoia(8), Request(curve=lambda rows: 1.0 + 0.01 * rows)
    deep = budget.limit(seq), max(map(len, budget._shape))
    budget._draft = 0.5
    shallow = budget.limit(seq), max(map(len, budget._shape))
    assert shallow[1] < deep[1]


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_actions_have_the_nodes_they_say(count):
    for action in actions(count):
        assert sum(action.shape().values()) == action.nodes <= count


def test_expected_tokens_of_an_action_are_the_reach_of_its_nodes():
    first, second = 0.6, 0.25
    for action in actions(12):
        shape = action.shape()
        nodes = [(*path, rank) for path, count in shape.items() for rank in range(count)]
        fork = action.trunk
        value = 0.0
        for path in nodes:
            chance = 1.0
            for level, rank in enumerate(path):
                branching = level == fork and action.branches > 1
                chance *= (first, second, 0.0, 0.0)[rank] if branching else first
            value += chance
        branch = first + second if action.branches > 1 else first
        assert action.tokens(first, branch) == pytest.approx(value)


def test_delayed_branches_where_first_children_are_sure_and_others_plausible():
    budget, seq = Delayed(8), Request(curve=lambda rows: 1.0)
    ranks = seq.shared("ranks", Ranks)
    ranks._accepted = ranks._tried * np.array([0.6, 0.35, 0, 0, 0, 0, 0, 0])
    budget.limit(seq)
    assert max(budget._shape.values()) >= 2
    ranks._accepted = ranks._tried * np.array([0.99, 0, 0, 0, 0, 0, 0, 0])
    budget.limit(seq)
    assert set(budget._shape.values()) == {1}


def test_ranks_are_learnt_from_verifications():
    ranks = Ranks()
    tree = TokenTree(np.array([1, 2, 3]), np.array([-1, -1, -1]))
    for _ in range(200):
        ranks.update(tree, [1])
    assert ranks.rates[1] <= ranks.rates[0]  # Never a later child before an earlier one.
    assert ranks._accepted[1] / ranks._tried[1] > 0.9
    assert ranks._accepted[0] / ranks._tried[0] < 0.1


def test_paths_count_siblings_in_order():
    tree = TokenTree(np.arange(5), np.array([-1, 0, -1, 0, 3]))
    assert paths_of(tree) == {
        -1: (), 0: (0,), 1: (0, 0), 2: (1,), 3: (0, 1), 4: (0, 1, 0)
    }  # fmt: skip
