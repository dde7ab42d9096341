"""What a verification says about one part of a joined draft."""

from __future__ import annotations

import numpy as np
import pytest

from paradecode.core.decoder import Reply, Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.constrained import share


@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_tree_that_is_all_one_drafters_is_shared_as_any_other(size: int, accepted: int) -> None:
    """Beside a draft that has one node more, which is no chain and takes the long way."""
    accepted, rng = min(accepted, size), np.random.default_rng(size)
    tree = TokenTree.chain([4, 5, 6][:size], 0.5)
    chain = TokenTree.chain([4, 5, 6, 7], 0.5)
    wider = TokenTree(np.array([4, 9, 5, 6]), np.array([-1, -1, 0, 2]), np.full(4, 0.5))
    reply = Reply(ArrayLogits(rng.random((size + 1, 8))), {2: rng.random((size + 3, 4))})
    verdict = Verdict([*[4, 5, 6][:accepted], 1], [*range(accepted + 1)], reply.logits)
    (one, said, judged), (other, their_said, their_judged) = (
        share(draft, tree, reply, verdict) for draft in (chain, wider)
    )
    assert one.tokens.tolist() == other.tokens.tolist() == tree.tokens.tolist()
    assert np.array_equal(one.estimates, other.estimates)
    every = np.tile(np.arange(8), (size + 1, 1))
    assert np.array_equal(said.logits.gather(every), their_said.logits.gather(every))
    assert np.array_equal(said.hidden[2], their_said.hidden[2])
    assert (judged.tokens, judged.rows) == (their_judged.tokens, their_judged.rows)
    assert len(judged.rows) == accepted + 1
