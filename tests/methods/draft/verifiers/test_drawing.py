from collections import Counter
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from chisquare import SIGNIFICANT, p_value

from paradecode.core.errors import DecoderError
from paradecode.core.logits import ArrayLogits, Warp
from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.core.tree_builder import (
    TreeBuilder,
    distribution,
    draw,
    draw_iid,
    draw_pooled,
    draw_swor,
    noise_key,
)

IDS = np.array([1, 4, 5, 9], np.int32)
Q = np.array([0.5, 0.05, 0.3, 0.15])
SHARE = dict(zip(IDS.tolist(), Q.tolist()))
RUNS = 4000


def sampler(seed: int = 0) -> Sampler:
    return Sampler(SamplingParams(seed=seed), np.array([0], np.int32), ())


def keys(count: int = RUNS) -> list[int]:
    return [key(7, position, Purpose.DRAFT) for position in range(count)]


def test_draws_with_replacement_follow_q():
    counts = Counter(tuple(draw_iid(IDS, Q, base, 2)) for base in keys())
    law = {pair: SHARE[pair[0]] * SHARE[pair[1]] for pair in product(SHARE, repeat=2)}
    assert p_value(counts, law) > SIGNIFICANT
    assert p_value(counts, {pair: 1 / len(law) for pair in law}) < SIGNIFICANT


def test_draws_without_replacement_follow_q_in_order():
    counts = Counter(tuple(draw_swor(IDS, Q, base, 3)) for base in keys())
    law = {
        word: prod(SHARE[token] / (1 - sum(SHARE[t] for t in word[:i]))
                   for i, token in enumerate(word))
        for word in permutations(SHARE, 3)
    }  # fmt: skip
    assert p_value(counts, law) > SIGNIFICANT


@pytest.mark.parametrize("one_by_one", [draw_iid, draw_swor])
def test_draws_go_on_where_they_ended(one_by_one):
    for base in keys(50):
        whole = one_by_one(IDS, Q, base, 4)
        assert one_by_one(IDS, Q, base, 1) + one_by_one(IDS, Q, base, 3, 1) == whole
        assert one_by_one(IDS, Q, base, 0) == []


def test_draws_never_give_what_q_excludes():
    q = np.array([0.0, 0.7, 0.0, 0.3])
    for base in keys(100):
        assert set(draw_iid(IDS, q, base, 5)) <= {4, 9}
        assert sorted(draw_swor(IDS, q, base, 5)) == [4, 9]


def test_children_have_noise_of_their_own():
    tree, bases = TreeBuilder(), set[int]()
    for node in (ROOT, *(tree.add(ROOT, token) for token in range(20))):
        for token in range(20):
            bases.add(noise_key(tree, sampler(), tree.add(node, token)))
    assert len(bases | {noise_key(tree, sampler(), ROOT)}) == 421


def test_distribution_is_sparse_and_warped():
    logits = ArrayLogits(np.log(np.array([[1, 2, 4, 8], [8, 4, 2, 1]], np.float64)))
    ids, q = distribution(logits, 1, Warp(1.0, top_k=2))
    assert ids.tolist() == [0, 1]
    assert q.tolist() == pytest.approx([2 / 3, 1 / 3])
    ids, q = distribution(logits, 0, Warp(0.0))
    assert (ids.tolist(), q.tolist()) == ([3], [1.0])


def swor(tree: TreeBuilder, node: int, count: int, seed: int = 0) -> list[int]:
    return draw(tree, sampler(seed), node, Mode.SWOR, IDS, Q, count)


def test_a_tree_notes_what_was_drawn():
    builder = TreeBuilder()
    first, second = swor(builder, ROOT, 2)
    below = draw(builder, sampler(), first, Mode.IID, IDS, Q, 3)
    for token in (2, 3):
        builder.add(second, token)
    tree = builder.tree()
    assert [tree.mode(node) for node in (ROOT, first, second)] == [Mode.SWOR, Mode.IID, Mode.DET]
    assert tree.children(ROOT) == [first, second]
    assert tree.children(first) == below
    assert tree.estimates[first] == pytest.approx(SHARE[int(tree.tokens[first])])
    assert len(builder) == len(tree) == 7


def test_children_may_be_drawn_one_by_one():
    at_once, one_by_one = TreeBuilder(), TreeBuilder()
    swor(at_once, ROOT, 3, seed=3)
    for _ in range(3):
        swor(one_by_one, ROOT, 1, seed=3)
    assert at_once.tree().tokens.tolist() == one_by_one.tree().tokens.tolist()


def test_draws_of_one_node_are_not_mixed():
    for later in (
        lambda tree: draw(tree, sampler(), ROOT, Mode.IID, IDS, Q, 1),
        lambda tree: draw(tree, sampler(), ROOT, Mode.SWOR, IDS, Q[::-1], 1),
        lambda tree: tree.add(ROOT, 7),
    ):
        tree = TreeBuilder()
        swor(tree, ROOT, 1)
        with pytest.raises(DecoderError, match="one way"):
            later(tree)
    chosen = TreeBuilder()
    chosen.add(ROOT, 1)
    with pytest.raises(DecoderError, match="one way"):
        swor(chosen, ROOT, 1)


def test_pooled_draws_share_a_node():
    for seed in range(20):
        builder = TreeBuilder()
        found = draw_pooled(builder, sampler(seed), ROOT, IDS, Q, 5)
        tree = builder.tree()
        assert sum(found.values()) == 5 == len(tree.children(ROOT))
        assert len(set(tree.tokens.tolist())) == len(tree) == len(found)
        assert all(tree.children(ROOT).count(node) == copies for node, copies in found.items())


def test_surgery_by_drawing_order_keeps_the_draws():
    builder = TreeBuilder()
    _, second = swor(builder, ROOT, 2)
    swor(builder, second, 2)
    tree = builder.tree()
    for part in (tree.first(3), tree.clip(2)):
        assert part.mode(ROOT) is part.mode(second) is Mode.SWOR
    assert set(tree.clip(1).drawn) == {ROOT}
    assert set(tree.first(2).drawn) == {ROOT}
    assert not tree.first(0).sampled


def test_surgery_that_may_look_at_draws_makes_every_node_det():
    builder = TreeBuilder()
    swor(builder, ROOT, 2)
    tree = builder.tree()
    everything = np.ones(len(tree), bool)
    for part in (tree.best(1), tree.best(9), tree.select(everything), tree.determined()):
        assert tree.sampled
        assert not part.sampled
    pooled = TreeBuilder()
    draw_pooled(pooled, sampler(), ROOT, IDS, Q, 2)
    assert not pooled.tree().first(1).sampled
    assert pooled.tree().first(2).sampled  # So many were drawn, whatever they were.
    assert pooled.tree().clip(9).sampled


@pytest.mark.parametrize(("ids", "q"), [
    ([1, 1], [0.5, 0.5]), ([2, 1], [0.5, 0.5]), ([1], [0.5, 0.5]), ([1, 2], [0, 0]),
    ([1, 2], [-1, 2]), ([1, 2], [np.nan, 1]), ([1, 2], [np.inf, 1]),
])  # fmt: skip
def test_bad_q_is_refused(ids, q):
    with pytest.raises(DecoderError, match="q"):
        Drawn(Mode.IID, np.array(ids), np.array(q, float))


def test_draws_of_unknown_nodes_are_refused():
    with pytest.raises(DecoderError, match="children were drawn for node 1"):
        TokenTree(np.array([1]), np.array([-1]), drawn={1: Drawn(Mode.IID, IDS, Q)})
    with pytest.raises(DecoderError, match="leave"):
        Drawn(Mode.DET, IDS, Q)
