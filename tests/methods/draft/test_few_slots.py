"""Drafts fit into the free slots, and each drafter of a fusion gets its own part of a verdict."""

from typing import Any

import numpy as np
import pytest

from paradecode.core.decoder import Reply, Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import TokenTree
from paradecode.engine.resources import Limits
from paradecode.llm import LLM
from paradecode.methods.draft.constrained import share

MODEL = "paradecode/tiny-autoregressive"
LOOP = "red blue green red blue green red blue"
SCHEMA = {
    "type": "object", "required": ["occupation"], "additionalProperties": False,
    "properties": {"occupation": {"enum": ["sailor"]}},
}  # fmt: skip
METHODS = [
    "auto", "prompt-lookup(budget=fixed)", "suffix(budget=fixed)", "stand(budget=fixed)",
    "token-recycling(budget=fixed)", "jacobi(explore=always)", "lookahead(explore=always)",
    "layer-skip(budget=fixed)", "swift(budget=fixed)", "del(budget=fixed)", "triforce",
    "draft-model(width=4,budget=fixed)", "draft-model(budget=dyspec)", "s2d(budget=fixed)",
    "pearl", "mirror-sd", "draft-model(verifier=rsd,budget=fixed)",
    "suffix+prompt-lookup(num_speculative_tokens=16)", "prompt-lookup+draft-model(budget=fixed)",
]  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("slots", [0, 1, 4])
def test_drafts_fit_into_the_slots_for_them(slots: int) -> None:
    wishes: list[dict[str, Any]] = [
        {"ignore_eos": True}, {"constraint": {"type": "json_schema", "value": SCHEMA}},
    ]  # fmt: skip
    drafted = 0
    with LLM(MODEL, draft_model=MODEL, limits=Limits(draft_tokens=slots), threads=1) as llm:
        for wish in wishes:
            (plain,) = llm.complete([LOOP], decoder="greedy", max_tokens=20, **wish)
            for method in METHODS:
                (made,) = llm.complete([LOOP], decoder=method, max_tokens=20, **wish)
                assert made.error is None, method
                assert made.token_ids == plain.token_ids, method
                assert max(step.drafted for step in made.trace) <= slots, method
                drafted += made.stats.drafted
    assert (drafted > 0) == (slots > 0)


@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_tree_that_is_all_one_drafters_is_shared_as_any_other(size: int, accepted: int) -> None:
    """A tree whose nodes all come from one drafter is divided as by the general code."""
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
