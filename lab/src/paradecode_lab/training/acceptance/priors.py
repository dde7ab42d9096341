"""Measure how often draft tokens of drafters without a model are right, by their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.draft.loop import MAX_DRAFT, Budget, DraftVerify
from paradecode.methods.draft.model_free import DEFAULT, ModelFree, priors_of
from paradecode.methods.specs import Spec, parse
from paradecode_lab.measure.prompts import Item
from paradecode_lab.training.acceptance.workload import Progress, drafting, play

METHODS = (
    "prompt-lookup", "copyspec", "suffix", "retrieval", "input-copy", "token-recycling", "stand",
    "aded", "jacobi(explore=always)", "lookahead(explore=always)",
)  # fmt: skip
WEIGHT = 4
"""The weight of the default model's prior, in observed tokens.

A higher weight trusts the prior longer. It matters for kinds of evidence that seldom occur.
"""


def measure_priors(
    llm: LLM, items: Sequence[Item], params: SamplingParams, progress: Progress
) -> dict[str, list[float]]:
    """Decode a workload with full drafts of each method, and return the priors of each group.

    Returns:
        Group name -> for each kind of evidence, the share of right tokens.
    """
    known = priors_of(DEFAULT)
    totals = {group: [[0, 0] for _ in chances] for group, chances in known.items()}
    for index, name in enumerate(METHODS):
        spec, drafters = parse(name), list[ModelFree]()

        def recorded(spec: Spec = spec, drafters: list[ModelFree] = drafters) -> DraftVerify:
            decoder = drafting(spec)
            assert isinstance(decoder.drafter, ModelFree)
            drafters.append(decoder.drafter)
            return decoder

        def tick(done: int, total: int, index: int = index) -> None:
            progress(index * total + done, len(METHODS) * total)

        play(llm, items, cast(Any, recorded), params, lambda number: Budget(MAX_DRAFT // 8), tick)
        for drafter in drafters:
            for count, (right, tried) in zip(totals[drafter.group], drafter.totals):
                count[0] += right
                count[1] += tried
    return {
        group: [
            (right + WEIGHT * before) / (tried + WEIGHT)
            for (right, tried), before in zip(totals[group], chances)
        ]
        for group, chances in known.items()
    }
