"""Coupled verification: the draft is compared with the tokens that plain decoding emits."""

from __future__ import annotations

from collections.abc import Callable

from paradecode.core.errors import InvalidInput
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import ROOT, TokenTree

Verifier = Callable[[Sequence, TokenTree, Reply], Verdict]
"""Reply row 0 follows the last committed token, row i + 1 follows node i of the tree."""


def coupled(seq: Sequence, tree: TokenTree, reply: Reply) -> Verdict:
    """Walk down the tree along the tokens that plain decoding would emit.

    The token after each accepted node is argmax(log p + noise of that position), or the bare
    argmax at temperature 0; a child is accepted when it carries that token. Exact at any
    temperature: the output is the plain output, token by token. At temperature 0 this is greedy
    verification (Stern et al. 2018, arXiv 1811.03115, over trees).
    """
    sampler, logits = seq.sampler, reply.logits
    greedy = logits.argmax() if sampler.plain else None
    node: int | None = ROOT
    tokens: list[int] = []
    rows: list[int] = []
    while node is not None:
        row = node + 1
        token = int(greedy[row]) if greedy is not None else sampler.token(logits, row, tokens)
        tokens.append(token)
        rows.append(row)
        node = tree.child(node, token)
    return Verdict(tokens, rows, logits)


def greedy(seq: Sequence, tree: TokenTree, reply: Reply) -> Verdict:
    """Accept what equals the argmax (Stern et al. 2018, arXiv 1811.03115); temperature 0 only."""
    if seq.sampler.warp.temperature > 0.0:
        raise InvalidInput(
            "verifier", "greedy", "use coupled or another sampling verifier at temperature > 0"
        )
    return coupled(seq, tree, reply)
