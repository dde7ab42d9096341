"""Naive speculative sampling: draw the token, look whether it was drafted."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers.rule import Chance, Row, TopDown
from paradecode.methods.parts import declare


@declare(
    "verifier",
    "nss",
    guarantee="distribution",
    paper="SpecInfer (naive sampling)",
    arxiv="2305.09781",
)
@dataclass
class NaiveSampling(TopDown):
    """Draw from p, go on if the token was drafted. Needs no q, and is exact for any tree."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        token = chance.draw(p)
        return tree.child(node, token), token
