"""Draft heads give the same drafts however rows are split, requests batched, or trees shaped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.logits import Warp
from paradecode.core.tree import ROOT, TokenTree
from paradecode.models.config import Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import KINDS, random_head
from paradecode.testing.network_reference import apply_network

CONFIG = uniform("t", "llama", 40, 16, 8, 2, 1, 8, 8, rope=Rope(dim=8))


def nothing(name: str) -> np.ndarray:
    raise AssertionError(f"these heads need no {name} of the target")


@pytest.fixture(params=KINDS)
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Head:
    return build_head(read_head(random_head(request.param, CONFIG, tmp_path)), CONFIG, nothing)


def rows(head: Head, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    width = head.enter.inputs["features"]
    features = random.standard_normal((count, width)).astype(np.float32)
    return features, random.integers(0, 40, count)


def asked(head: Head, known: int, seed: int = 0, **changes) -> HeadDraft:
    features, tokens = rows(head, known, seed)
    settings = {"count": 12, "width": 3, "depth": 4, **changes}
    return HeadDraft(Memory(), features, tokens, 0, **settings)


def shown(tree: TokenTree) -> list[tuple[int, int, float]]:
    columns = tree.tokens.tolist(), tree.parents.tolist(), tree.estimates.round(4).tolist()
    return list(zip(*columns))


def test_pieces_and_drafts_between_them_change_nothing(head):
    (whole,) = run_head(head, [asked(head, 11)], apply_network)
    features, tokens = rows(head, 11)
    memory = Memory()
    for first, last in ((0, 4), (4, 5), (5, 11)):
        part = HeadDraft(memory, features[first:last], tokens[first:last], first, 12, 3, 4)
        (tree,) = run_head(head, [part], apply_network)
    assert shown(tree) == shown(whole)
    assert memory.length == 11


def test_company_changes_nothing(head):
    alone = [run_head(head, [asked(head, n, n)], apply_network)[0] for n in (1, 4, 9)]
    together = run_head(head, [asked(head, n, n) for n in (1, 4, 9)], apply_network)
    assert list(map(shown, together)) == list(map(shown, alone))


def test_a_node_of_a_tree_says_what_it_says_in_a_chain(head):
    """The children of a node depend on the node's path only, not on its siblings."""
    if head.masks is not None or head.mask is not None or not head.blocks or head.together > 1:
        pytest.skip("it drafts all levels without knowing the others")
    (tree,) = run_head(head, [asked(head, 6)], apply_network)
    features, tokens = rows(head, 6)
    forked = [n for n in range(len(tree)) if tree.parents[n] == ROOT and tree.children(n)]
    assert len(forked) > 1
    for node in forked:
        # A head that may propose only this token at first.
        path = {
            int(tree.tokens[child]): float(tree.estimates[child]) for child in tree.children(node)
        }
        steps: list[int] = []

        def only(network, items, node=node, steps=steps):
            made = apply_network(network, items)
            if network is head.outs[0] and not steps:
                steps.append(1)
                ids = np.arange(40) if head.to_target is None else head.to_target
                for each in made:
                    each[:, ids != tree.tokens[node]] = -1e9
            return made

        (alone,) = run_head(head, [HeadDraft(Memory(), features, tokens, 0, 12, 3, 2)], only)
        said = {
            int(alone.tokens[child]): float(alone.estimates[child])
            for child in alone.children(alone.child(ROOT, int(tree.tokens[node])))
        }
        assert path == {token: pytest.approx(said[token], abs=1e-5) for token in path}


def test_a_tree_keeps_its_bounds(head):
    for count, width, depth in ((1, 1, 1), (5, 1, 16), (12, 3, 2), (40, 4, 3)):
        (tree,) = run_head(
            head, [asked(head, 5, count=count, width=width, depth=depth)], apply_network
        )
        assert 0 < len(tree) <= count
        assert tree.depths.max() <= depth
        assert max(len(tree.children(node)) for node in range(-1, len(tree))) <= width
        assert (tree.estimates >= 0).all()
        assert (tree.estimates <= 1).all()


def test_unlikely_nodes_are_not_expanded(head):
    (tree,) = run_head(head, [asked(head, 5, least=0.999)], apply_network)
    assert len(tree) == 0 or tree.depths.max() == 1


def test_noise_ranks_as_the_targets_own_draw_does(head):
    """With keys, the first guess is the argmax of the head's scores plus that position's noise."""
    from paradecode.core.noise import gumbel

    logits: dict[int, np.ndarray] = {}
    parts = {id(head.outs[0]), id(head.masks.bias if head.masks else None)}

    def run(network, items):
        made = apply_network(network, items)
        if id(network) in parts:
            logits.setdefault(id(network), made[0][0])
        return made

    keys = (11, 12, 13, 14)
    draft = asked(head, 5, warp=Warp(0.9), keys=keys)
    (tree,) = run_head(head, [draft], run)
    ids = np.arange(40, dtype=np.int32) if head.to_target is None else head.to_target
    best = ids[np.argmax(sum(logits.values()) / 0.9 + gumbel(keys[0], ids))]
    assert tree.tokens[tree.children(ROOT)[0]] == best


def test_rows_that_are_not_this_heads_are_refused(head):
    draft = asked(head, 3)
    for features in (draft.features[:2], draft.features[:, 1:], draft.features[:0]):
        with pytest.raises(InvalidInput, match="features"):
            head.check(replace(draft, features=features))
