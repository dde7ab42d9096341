"""Naive speculative sampling (arXiv 2305.09781): draw the token, look whether it was drafted."""

from __future__ import annotations

from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers.rule import Chance, Row, top_down


def _level(p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
    token = chance.draw(p)
    return tree.child(node, token), token


nss = top_down(_level)
"""Needs no q and is exact for any tree, however it was made."""
