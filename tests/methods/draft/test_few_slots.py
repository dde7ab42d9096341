"""No draft is larger than what the engine sets aside for draft rows; without any there is none."""

from __future__ import annotations

from typing import Any

import pytest

from paradecode.engine.resources import Limits
from paradecode.llm import LLM

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
