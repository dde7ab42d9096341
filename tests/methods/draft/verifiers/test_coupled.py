from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, hashed, play, reply_to
from paradecode.core.decoder import Reply
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.plain import Plain
from paradecode.methods.draft.verifiers import coupled

V = 8
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.02, "seed": 4},
    "penalised": {"temperature": 0.9, "presence_penalty": 1.5, "frequency_penalty": 0.5,
                  "repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "seed": 5},
    "greedy-penalised": {"repetition_penalty": 1.4, "frequency_penalty": 1.0, "min_tokens": 6},
}  # fmt: skip
all_params = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


def greedy_reply(*best: int) -> Reply:
    """Return a reply whose row i is sure of ``best[i]``."""
    return Reply(ArrayLogits(np.eye(V, dtype=np.float32)[list(best)]))


def tree_of(*nodes: tuple[int, int]) -> TokenTree:
    """Return the tree of nodes given as (token, parent)."""
    tokens, parents = zip(*nodes, strict=True)
    return TokenTree(np.array(tokens), np.array(parents))


@pytest.mark.parametrize(("tree", "best", "tokens", "rows"), [
    (EMPTY, [4], [4], [0]),
    (TokenTree.chain([1, 2]), [1, 2, 3], [1, 2, 3], [0, 1, 2]),
    (TokenTree.chain([1, 2]), [1, 5, 3], [1, 5], [0, 1]),
    (TokenTree.chain([1, 2]), [5, 2, 3], [5], [0]),
    # Two branches: only the second one's path is right.
    (tree_of((1, -1), (2, -1), (3, 1)), [2, 7, 3, 6], [2, 3, 6], [0, 2, 3]),
    # The right token under the wrong parent is not accepted.
    (tree_of((1, -1), (2, -1), (3, 0)), [2, 3, 3, 6], [2, 3], [0, 2]),
    # Equal siblings: the first one's row counts, and only its children.
    (tree_of((1, -1), (1, -1), (2, 0), (3, 1)), [1, 2, 2, 4, 5], [1, 2, 4], [0, 1, 3]),
    (tree_of((1, -1), (1, -1), (2, 1)), [1, 2, 2, 4], [1, 2], [0, 1]),
])  # fmt: skip
def test_greedy_walk(tree, best, tokens, rows):
    reply = greedy_reply(*best)
    verdict = coupled(Request([0]), tree, reply)
    assert verdict.tokens == tokens
    assert verdict.rows == rows
    assert verdict.logits is reply.logits


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 10))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    tokens = [draw(st.integers(0, V - 1)) for _ in range(size)]
    return TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))


def verdict_of(seq: Request, tree: TokenTree) -> list[int]:
    return coupled(seq, tree, reply_to(seq, tree, hashed(V))).tokens


def shuffled(tree: TokenTree, rng: np.random.Generator) -> TokenTree:
    """Return the same tree with its nodes in another legal order."""
    order: list[int] = []
    free = [node for node in range(len(tree)) if tree.parents[node] == ROOT]
    while free:
        node = free.pop(int(rng.integers(len(free))))
        order.append(node)
        free += [child for child in range(len(tree)) if tree.parents[child] == node]
    place = {node: index for index, node in enumerate(order)} | {ROOT: ROOT}
    parents = [place[int(tree.parents[node])] for node in order]
    return TokenTree(tree.tokens[order], np.array(parents, np.int32))


@all_params
@given(tree=trees(), prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=4))
def test_any_tree_yields_a_prefix_of_plain_decoding(params, tree, prompt):
    plain = play(Plain(), Request(prompt, stop_ids=[7], **params), hashed(V)).output
    got = verdict_of(Request(prompt, stop_ids=[7], **params), tree)
    shared = min(len(plain), len(got))  # Plain decoding ends at the stop token.
    assert got[:shared] == plain[:shared]


@all_params
@given(tree=trees(), prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=4))
def test_the_longest_right_path_is_accepted(params, tree, prompt):
    """The longest right path is accepted; where siblings are distinct, no right token is missed."""
    got = verdict_of(Request(prompt, **params), tree)
    merged = {
        tuple(tree.tokens[np.flatnonzero(tree.visibility[node])].tolist())
        for node in range(len(tree))
    }
    first = len({*zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)}) == len(tree)
    assert all(tuple(got[:end]) in merged for end in range(1, len(got)))
    if first:
        assert tuple(got) not in merged


@all_params
@given(tree=trees(), seed=st.integers(0, 1000))
def test_sibling_order_does_not_matter(params, tree, seed):
    edges = {*zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)}
    if len(edges) < len(tree):  # Of equal siblings the first counts: order matters there.
        tree = tree.select(np.zeros(len(tree), bool))
    other = shuffled(tree, np.random.default_rng(seed))
    one, two = (verdict_of(Request([1, 2], **params), each) for each in (tree, other))
    assert one == two


def test_sampled_decoding_differs_from_greedy():
    """Sampled outputs differ from greedy ones, so that the tests above do test sampling."""
    outputs = {
        name: tuple(play(Plain(), Request([1, 2], **params), hashed(V)).output)
        for name, params in PARAMS.items()
    }
    assert len(set(outputs.values())) == len(outputs)
