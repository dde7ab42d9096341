import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.errors import DecoderError
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.core.tree_builder import TreeBuilder, merge
from tiers import examples


@st.composite
def trees(draw: st.DrawFn, max_size: int = 12) -> TokenTree:
    size = draw(st.integers(0, max_size))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    tokens = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    estimates = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=size, max_size=size))
    return TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(estimates))


def path(tree: TokenTree, node: int) -> list[int]:
    """Return the nodes from depth 1 to ``node``."""
    nodes: list[int] = []
    while node != ROOT:
        nodes.insert(0, node)
        node = int(tree.parents[node])
    return nodes


def words(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the token path of each node, which does not depend on the nodes' numbering."""
    return [tuple(tree.tokens[path(tree, node)].tolist()) for node in range(len(tree))]


def test_chain():
    tree = TokenTree.chain([5, 6, 7], [0.5, 0.5, 1.0])
    assert tree.is_chain
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.depths.tolist() == [1, 2, 3]
    assert tree.visibility.tolist() == np.tri(3, dtype=bool).tolist()
    assert tree.reach.tolist() == [0.5, 0.25, 0.25]
    assert TokenTree.chain([1, 2]).estimates.tolist() == [1, 1]


def test_two_branches():
    #   root -> 0 -> 2
    #        -> 1
    tree = TokenTree(np.array([8, 9, 8]), np.array([-1, -1, 0]))
    assert not tree.is_chain
    assert tree.depths.tolist() == [1, 1, 2]
    assert tree.visibility.tolist() == [[True, False, False], [False, True, False],
                                        [True, False, True]]  # fmt: skip
    assert tree.child(ROOT, 8) == 0
    assert tree.child(ROOT, 9) == 1
    assert tree.child(0, 8) == 2
    assert tree.child(0, 9) is None
    assert tree.child(1, 8) is None


def test_first_of_equal_siblings_is_the_child():
    tree = TokenTree(np.array([4, 4, 4]), np.array([-1, -1, 0]))
    assert tree.child(ROOT, 4) == 0


def test_empty_tree():
    assert len(EMPTY) == 0
    assert EMPTY.is_chain
    assert EMPTY.visibility.shape == (0, 0)
    assert EMPTY.child(ROOT, 0) is None
    assert len(EMPTY.clip(0)) == len(EMPTY.best(3)) == len(EMPTY.select(np.zeros(0, bool))) == 0


@pytest.mark.parametrize(("tokens", "parents", "estimates"), [
    ([1, 2], [1, 0], None),  # a cycle
    ([1], [0], None),  # its own parent
    ([1, 2], [-1, 2], None),  # a parent that does not exist
    ([1, 2], [-2, 0], None),  # below the root
    ([1, 2], [1, -1], None),  # a child before its parent
    ([1, 2], [-1], None),
    ([1], [-1, 0], None),
    ([[1, 2]], [[-1, 0]], None),
    ([1, 2], [-1, 0], [1.0]),
    ([1, 2], [-1, 0], []),
    ([1], [-1], [[1.0]]),
    ([1 << 32], [-1], None),
    ([5], [1 << 32], None),
    ([0.5], [-1], None),
])  # fmt: skip
def test_malformed_trees_are_refused(tokens, parents, estimates):
    extra = () if estimates is None else (np.array(estimates, np.float32),)
    with pytest.raises(DecoderError, match="token tree"):
        TokenTree(np.array(tokens), np.array(parents), *extra)


@given(trees())
def test_derived_arrays_follow_the_paths(tree):
    for node in range(len(tree)):
        nodes = path(tree, node)
        assert tree.path(node) == nodes
        assert tree.tokens_to(node) == tree.tokens[nodes].tolist()
        assert tree.depths[node] == len(nodes)
        assert np.flatnonzero(tree.visibility[node]).tolist() == nodes
        assert tree.reach[node] == np.prod(tree.estimates[nodes])
    chain = all(tree.parents[node] == node - 1 for node in range(len(tree)))
    assert tree.is_chain == chain


@given(trees(), st.data())
def test_select_is_closed_under_ancestors(tree, data):
    marks = np.array([data.draw(st.booleans()) for _ in range(len(tree))], bool)
    before = marks.copy()
    kept = [n for n in range(len(tree)) if all(marks[path(tree, n)])]
    part = tree.select(marks)
    assert words(part) == [words(tree)[n] for n in kept]
    assert part.estimates.tolist() == tree.estimates[kept].tolist()
    assert (marks == before).all()


@given(trees(), st.integers(0, 6))
def test_clip_keeps_exactly_the_shallow_nodes(tree, depth):
    assert words(tree.clip(depth)) == [word for word in words(tree) if len(word) <= depth]


@given(trees(), st.integers(-1, 14))
def test_best_keeps_the_most_likely(tree, count):
    best = tree.best(count)
    assert len(best) == min(max(count, 0), len(tree))  # Parents are never less likely.
    top = sorted(tree.reach.tolist(), reverse=True)[: len(best)]
    assert sorted(best.reach.tolist(), reverse=True) == top


@given(trees())
def test_child_finds_every_first_node(tree):
    seen = set()
    for node in range(len(tree)):
        edge = (int(tree.parents[node]), int(tree.tokens[node]))
        if edge not in seen:
            assert tree.child(*edge) == node
        seen.add(edge)


@given(trees(), st.lists(st.integers(0, 3), max_size=6))
def test_follow_goes_as_far_as_the_tree(tree, tokens):
    met = tree.follow(tokens)
    assert tree.tokens[met].tolist() == tokens[: len(met)]
    for node, parent in zip(met, [ROOT, *met]):
        assert tree.child(parent, int(tree.tokens[node])) == node
    if len(met) < len(tokens):
        assert tree.child(met[-1] if met else ROOT, tokens[len(met)]) is None


@given(trees(), trees())
def test_locate_finds_the_paths_that_both_have(one, other):
    other = merge([TokenTree.chain([9]), other])  # No equal children.
    found = one.locate(other.child)
    assert found.pop(ROOT) == ROOT
    assert all(one.tokens_to(node) == other.tokens_to(same) for node, same in found.items())
    assert {*map(tuple, map(one.tokens_to, found))} == {*words(one)} & {*words(other)}


@given(trees(), trees(), st.data())
def test_extend_hangs_roots_where_it_is_told(tree, other, data):
    assert words(tree.extend(other)) == words(tree) + words(other)
    under = [data.draw(st.integers(ROOT, len(tree) - 1)) for _ in range(len(other))]
    longer = tree.extend(other, np.array(under, np.int32))
    roots = [other.path(node)[0] for node in range(len(other))]
    assert words(longer) == words(tree) + [
        (*tree.tokens_to(under[root]), *word) for root, word in zip(roots, words(other))
    ]
    assert longer.estimates.tolist() == [*tree.estimates.tolist(), *other.estimates.tolist()]
    assert longer.is_chain == all(p == node - 1 for node, p in enumerate(longer.parents.tolist()))
    with pytest.raises(DecoderError, match="token tree"):
        tree.extend(TokenTree.chain([1]), np.array([len(tree)], np.int32))


@given(trees())
def test_a_builder_merges_equal_children(tree):
    builder, place = TreeBuilder(), {ROOT: ROOT}
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist())):
        place[node] = builder.add(place[parent], token, float(tree.estimates[node]))
    built = builder.tree()
    assert len(set(words(built))) == len(built) == len(builder)
    assert set(words(built)) == set(words(tree))
    assert [words(built)[place[node]] for node in range(len(tree))] == words(tree)
    assert all(built.children(node) == builder.children(node) for node in range(ROOT, len(built)))
    assert built.is_chain == all(parent == node - 1 for node, parent in enumerate(built.parents))


def test_a_built_chain_is_a_tree_of_width_one():
    builder = TreeBuilder()
    assert builder.tree() is EMPTY
    for token in (5, 6, 7):
        builder.add(len(builder) - 1, token, 0.5)
    tree = builder.tree()
    assert tree.is_chain
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([5, 6, 7], [-1, 0, 1])
    assert (tree.tokens.dtype, tree.estimates.dtype) == (np.int32, np.float32)


INTS = st.integers(-3, 12) | st.integers(-(2**31), 2**31 - 1)


@examples(400)
@given(
    st.lists(INTS, max_size=12),
    st.lists(st.integers(-2, 11), max_size=12),
    st.none() | st.lists(st.floats(0, 1, width=32), max_size=12),
)
def test_any_arrays_are_a_tree_or_refused(tokens, parents, estimates):
    extra = () if estimates is None else (np.array(estimates, np.float32),)
    try:
        tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32), *extra)
    except DecoderError:
        return
    assert len(tree) == len(tokens) == len(parents)
    for node, parent in enumerate(parents):
        assert ROOT <= parent < node
        assert tree.depths[node] == (1 if parent == ROOT else tree.depths[parent] + 1)
        found = tree.child(parent, tokens[node])
        assert found is not None
        assert found <= node
        assert tree.visibility[node].sum() == tree.depths[node]
    for count in (0, 1, 3):
        best = tree.best(count)
        assert len(best) <= max(count, 0)
        assert len(tree.clip(count)) == int((tree.depths <= count).sum())
