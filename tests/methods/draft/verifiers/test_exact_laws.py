"""Tests that every exact verifier gives the target's distribution, for every drafter."""

from functools import cache

import pytest
from builders import BUILDERS
from languages import (
    RULES,
    VERIFIERS,
    Disjoint,
    Language,
    Law,
    Rule,
    Sharp,
    distance,
    drafts,
    emitted,
    expected_length,
    likelihood,
)

from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers.top_down import SpecInfer
from paradecode.methods.parts import known

EXACT = 1e-12
DISTINCT = ("rejection", "rsd", "naive-tree", "nss", "block", "traversal", "spectr")
LANGUAGES: dict[str, Language] = {"a": Language(1), "b": Language(2), "disjoint": Disjoint(3)}
SHARP = Sharp(4)


@cache
def law_of(builder: str, language: str, rule: Rule) -> Law:
    return emitted(rule, drafts_of(builder, language), LANGUAGES[language])


@cache
def drafts_of(builder: str, language: str) -> list[tuple[float, TokenTree]]:
    return drafts(BUILDERS[builder], LANGUAGES[language])


all_builders = pytest.mark.parametrize("builder", BUILDERS)


def test_the_rules_under_test_are_all_that_promise_the_law():
    entries = known("verifier").items()
    promised = {name for name, entry in entries if entry.guarantee == "distribution"}
    assert promised == {*DISTINCT, "specinfer"}
    assert type(VERIFIERS["rsd"]).level is SpecInfer.level


@pytest.mark.first(11)
@pytest.mark.parametrize("key", ["a", "disjoint", pytest.param("b", marks=pytest.mark.slow)])
@all_builders
def test_law_of_the_target(builder, key):
    trees = drafts_of(builder, key)
    assert sum(share for share, _ in trees) == pytest.approx(1.0, abs=1e-12)
    for name in DISTINCT:
        law = law_of(builder, key, RULES[name])
        assert distance(law, LANGUAGES[key]) < EXACT, name


@pytest.mark.first(6)
@all_builders
def test_one_hot_targets_give_the_greedy_text(builder):
    trees = drafts(BUILDERS[builder], SHARP)
    for name in (*DISTINCT, "typical"):
        law = emitted(RULES[name], trees, SHARP)
        assert all(likelihood(SHARP, word) == 1.0 for word in law), name


def test_a_draft_from_the_target_itself_is_always_accepted():
    language = Language(5, mixture=0.0)
    trees = drafts(BUILDERS["chain"], language)
    for name in ("rejection", "specinfer", "rsd", "block", "traversal", "spectr", "naive-tree"):
        assert expected_length(emitted(RULES[name], trees, language)) == pytest.approx(4.0), name


def test_a_draft_that_the_target_excludes_is_never_accepted():
    language = Disjoint(6)
    for builder in ("chain", "iid 2x2", "swor 3x1"):
        trees = drafts(BUILDERS[builder], language)
        for name in DISTINCT:
            law = emitted(RULES[name], trees, language)
            assert set(law) == {(0,)} or builder == "swor 3x1", (name, builder)
            assert distance(law, language) < EXACT


def test_rules_that_ignore_q_give_the_law_for_any_tree_at_all():
    """Rules that ignore q are exact even if sampled nodes were dropped without a declaration."""
    language = Language(1)

    def prune(tree: TokenTree) -> TokenTree:
        return tree._take(language.likely(tree, 0.2))

    trees = [(share, prune(tree)) for share, tree in drafts(BUILDERS["swor 2x2"], language)]
    assert distance(emitted(RULES["nss"], trees, language), language) < EXACT
    assert distance(emitted(RULES["rsd"], trees, language), language) > 1e-3
