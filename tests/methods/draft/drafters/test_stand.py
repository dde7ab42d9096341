"""STAND's card: running means, at most ten tokens, stores that change after verification only."""

from __future__ import annotations

import numpy as np
import pytest
from drafting import Request, draft, hashed, play

from paradecode.methods.draft.drafters.stand import Stand
from paradecode.methods.draft.loop import Offer
from paradecode.methods.draft.ngram_distributions import WIDTH, NgramDistributions


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


@pytest.mark.parametrize("noise", [False, True])
def test_drafts_are_drawn_at_the_temperature_of_the_request(noise):
    """A cold request drafts the likeliest token, a hot one nearly any; with fair noise either."""
    ids, chances = np.arange(4, dtype=np.int32), np.array([0.4, 0.3, 0.2, 0.1])
    shares, estimates = {}, {}
    for temperature in (0.2, 1.0, 5.0):
        first = []
        for seed in range(300):
            stand = Stand(width=1)
            stand.begin(Offer(stand.offer.budget, noise=noise))
            seq = Request([1, 2], temperature=temperature, seed=seed)
            (token,), (estimate,) = stand._drawn(seq, 0, ids, chances)
            first.append(token)
            estimates[temperature, token] = estimate
        shares[temperature] = first.count(0) / len(first)
        weights = chances ** (1 / temperature)
        assert shares[temperature] == pytest.approx(weights[0] / weights.sum(), abs=0.1)
        if not noise:  # Noise that is shared is part of the estimate.
            assert estimates[temperature, 0] == pytest.approx(weights[0] / weights.sum())
    assert shares[0.2] > shares[1.0] + 0.2 > shares[5.0] + 0.2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_later_trajectories_are_faster(temperature):
    """The first at about plain speed, as its n-grams are new; tenants learn alone."""
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


def test_independent_draws_differ_from_node_to_node_and_repeat():
    stores: dict[str, object] = {}
    play("stand", Request([1, 2], 200, stores, temperature=1.0), hashed(8, memory=2))
    seq = Request([1, 2], stores=stores, temperature=1.0, seed=5)
    trees = [draft(Stand(width=2), seq, 12) for _ in range(2)]
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    for node in (-1, *range(len(trees[0]))):
        children = trees[0].tokens[trees[0].parents == node].tolist()
        assert len(children) == len(set(children)) <= 2
