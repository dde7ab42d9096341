"""Tests that enumeration finds rules and drafters which are known to be biased."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from builders import BUILDERS
from languages import RULES, Language, Rule, distance, drafts, emitted, top_down, words_of

from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.methods.draft.verifiers.rule import Accepted, Chance, Rows, residual, without

SEEDS = (1, 2, 3)
Change = Callable[[TokenTree, Language], TokenTree]


def relabelled(tree: TokenTree, mode: Mode) -> TokenTree:
    return replace(tree, drawn={node: replace(d, mode=mode) for node, d in tree.drawn.items()})


def claimed(tree: TokenTree, language: Language) -> TokenTree:
    """Return children that a rule chose, wrongly declared as samples from q."""
    words = words_of(tree)
    ids = np.arange(language.v)
    return replace(
        tree,
        drawn={
            node: Drawn(Mode.SWOR, ids, language.q(words[node]))
            for node in {ROOT, *range(len(tree))}
            if tree.children(node)
        },
    )


def deduplicated(tree: TokenTree, language: Language) -> TokenTree:
    twins = [
        tree.child(int(parent), int(token)) for parent, token in zip(tree.parents, tree.tokens)
    ]
    return tree._take(np.array(twins) == np.arange(len(tree)))


def globally_ranked(tree: TokenTree, language: Language) -> TokenTree:
    reach = language.ranked(tree).reach
    keep = np.zeros(len(tree), bool)
    keep[np.argsort(-reach, kind="stable")[:3]] = True
    return tree._take(keep)


def peeked(tree: TokenTree, language: Language) -> TokenTree:
    """Cut a tree in drawing order to a number that wrongly depends on what was drawn."""
    return tree.first(len(tree) if language.shares(tree)[0] > 0.4 else 0)


def determined_when_cut(tree: TokenTree, language: Language) -> TokenTree:
    """Declare a tree as not sampled only if the ranking has dropped something, which is biased."""
    likely = language.likely(tree, 0.4)
    return tree if likely.all() else tree.select(likely)


def full_residual(p, node, tree, chance):
    q, (child,) = tree.drawn[node].row(len(p)), tree.children(node)
    token = int(tree.tokens[child])
    return (child, token) if chance.accept(p[token], q[token]) else (None, chance.draw(p))


def residual_without_the_token(p, node, tree, chance):
    q, (child,) = tree.drawn[node].row(len(p)), tree.children(node)
    token = int(tree.tokens[child])
    if chance.accept(p[token], q[token]):
        return child, token
    return None, chance.draw(without(p, token))


def weights_for_tests(p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
    """Block verification that wrongly accepts a prefix with its weight in place of h."""
    weights, rests = [1.0], []
    for node, token in enumerate(tree.tokens.tolist()):
        q = tree.drawn[node - 1].row(len(p(node - 1)))
        rests.append(np.maximum(weights[-1] * p(node - 1) - q, 0.0))
        weights.append(min(1.0, weights[-1] * p(node - 1)[token] / q[token]))
    for kept in range(len(tree), -1, -1):
        if chance.accept(weights[kept]):
            rest = p(kept - 1) if kept == len(tree) else rests[kept]
            return list(range(kept)), chance.draw(rest if rest.sum() > 0 else p(kept - 1))
    raise AssertionError


def too_small_rho(p, node, tree, chance):
    """K-SEQ's test with rho = 1 on several draws, which is biased."""
    q = tree.drawn[node].row(len(p))
    for child in tree.children(node):
        token = int(tree.tokens[child])
        if chance.accept(p[token], q[token]):
            return child, token
    rest = np.maximum(p - q, 0.0)
    return None, chance.draw(rest if rest.sum() > 0 else p)


def zeroed(p, node, tree, chance):
    """Apply the rule for draws without replacement to draws with replacement, which is biased."""
    q = tree.drawn[node].row(len(p))
    for child in tree.children(node):
        token = int(tree.tokens[child])
        if chance.accept(p[token], q[token]):
            return child, token
        p, q = residual(p, q), without(q, token)
    return None, chance.draw(p)


def same(tree: TokenTree, language: Language) -> TokenTree:
    return tree


WRONG: dict[str, tuple[str, Change, Rule]] = {
    "residual is all of p": ("chain", same, top_down(full_residual)),
    "residual is p without the token": ("chain", same, top_down(residual_without_the_token)),
    "block: w for h": ("chain", same, weights_for_tests),
    "k-seq: rho = 1": ("iid 2x2", same, top_down(too_small_rho)),
    "iid: equal draws dropped": ("iid 2x2", deduplicated, RULES["specinfer"]),
    "iid: q zeroed": ("iid 2x2", same, top_down(zeroed)),
    "swor: q not zeroed": ("swor 2x2", lambda t, _: relabelled(t, Mode.IID), RULES["specinfer"]),
    "swor: k-seq": ("swor 2x2", lambda t, _: relabelled(t, Mode.IID), RULES["spectr"]),
    "swor: traversal as iid": (
        "swor 2x2", lambda t, _: relabelled(t, Mode.IID), RULES["traversal"],
    ),
    "rule: p / q": ("rule 2x2", claimed, RULES["rsd"]),
    "argmax chain: p / q": ("chain, rule", claimed, RULES["rejection"]),
    "argmax chain: block": ("chain, rule", claimed, RULES["block"]),
    "swor: unlikely draws dropped": (
        "swor 2x2", lambda t, language: t._take(language.likely(t, 0.2)), RULES["rsd"],
    ),
    "swor: global top 3": ("swor 2x2", globally_ranked, RULES["rsd"]),
    "swor: global top 3, traversal": ("swor 2x2", globally_ranked, RULES["traversal"]),
    "count depends on draws": ("chain", peeked, RULES["rejection"]),
    "DET only when something was dropped": ("chain", determined_when_cut, RULES["rejection"]),
    "typical acceptance": ("chain", same, RULES["typical"]),
}  # fmt: skip


@pytest.mark.first(5)
@pytest.mark.parametrize("name", WRONG)
def test_bias_is_seen(name):
    builder, change, rule = WRONG[name]
    found = []
    for seed in SEEDS:
        language = Language(seed)
        trees = [(w, change(tree, language)) for w, tree in drafts(BUILDERS[builder], language)]
        found.append(distance(emitted(rule, trees, language), language))
    assert max(found) > 1e-3, found
