"""A drafter with known acceptance, and the verdicts on its trees."""

from collections.abc import Callable

import numpy as np

from drafting import Request
from paradecode.core.decoder import Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.loop import Budget

LOGITS = ArrayLogits(np.zeros((1, 4)))


def verdict(tree: TokenTree, node: int) -> Verdict:
    """Return the verdict that accepts the path to ``node``."""
    tokens = [*tree.tokens_to(node), -1]
    return Verdict(tokens, [0] * len(tokens), LOGITS)


def grown(
    budget: Budget, seq: Request, estimates: Callable[[list[int]], np.ndarray], price: float = 0.0
) -> tuple[TokenTree, int]:
    """Return the tree that a drafter with these estimates grows, and its number of forwards.

    Args:
        estimates: path of ranks -> float [W], probabilities of the next tokens, best first. The
            token of a node is its rank.
    """
    limit = budget.limit(seq)  # type: ignore[arg-type]
    tree, forwards = EMPTY, 0
    leaves = np.array([ROOT], np.int32)
    while limit:
        leaves = budget.expand(seq, tree, leaves, lambda rows: price)  # type: ignore[arg-type]
        if len(leaves) == 0:
            break
        forwards += 1
        offered = np.stack([estimates(tree.tokens_to(leaf)) for leaf in leaves]).astype(np.float32)
        at = np.nonzero(budget.grow(seq, tree, leaves, offered))  # type: ignore[arg-type]
        first = len(tree)
        tree = TokenTree(
            np.concatenate([tree.tokens, at[1].astype(np.int32)]),
            np.concatenate([tree.parents, leaves[at[0]]]),
            np.concatenate([tree.estimates, offered[at]]),
        )
        fresh = np.arange(first, len(tree), dtype=np.int32)
        leaves = fresh[np.argsort(-tree.reach[fresh], kind="stable")]
        if len(leaves) == 0 or forwards >= limit:
            break
    return budget.cut(seq, tree), forwards  # type: ignore[arg-type]
