"""How fast could drafts be if it were always known how much of them is right?

    python -m tools.figures.draft_bound "suffix+mtp(head='HEAD',width=1)" [--model FILE]
        [--per-group 5] [--max-tokens 96] [--out FILE.json]

Answers are decoded plainly, and at each position every drafter of the method drafts; nothing of it
is verified. Then each answer is divided into the cheapest steps: a step verifies nothing but
tokens of one drafter's draft that are right, and of a head only the levels that made them are paid.
Prices are the measured curve of forwards and the seconds that a level took here; Python costs
nothing. So no rule about whom to ask and how much to verify makes these drafts faster than this.

``width=1`` asks heads for chains, which end at the method's depth and where the budget ``fixed``
ends them. Of trees the way that turned out right would be known, too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.core.decoder import TokenSequence
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import run
from paradecode.engine.request import GenerationRequest
from paradecode.methods.draft.budgets.base import Budget
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.loop import DraftVerify, Proposal
from paradecode.methods.specs import parse
from paradecode.prompts import first_of_each_group, first_turns, load_prompts
from tools.figures.copy_bound import ratio
from tools.script import err, options, save, show, stamped


@dataclass
class Watched(Fused):
    """Drafters whose drafts are kept, and not verified.

    Attributes:
        drafts: output tokens so far -> the draft of each part.
    """

    drafts: dict[int, list[TokenTree]] = field(default_factory=dict)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        made: dict[int, TokenTree] = {}
        for place, part in sorted(enumerate(self.parts), key=lambda each: each[1].needs.costs):
            made[place] = yield from part.propose(seq, limit)
        self._ask_states()
        self._drafts = [EMPTY] * len(self.parts)
        self.drafts[len(seq.tokens) - seq.prompt_length] = [made[n] for n in sorted(made)]
        return EMPTY


def watched(spec: str) -> DraftVerify:
    """The method's drafters, at a budget that always asks them all."""
    decoder = cast(DraftVerify, parse(spec)())
    drafter = decoder.drafter
    parts = drafter.parts if isinstance(drafter, Fused) else [drafter]
    return DraftVerify(Watched(parts), Budget(decoder.budget.count))


def rights(drafts: dict[int, list[TokenTree]], output: list[int]) -> list[list[int]]:
    """For each output position the tokens of each part's draft that are right."""
    nothing = [EMPTY] * max(map(len, drafts.values()), default=0)
    return [
        [len(tree.follow(output[at:])) for tree in drafts.get(at, nothing)]
        for at in range(len(output))
    ]


def seconds(right: list[list[int]], levels: list[float], prompt: int, curve: CostCurve) -> float:
    """Seconds of the cheapest way from the first token, which the prompt's forward gave, to the
    last.

    Args:
        right: see :func:`rights`.
        levels: seconds of a draft token of each part.
    """
    best = np.zeros(len(right) + 1)
    for at in range(len(right) - 1, 0, -1):
        ways = {(0, 0.0)} | {
            (size, size * level)
            for most, level in zip(right[at], levels, strict=True)
            for size in range(1, min(most, len(right) - 1 - at) + 1)
        }
        best[at] = min(
            curve.at(1 + size, prompt + at) + drafting + best[at + 1 + size]
            for size, drafting in ways
        )
    return float(best[min(1, len(right))])


def main() -> None:
    parser = options(__doc__, model="", per_group=5, max_tokens=96)
    parser.add_argument("method")
    given = parser.parse_args()
    answers: list[tuple[str, int, list[list[int]]]] = []
    drafting, made = 0.0, 0
    with LLM(given.model or None, backend="native") as llm:
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        greedy = SamplingParams(temperature=0.0, max_tokens=given.max_tokens)
        for item in track(items, "decoding", console=err):
            decoder = watched(given.method)
            ids = np.array(item.token_ids, np.int32)
            sequence = run(llm.engine, [GenerationRequest(ids, partial(_same, decoder), greedy)])[0]
            drafts = cast(Watched, decoder.drafter).drafts
            output = sequence.tokens[len(ids) :].tolist()
            answers.append((item.group, len(ids), rights(drafts, output)))
            drafting += sequence.stats.other_model_seconds
            costs = [bool(part.needs.costs) for part in cast(Watched, decoder.drafter).parts]
            for trees in drafts.values():
                made += sum(int(t.depths.max(initial=0)) for t, c in zip(trees, costs) if c)
        curve, model = llm.engine.load.curve, llm.model
    assert curve is not None  # The native backend is measured when it is opened.
    level = drafting / max(made, 1)
    spent = defaultdict[str, list[tuple[float, float]]](list)
    for group, length, right in answers:
        levels = [level if cost else 0.0 for cost in costs]
        none = [[0] * len(levels)] * len(right)
        pair = [seconds(way, levels, length, curve) for way in (none, right)]
        spent[group].append((pair[0], pair[1]))
    groups = {group: ratio(pairs) for group, pairs in spent.items()}
    groups["all"] = ratio([pair for pairs in spent.values() for pair in pairs])
    show(
        [{"group": group, "over": over} for group, over in groups.items()],
        {"group": "{group}", "at most, over plain": "{over:.2f}"},
    )
    facts = {"method": given.method, "prompts": len(answers), "max_tokens": given.max_tokens}
    rows = {str(n): curve.at(n, 256) for n in (1, 2, 3, 4, 5, 6, 8, 16)}
    save(
        stamped(model=model, **facts, level_seconds=level, step_seconds=rows, groups=groups),
        given.out,
    )


def _same(decoder: DraftVerify) -> DraftVerify:
    return decoder


if __name__ == "__main__":
    main()
