"""First Finish Search: several samples, and the first that ends."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.parameters import choice, parameter
from paradecode.methods.parts import declare
from paradecode.search.branch import Asked, Branch, Grow, Searched, SearchTask, Start
from paradecode.search.majority import final_answer


@declare(
    "search", "ffs", aliases=("first-finish",), paper="First Finish Search", arxiv="2505.18149"
)
@dataclass
class FirstFinish:
    """Samples n outputs at once, returns the first that ends, and cancels the others.

    Short traces of reasoning models are right more often than long ones; where longer ones are
    right more often it harms. An output that is cut by its length has not ended. ``keep`` waits for
    so many to end; ``pick=last`` returns the last of these (Last Finish Search), ``pick=vote`` the
    first that says what most of them say (see ``majority``). With drafts
    the first in steps of the engine need not be the shortest: ``by=tokens`` goes on until no other
    can be shorter, so that the result is that of plain decoding. Several that end in one step: the
    shorter, then the earlier branch.
    """

    n: int = parameter(4, 1, 64, "samples")
    keep: int = parameter(1, 1, 64, "how many are to end")
    pick: str = choice("first", ("first", "last", "vote"), "which of these is returned")
    by: str = choice("tokens", ("tokens", "steps"), "what first means")

    def __post_init__(self) -> None:
        if self.keep > self.n:
            raise InvalidInput("ffs.keep", self.keep, f"give at most n, {self.n}")

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        order: list[int] = []

        def enough(branches: Sequence[Branch]) -> bool:
            ended = [p for p, b in enumerate(branches) if b.reason == "stop" and p not in order]
            order.extend(sorted(ended, key=lambda place: (branches[place].new, place)))
            if self.by == "tokens":
                order.sort(key=lambda place: (branches[place].new, place))
            if len(order) < self.keep:
                return False
            if self.by == "steps":
                return True
            bar = branches[order[self.keep - 1]].new
            return all(b.reason is not None or b.new >= bar for b in branches)

        starts = [Start(seed) for seed in range(self.n)]
        grown: list[Branch] = yield Grow(starts, enough)
        enough(grown)
        # Nobody may have ended: then it is the first branch, cut by its length.
        kept = order[: self.keep] or [0]
        chosen = kept[-1 if self.pick == "last" else 0]
        if self.pick == "vote":
            answers = [final_answer(grown[place].text) for place in kept]
            chosen = max(zip(kept, answers), key=lambda one: answers.count(one[1]))[0]
        rest = [place for place in [*order, *range(self.n)] if place != chosen]
        others = tuple(grown[place] for place in dict.fromkeys(rest))
        return Searched(
            grown[chosen], others, tuple(-float(b.new) for b in (grown[chosen], *others))
        )
