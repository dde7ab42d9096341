"""What the engine says of the finalists, on prompts that the search has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paradecode.llm import LLM
from paradecode.measure.paired import decode_by_turns, equal, speed_up
from paradecode.measure.prompts import Item
from paradecode.measure.statistics import Interval
from paradecode.measure.tune.candidate import Candidate
from paradecode.measure.tune.scores import PLAIN

LEAST = 0.97
"""A method that makes a group of prompts slower than this is passed over, if another does not."""


@dataclass(frozen=True)
class Confirmed:
    """A finalist, measured.

    Attributes:
        speed_up: over plain decoding, token-weighted.
        groups: the same by group.
        equal: outputs that are those of plain decoding, of ``prompts``.
    """

    candidate: Candidate
    speed_up: Interval
    groups: dict[str, Interval]
    equal: int
    prompts: int

    @property
    def worst(self) -> float:
        return min(found.value for found in self.groups.values())


def confirm(
    llm: LLM,
    items: Sequence[Item],
    candidates: Sequence[Candidate],
    progress: Callable[[], None] = lambda: None,
) -> list[Confirmed]:
    """Measure candidates against plain decoding; the best first.

    Those that slow no group down come first, then the fastest overall.
    """
    specs = [str(candidate) for candidate in candidates]
    runs = decode_by_turns(llm, items, [PLAIN, *specs], salt="tune", progress=progress)
    groups = list(dict.fromkeys(item.group for item in items))
    found = []
    for candidate, spec in zip(candidates, specs, strict=True):
        overall = speed_up(runs, spec, PLAIN)
        by_group = {group: speed_up(runs, spec, PLAIN, group) for group in groups}
        if overall is None:
            continue  # Every answer is one token long: there is nothing to speed up.
        measured = {group: value for group, value in by_group.items() if value is not None}
        same = equal(runs, spec, PLAIN)
        found.append(Confirmed(candidate, overall, measured, same, len(items)))
    return sorted(found, key=lambda one: (one.worst < LEAST, -one.speed_up.value))
