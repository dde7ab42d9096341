"""Tests of tree shapes that were measured beforehand: their files, and drafts that use them."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, draft
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.stand import NgramDistributions, Stand
from paradecode.methods.draft.model_free import DraftTree, load_tree
from paradecode.methods.specs import parse
from paradecode_lab.training.acceptance.draft_tree import rates_of

RATES = {(0,): 0.6, (0, 0): 0.4, (1,): 0.2, (0, 0, 0): 0.2, (0, 1): 0.1, (1, 0): 0.05}


@pytest.fixture
def tree(tmp_path) -> str:
    path = str(tmp_path / "own.tree")
    DraftTree(RATES).save(path, "own")
    return path


def test_a_file_gives_back_what_was_saved(tree):
    assert dict(load_tree(tree).rates) == RATES
    assert list(load_tree(tree).rates) == list(RATES)
    assert json.loads(Path(tree).read_text())["model"] == "own"


def test_the_best_places_are_the_shape(tree):
    shapes = [load_tree(tree).shape(count) for count in range(8)]
    assert shapes[0] == {}
    assert shapes[1] == {(): 1}
    assert shapes[4] == {(): 2, (0,): 1, (0, 0): 1}
    assert shapes[6] == shapes[7] == {(): 2, (0,): 2, (0, 0): 1, (1,): 1}


@pytest.mark.parametrize("places", [
    {}, {"0 0": 0.5}, {"1": 0.5}, {"": 0.5}, {"-1": 0.5}, {"0": 0.5, "0 0": 0.6}, {"0": 1.5},
    {"0": -0.5}, {"0": float("nan")}, {"0 0": 0.5, "0": 0.5}, {"0": "x"}, {"0": 10**400},
    {"a": 0.5}, {"0" + " 0" * n: 0.5 for n in range(5000)}, 3,
])  # fmt: skip
def test_damaged_files_are_refused(tmp_path, places):
    path = tmp_path / "own.tree"
    path.write_text(json.dumps({"places": places}))
    with pytest.raises(InvalidInput, match="tree"):
        load_tree(str(path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"places":' + "[" * 200_000])
def test_files_that_hold_no_tree_are_refused(tmp_path, text):
    path = tmp_path / "own.tree"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="tree"):
        Stand(tree=str(path))
    with pytest.raises(InvalidInput, match="tree"):
        Stand(tree=str(tmp_path / "none"))


PATHS = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple)


@given(st.dictionaries(PATHS, st.integers(1, 50), min_size=1, max_size=60))
def test_measured_places_are_a_tree_whatever_was_counted(tmp_path_factory, counts):
    """Each place comes after its parent and earlier siblings, which were right as often or more."""
    rates = rates_of(Counter(counts), 100)
    assert all(rates[ranks] >= count / 100 for ranks, count in counts.items())
    path = str(tmp_path_factory.mktemp("tree") / "own.tree")
    DraftTree(rates).save(path, "own")
    assert load_tree(path).rates.keys() == rates.keys()
    assert max(rates.values()) == max(counts.values()) / 100


def learned() -> dict[str, object]:
    """Return a store that knows what follows each pair of eight tokens."""
    store, random = NgramDistributions(), np.random.default_rng(0)
    for pair in product(range(8), repeat=2):
        store.add(pair, random.permutation(8).astype(np.int32), random.dirichlet(np.ones(8)))
    return {"stand": store}


@pytest.mark.parametrize("count", [1, 3, 6, 20])
def test_drafts_have_the_shape(tree, count):
    wanted = load_tree(tree).shape(count)
    made = draft(Stand(tree=tree), Request([1, 2], stores=learned()), count)
    assert shape_of(made) == wanted
    free = draft(Stand(width=1), Request([1, 2], stores=learned()), 6)
    assert free.is_chain  # Not what the tree has.


@pytest.mark.parametrize("verifier", ["rsd", "traversal"])
def test_drawn_drafts_have_the_shape(tree, verifier):
    decoder = parse({"method": "stand", "tree": tree, "verifier": verifier})()
    made = draft(decoder.drafter, Request([1, 2], stores=learned(), temperature=0.8), 6)
    assert made.sampled
    assert shape_of(made) == load_tree(tree).shape(6)


def test_a_tree_with_few_candidates_is_filled_as_far_as_they_go(tree):
    store = NgramDistributions()
    store.add((1, 2), np.array([5], np.int32), np.array([1.0]))
    made = draft(Stand(tree=tree), Request([1, 2], stores={"stand": store}), 6)
    assert made.tokens.tolist() == [5]


def shape_of(tree) -> dict[tuple[int, ...], int]:
    ranks: dict[int, tuple[int, ...]] = {-1: ()}
    for node in range(-1, len(tree)):
        for rank, child in enumerate(tree.children(node)):
            ranks[child] = (*ranks[node], rank)
    return {ranks[n]: len(tree.children(n)) for n in ranks if tree.children(n)}
