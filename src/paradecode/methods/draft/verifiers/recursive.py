"""Top-down verification of drawn children, one after another: rejection, SpecInfer and RSD."""

from __future__ import annotations

from paradecode.core.tree import Mode, TokenTree
from paradecode.methods.draft.verifiers.rule import (
    Chance,
    Row,
    proposal,
    residual,
    top_down,
    without,
)


def _one_hot(
    p: Row, node: int, tree: TokenTree, chance: Chance
) -> tuple[int | None, int]:  # fmt: skip
    """Children that a rule chose: accept each with what is left of p for it. Exact for any tree."""
    for child in tree.children(node):
        token = int(tree.tokens[child])
        if chance.accept(p[token]):
            return child, token
        rest = without(p, token)
        p = rest if rest.any() else p
    return None, chance.draw(p)


def recursive_level(
    p: Row, node: int, tree: TokenTree, chance: Chance, most: int | None = None
) -> tuple[int | None, int]:
    """Test the first ``most`` children (all by default) in drawing order.

    Each refusal leaves p the part that q did not cover; a draw without replacement leaves q the
    tokens that were not drawn yet.
    """
    drawn = tree.drawn.get(node)
    if drawn is None:
        return _one_hot(p, node, tree, chance)
    q = proposal(drawn, node, tree, len(p))
    for child in tree.children(node)[:most]:
        token = int(tree.tokens[child])
        if chance.accept(p[token], q[token]):
            return child, token
        p = residual(p, q)
        if drawn.mode is Mode.SWOR:
            q = without(q, token)
    return None, chance.draw(p)


def _first_level(p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
    return recursive_level(p, node, tree, chance, 1)


def _naive_level(p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
    child, token = recursive_level(p, node, tree, chance, 1)
    return (tree.child(node, token) if child is None else child), token


recursive = top_down(recursive_level)
"""SpecInfer (Miao et al. 2023, arXiv 2305.09781) where children were drawn with replacement, RSD
(Jeon et al. 2024, arXiv 2402.14160) where they were drawn without, one-hot where a rule chose."""

rejection = top_down(_first_level)
"""Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318): accept the draft
token with min(1, p / q), else emit a token of norm((p - q)+). Of drawn siblings only the first is
tested; children that a rule chose are all tested, with a one-hot q."""

naive_tree = top_down(_naive_level)
"""As rejection, but when the token that replaces the first child is another child, go on there
(the NaiveTree baseline of arXiv 2602.16994)."""
