"""Tests of fusion: merged trees, each drafter's share of a verdict, and specs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, draft, hashed, reply_to
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.constrained import share
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.specs import Spec, parse
from paradecode.testing.conformance import check


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 10))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    tokens = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    estimates = draw(st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size))
    return TokenTree(np.array(tokens), np.array(parents), np.array(estimates))


def paths(tree: TokenTree) -> dict[tuple[int, ...], float]:
    found: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist())):
        found[node] = (*found[parent], token)
    return {found[node]: float(tree.estimates[node]) for node in range(len(tree))}


def families(tree: TokenTree) -> list[float]:
    return [tree.estimates[tree.parents == node].sum() for node in {*tree.parents.tolist()}]


@given(st.lists(trees(), max_size=4))
def test_merge_is_the_union_of_paths(drafts):
    merged = merge(drafts)
    assert set(paths(merged)) == {path for tree in drafts for path in paths(tree)}
    if sum(len(tree) > 0 for tree in drafts) > 1:
        assert len(paths(merged)) == len(merged)  # No two nodes have one path.
        assert all(total <= 1 + 1e-5 for total in families(merged))
        assert ((merged.estimates >= 0) & (merged.estimates <= 1)).all()


@given(trees())
def test_an_empty_draft_changes_nothing(tree):
    for merged in (merge([tree, EMPTY]), merge([EMPTY, tree])):
        assert merged is tree or len(merged) == len(tree) == 0
    assert len(merge([EMPTY, EMPTY])) == len(merge([])) == 0


@given(trees(), trees())
def test_agreement_never_lowers_an_estimate_before_scaling(a, b):
    merged, one, other = merge([a, b]), paths(a), paths(b)
    if not (len(a) and len(b)) or any(total > 1 for total in families(merged)):
        return
    for node in range(len(merged)):
        siblings = merged.estimates[merged.parents == merged.parents[node]].sum()
        path = list(paths(merged))[node]
        single = len(one) == len(a) and len(other) == len(b)
        if siblings < 0.999 and single:
            assert merged.estimates[node] >= max(one.get(path, 0), other.get(path, 0)) - 1e-5


def test_estimates():
    a = TokenTree.chain([1, 2], [0.5, 0.5])
    b = TokenTree.chain([1, 3], [0.5, 0.6])
    assert paths(merge([a, b])) == pytest.approx({(1,): 0.75, (1, 2): 0.5 / 1.1, (1, 3): 0.6 / 1.1})
    assert paths(merge([a, b])).keys() == paths(merge([b, a])).keys()


@given(trees(), trees(), st.integers(0, 50))
def test_the_union_accepts_at_least_what_each_part_does(a, b, seed):
    seq, target = Request([0], vocabulary=4), hashed(4, seed=seed)
    lengths = [
        len(coupled(seq, tree, reply_to(seq, tree, target)).tokens)
        for tree in (merge([a, b]), a, b)
    ]
    assert lengths[0] >= max(lengths[1:])


@given(trees(), trees(), st.integers(0, 50), st.integers(0, 20))
def test_each_part_sees_what_it_would_have_seen_alone(a, b, seed, kept):
    """Each drafter gets the logits and the verdict of its own nodes that were verified."""
    seq, target = Request([0], vocabulary=4), hashed(4, seed=seed)
    a, b = merge([a, a]), merge([b, b])
    tree = merge([a, b]).best(kept)
    reply = reply_to(seq, tree, target)
    verdict = coupled(seq, tree, reply)
    for part in (a, b):
        theirs, said, judged = share(part, tree, reply, verdict)
        assert set(paths(theirs)) == set(paths(part)) & set(paths(tree))
        alone = reply_to(seq, theirs, target)
        assert np.array_equal(said.logits.values, alone.logits.values)
        wanted = coupled(seq, theirs, alone)
        assert (judged.tokens, judged.rows) == (wanted.tokens, wanted.rows)


def test_the_whole_keeps_its_limit():
    fused = parse("suffix+prompt-lookup+token-recycling")().drafter
    assert isinstance(fused, Fused)
    for limit in (1, 3, 8):
        assert 0 < len(draft(fused, Request([1, 2, 3, 1, 2, 4, 1, 2]), limit)) <= limit


def test_specs():
    spec = parse("suffix(min_token_prob=0.2) + token-recycling(k=4, num_speculative_tokens=5)")
    assert isinstance(spec, Spec)
    assert spec.settings == {"num_speculative_tokens": 5}
    assert [part.method.name for part in spec.parts] == ["suffix", "token-recycling"]
    assert spec.parts[1].settings == {"k": 4}
    assert str(parse(str(spec))) == str(spec)
    assert parse("suffix+recycling").method.name == "suffix+token-recycling"
    decoder = spec()
    assert decoder.budget.count == 5
    assert decoder.drafter.parts[0] is not spec().drafter.parts[0]


def test_json_and_lists():
    wanted = str(parse("suffix(max_tree_depth=9)+prompt-lookup(num_speculative_tokens=3)"))
    for given_spec in (
        {
            "method": "suffix+ngram",
            "suffix_decoding_max_tree_depth": 9,
            "num_speculative_tokens": 3,
        },
        {"method": ["suffix", "ngram"], "max_tree_depth": 9, "prompt_lookup_num_tokens": 3},
        '{"method": ["suffix", "ngram"], "max_tree_depth": 9, "num_speculative_tokens": 3}',
    ):
        assert str(parse(given_spec)) == wanted


@pytest.mark.parametrize("spec", [
    "suffix+", "+suffix", "suffix+greedy", "suffix+nonsense", "suffix(k=3)+token-recycling",
    "suffix(num_speculative_tokens=3)+copyspec(num_speculative_tokens=4)",
    "suffix+suffix+suffix+suffix+suffix", "a(+b", {"method": ["suffix", 3]},
    {"method": "suffix+copyspec", "k": 3}, "suffix+copyspec(verifier=none)",
])  # fmt: skip
def test_bad_specs(spec):
    with pytest.raises(InvalidInput):
        parse(spec)


def test_fusions_conform():
    essential = ["batch-of-16", "mixed-methods", "chunks-of-3", "penalties", "context-end"]
    check("suffix+token-recycling", kinds=["toy"], only=[*essential, "prefix-cache", "constrained"])
    fused = "lookahead+stand+prompt-lookup(num_speculative_tokens=20)"
    check(fused, kinds=["toy"], only=essential)


def test_changed_settings_keep_the_rest():
    spec = parse("prompt-lookup(max_ngram=2)+draft-model(model='small',num_speculative_tokens=3)")
    changed = spec.changed({"num_speculative_tokens": 5})
    assert str(changed) == "prompt-lookup(max_ngram=2)+draft-model(num_speculative_tokens=5)"
    assert changed.draft_model == "small"
    alone = parse("draft-model(model='small',width=2)").changed({"num_speculative_tokens": 5})
    assert alone.settings == {"width": 2, "num_speculative_tokens": 5}
    assert alone.draft_model == "small"
    with pytest.raises(InvalidInput, match="max_ngrams"):
        spec.changed({"max_ngrams": 5})


def test_a_part_cannot_name_another_method():
    with pytest.raises(InvalidInput, match="method"):
        parse("suffix(method='pld')+copyspec")


def test_parts_do_not_draw():
    """Drafters of a fusion do not sample, because a merged tree would lose their q."""
    spec = parse("suffix+draft-model(verifier=rejection)")
    assert all(not part.offer.draws for part in spec().drafter.parts)
    alone = parse("draft-model(verifier=rejection)")
    assert alone().drafter.offer.draws
