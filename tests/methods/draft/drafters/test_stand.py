"""Tests of STAND: running means of at most ten tokens, changed only after verifications."""

import numpy as np
import pytest

from drafting import Request, draft, hashed, play
from paradecode.methods.draft.contracts import Offer
from paradecode.methods.draft.drafters.stand import WIDTH, NgramDistributions, Stand
from paradecode.methods.specs import parse


def test_visits_are_averaged():
    store = NgramDistributions()
    store.add((1, 2), np.array([5, 6], np.int32), np.array([0.8, 0.2]))
    store.add((1, 2), np.array([6, 7], np.int32), np.array([0.5, 0.5]))
    store.add((1, 2), np.array([7], np.int32), np.array([1.0]))
    ids, chances = store.of((1, 2))
    assert dict(zip(ids.tolist(), chances)) == pytest.approx({5: 0.8 / 3, 6: 0.7 / 3, 7: 0.5})
    assert ids.tolist() == [7, 5, 6]


def test_at_most_ten_tokens_and_so_many_entries():
    store, random = NgramDistributions(most_entries=4), np.random.default_rng(0)
    for step in range(60):
        ids = random.permutation(50)[:WIDTH].astype(np.int32)
        store.add((step % 6, 1), ids, np.sort(random.uniform(0, 1, WIDTH))[::-1])
        ids, chances = store.of((step % 6, 1))
        assert len(ids) == len(set(ids.tolist())) <= WIDTH
        assert chances.sum() == pytest.approx(1.0)
        assert (np.diff(chances) <= 1e-12).all()
    assert len(store) == 4


def test_the_longest_known_ngram_decides():
    stores: dict[str, object] = {"stand": NgramDistributions()}
    store = stores["stand"]
    store.add((2, 3), np.array([7], np.int32), np.array([1.0]))
    store.add((1, 2, 3), np.array([8], np.int32), np.array([1.0]))
    assert draft(Stand(), Request([1, 2, 3], stores=stores)).tokens.tolist() == [8]
    assert draft(Stand(), Request([0, 2, 3], stores=stores)).tokens.tolist() == [7]
    assert len(draft(Stand(), Request([2, 0, 3], stores=stores))) == 0


def test_drafts_share_the_noise_at_the_temperature_of_the_request():
    """At a low temperature the likeliest token is drafted, at a high one nearly any token."""
    ids, chances = np.arange(4, dtype=np.int32), np.array([0.4, 0.3, 0.2, 0.1])
    shares = {}
    for temperature in (0.2, 1.0, 5.0):
        stores: dict[str, object] = {"stand": NgramDistributions()}
        stores["stand"].add((1, 2), ids, chances)
        first = []
        for seed in range(300):
            stand = Stand(width=1)
            stand.begin(Offer(stand.offer.budget, noise=True))
            seq = Request([1, 2], stores=stores, temperature=temperature, seed=seed)
            first.append(int(draft(stand, seq).tokens[0]))
        shares[temperature] = first.count(0) / len(first)
        weights = chances ** (1 / temperature)
        assert shares[temperature] == pytest.approx(weights[0] / weights.sum(), abs=0.1)
    assert shares[0.2] > shares[1.0] + 0.2 > shares[5.0] + 0.2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_later_trajectories_are_faster(temperature):
    """A tenant's first request gains little, as its n-grams are new; later ones gain more."""
    stores: dict[str, object] = {}
    target = hashed(8, memory=2)
    rates = [
        play(
            "stand", Request([1, 2], 150, stores, temperature=temperature, seed=seed), target
        ).tokens_per_step
        for seed in range(4)
    ]
    assert rates[-1] > 2.5
    assert rates[-1] > rates[0]
    alone = Request([1, 2], 150, temperature=temperature, seed=0)
    assert play("stand", alone, target).tokens_per_step == rates[0]


def test_a_verifier_that_tests_draws_gets_the_q_that_they_came_from():
    """A node's q is the distribution of the longest stored n-gram, at the request's temperature."""
    stores: dict[str, object] = {}
    target = hashed(8, memory=2)
    play("stand", Request([1, 2], 200, stores, temperature=1.0), target)
    seq = Request([1, 2], stores=stores, temperature=0.5, seed=3)
    decoder = parse("stand(verifier=rsd,width=2,depth=3)")()
    tree = draft(decoder.drafter, seq, 8)
    assert len(tree) == 8
    assert tree.sampled
    assert int(tree.depths.max()) <= 3
    for node, drawn in tree.drawn.items():
        text = (1, 2, *tree.tokens_to(node))
        _, (ids, chances) = stores["stand"].longest(text, 4)
        stored = dict(zip(ids.tolist(), chances**2 / (chances**2).sum()))
        assert dict(zip(drawn.ids.tolist(), drawn.probabilities)) == pytest.approx(stored)
        assert 1 <= len(tree.children(node)) <= 2
