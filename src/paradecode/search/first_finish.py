"""First Finish Search: several samples, of which the first that ends is the answer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.branch import Asked, Branch, Grow, Searched, SearchTask, Start
from paradecode.search.majority import final_answer


@declare(
    "search", "ffs", aliases=("first-finish",), paper="First Finish Search", arxiv="2505.18149"
)
@dataclass
class FirstFinish:
    """Samples n outputs at once, returns the first that ends, and cancels the others.

    Short traces of reasoning models are often right more frequently than long ones; where they are
    not, this search harms. An output that is cut by its length has not ended. ``keep`` waits until
    so many outputs have ended. ``pick=last`` returns the last of these (Last Finish Search), and
    ``pick=vote`` the first one with the most frequent answer (see ``majority``). With drafts, the
    output that ends in the first step of the engine need not be the shortest. ``by=tokens`` goes on
    until no other can be shorter, so that the result is that of plain decoding. If several end in
    one step, the shorter one wins, then the earlier branch.
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
