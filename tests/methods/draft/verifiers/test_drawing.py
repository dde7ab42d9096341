from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from chisquare import SIGNIFICANT, p_value
from languages import Language, Rule, emitted, likelihood

from paradecode.core.drawing import Beam, Growth, child_key, distribution, draw_iid, draw_swor
from paradecode.core.errors import DecoderError
from paradecode.core.logits import ArrayLogits, Warp
from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.methods.draft.verifiers import RULES

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


@pytest.mark.parametrize("draw", [draw_iid, draw_swor])
def test_draws_go_on_where_they_ended(draw):
    for base in keys(50):
        whole = draw(IDS, Q, base, 4)
        assert draw(IDS, Q, base, 1) + draw(IDS, Q, base, 3, 1) == whole
        assert draw(IDS, Q, base, 0) == []


def test_draws_never_give_what_q_excludes():
    q = np.array([0.0, 0.7, 0.0, 0.3])
    for base in keys(100):
        assert set(draw_iid(IDS, q, base, 5)) <= {4, 9}
        assert sorted(draw_swor(IDS, q, base, 5)) == [4, 9]


def test_children_have_noise_of_their_own():
    bases = {child_key(base, rank) for base in keys(20) for rank in range(20)}
    assert len(bases | set(keys(20))) == 420


def test_distribution_is_sparse_and_warped():
    logits = ArrayLogits(np.log(np.array([[1, 2, 4, 8], [8, 4, 2, 1]], np.float64)))
    ids, q = distribution(logits, 1, Warp(1.0, top_k=2))
    assert ids.tolist() == [0, 1]
    assert q.tolist() == pytest.approx([2 / 3, 1 / 3])
    ids, q = distribution(logits, 0, Warp(0.0))
    assert (ids.tolist(), q.tolist()) == ([3], [1.0])


def test_growth_notes_what_was_drawn():
    growth = Growth(sampler())
    first, second = growth.swor(ROOT, IDS, Q, 2)
    below = growth.iid(first, IDS, Q, 3)
    growth.det(second, [2, 3])
    tree = growth.tree()
    assert [tree.mode(node) for node in (ROOT, first, second)] == [Mode.SWOR, Mode.IID, Mode.DET]
    assert tree.children(ROOT) == [first, second]
    assert tree.children(first) == below
    assert tree.estimates[first] == pytest.approx(SHARE[int(tree.tokens[first])])
    assert len(growth) == len(tree) == 7


def test_growth_may_draw_one_by_one():
    at_once, one_by_one = Growth(sampler(3)), Growth(sampler(3))
    at_once.swor(ROOT, IDS, Q, 3)
    for _ in range(3):
        one_by_one.swor(ROOT, IDS, Q, 1)
    assert at_once.tree().tokens.tolist() == one_by_one.tree().tokens.tolist()
    assert at_once.keys == one_by_one.keys


def test_growth_refuses_to_mix_draws_of_one_node():
    for later in (lambda g: g.iid(ROOT, IDS, Q, 1), lambda g: g.det(ROOT, [7]),
                  lambda g: g.swor(ROOT, IDS, Q[::-1], 1)):  # fmt: skip
        growth = Growth(sampler())
        growth.swor(ROOT, IDS, Q, 1)
        with pytest.raises(DecoderError, match="one way"):
            later(growth)


def test_pooled_draws_share_a_node():
    for seed in range(20):
        growth = Growth(sampler(seed))
        found = growth.pooled(ROOT, IDS, Q, 5)
        tree = growth.tree()
        assert sum(found.values()) == 5 == len(tree.children(ROOT))
        assert len(set(tree.tokens.tolist())) == len(tree) == len(found)
        assert all(tree.children(ROOT).count(node) == copies for node, copies in found.items())


def test_surgery_by_drawing_order_keeps_the_draws():
    growth = Growth(sampler())
    _, second = growth.swor(ROOT, IDS, Q, 2)
    growth.swor(second, IDS, Q, 2)
    tree = growth.tree()
    for part in (tree.first(3), tree.clip(2)):
        assert part.mode(ROOT) is part.mode(second) is Mode.SWOR
    assert set(tree.clip(1).drawn) == {ROOT}
    assert set(tree.first(2).drawn) == {ROOT}
    assert not tree.first(0).sampled


def test_surgery_that_may_look_at_draws_makes_every_node_det():
    growth = Growth(sampler())
    growth.swor(ROOT, IDS, Q, 2)
    tree = growth.tree()
    everything = np.ones(len(tree), bool)
    for part in (tree.best(1), tree.best(9), tree.select(everything), tree.determined()):
        assert tree.sampled
        assert not part.sampled
    growth = Growth(sampler())
    growth.pooled(ROOT, IDS, Q, 2)
    assert not growth.tree().first(9).sampled
    assert growth.tree().clip(9).sampled


@pytest.mark.parametrize(
    ("ids", "q"),
    [([1, 1], [0.5, 0.5]), ([2, 1], [0.5, 0.5]), ([1], [0.5, 0.5]), ([1, 2], [0, 0]),
     ([1, 2], [-1, 2]), ([1, 2], [np.nan, 1]), ([1, 2], [np.inf, 1])],
)  # fmt: skip
def test_bad_q_is_refused(ids, q):
    with pytest.raises(DecoderError, match="q"):
        Drawn(Mode.IID, np.array(ids), np.array(q, float))


def test_draws_of_unknown_nodes_are_refused():
    with pytest.raises(DecoderError, match="children were drawn for node 1"):
        TokenTree(np.array([1]), np.array([-1]), drawn={1: Drawn(Mode.IID, IDS, Q)})
    with pytest.raises(DecoderError, match="leave"):
        Drawn(Mode.DET, IDS, Q)


def beam_tree(language: Language, seed: int) -> TokenTree:
    growth = Growth(sampler(seed))
    beam, ids = Beam(growth, 2), np.arange(language.v, dtype=np.int32)
    words = {ROOT: ()}
    for _ in range(2):
        nodes = beam.grow([(ids, language.q(words[node])) for node in beam.nodes])
        for node in nodes:
            words[node] = (*words[growth.parents[node]], growth.tokens[node])
    return growth.tree()


def deviation(rule: Rule, trees: list[TokenTree], language: Language) -> float:
    """Largest deviation from the target's law, in standard errors; acceptance is summed exactly."""
    words = list(product(range(language.v), repeat=3))
    truth = np.array([likelihood(language, word) for word in words])
    laws = []
    for tree in trees:
        full = dict.fromkeys(words, 0.0)
        for start, weight in emitted(rule, [(1.0, tree)], language).items():
            for word in words:
                if word[: len(start)] == start:
                    full[word] += weight * likelihood(language, word) / likelihood(language, start)
        laws.append(list(full.values()))
    errors = np.std(laws, axis=0) / np.sqrt(len(laws)) + 1e-12
    return float((np.abs(np.mean(laws, axis=0) - truth) / errors).max())


def reranked(tree: TokenTree) -> TokenTree:
    """Siblings in the order of q, not in that of the draws."""
    order = np.lexsort((-tree.estimates, tree.parents))
    place = {ROOT: ROOT, **{int(node): new for new, node in enumerate(order)}}
    return TokenTree(
        tree.tokens[order],
        np.array([place[int(parent)] for parent in tree.parents[order]]),
        drawn={place[node]: drawn for node, drawn in tree.drawn.items()},
    )


FAR = 5.6
"""Standard errors; one of 27 normal deviations is that large once in two million."""


@pytest.fixture(scope="module")
def beams() -> list[TokenTree]:
    return [beam_tree(Language(1), seed) for seed in range(1000)]


@pytest.mark.parametrize("name", ["rsd", "traversal"])
def test_stochastic_beams_give_the_law(name, beams):
    assert {len(tree) for tree in beams} == {4}
    assert deviation(RULES[name], beams, Language(1)) < FAR


def test_reranked_beams_do_not(beams):
    assert deviation(RULES["rsd"], [reranked(tree) for tree in beams], Language(1)) > FAR


def test_stochastic_beams_keep_the_best_texts_in_order():
    for seed in range(30):
        tree = beam_tree(Language(2), seed)
        assert tree.depths.tolist() == [1, 1, 2, 2]
        for node in (ROOT, 0, 1):
            assert len({int(tree.tokens[child]) for child in tree.children(node)}) == len(
                tree.children(node)
            )
