"""Diverse Beam Search: groups of beams, each of which avoids the choices of the groups before
it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.beams import MOST_BEAMS, Beam, BeamDecoder, Group
from paradecode.search.branch import Asked, Searched, SearchTask

Output = NDArray[np.int32]


@declare("search", "diverse-beam", paper="Diverse Beam Search", arxiv="1610.02424")
@dataclass
class DiverseBeamSearch:
    """Beam search in groups, one after another in every step; each group is rewarded for differing.

    A token's log-probability is lowered by ``strength`` times a count over the open beams of the
    groups before. ``hamming`` counts the beams that have chosen the token in this step.
    ``cumulative`` is the sum over groups of exp(-d / ``spread``), where d is the number of places
    in which their beams differ from this one with that token. ``ngram`` counts how often they hold
    the n-gram that the token would end. Penalties stay in a beam's sum, but the best beams of all
    groups are ordered by likelihood alone. Ends and scores are those of ``beam``. One group is
    ``beam``, and with a strength of 0 all groups are equal.

    When: several good outputs are wanted that say different things.
    """

    width: int = parameter(4, 1, MOST_BEAMS, "partial outputs that are kept, over all groups")
    groups: int = parameter(2, 1, MOST_BEAMS, "groups, which must divide the width")
    strength: float = parameter(0.5, 0.0, 1e6, "weight of diversity")
    diversity: str = choice("hamming", ("hamming", "cumulative", "ngram"), "what must differ")
    ngram: int = parameter(2, 1, 16, "tokens of an n-gram, for diversity=ngram")
    spread: float = parameter(1.0, 1e-3, 1e6, "for diversity=cumulative")
    length_penalty: float = parameter(1.0, -10.0, 10.0, "power of the length that divides a sum")

    def __post_init__(self) -> None:
        if self.width % self.groups:
            fix = f"give a number that divides the width, {self.width}"
            raise InvalidInput("diverse-beam.groups", self.groups, fix)

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        share = self.width // self.groups
        beams = BeamDecoder(share, self.length_penalty, self.groups, self._penalty)
        return (yield from beams.search(task))

    def _penalty(self, beam: Beam, before: Sequence[Group]) -> tuple[float, dict[int, float]]:
        outputs = [[_output(other) for other in group.open] for group in before]
        if self.diversity == "hamming":
            chosen = Counter(int(output[-1]) for group in outputs for output in group)
            return 0.0, {token: self.strength * times for token, times in chosen.items()}
        own = _output(beam)
        if self.diversity == "ngram":
            return 0.0, self._repeats(own, [output for group in outputs for output in group])
        base, more = 0.0, dict[int, float]()
        for group in outputs:
            if group:
                past = sum(int((output[:-1] != own).sum()) for output in group)
                plain = math.exp(-(past + len(group)) / self.spread)
                base += self.strength * plain
                for token, times in Counter(int(output[-1]) for output in group).items():
                    gain = math.exp(-(past + len(group) - times) / self.spread) - plain
                    more[token] = more.get(token, 0.0) + self.strength * gain
        return base, more

    def _repeats(self, own: Output, others: list[Output]) -> dict[int, float]:
        counts, behind = Counter[int](), self.ngram - 1
        if len(own) >= behind:
            for output in others:
                last = output[behind:]
                same = np.ones(len(last), bool)
                for place in range(behind):
                    same &= output[place : place + len(last)] == own[len(own) - behind + place]
                counts.update(last[same].tolist())
        return {token: self.strength * times for token, times in counts.items()}


def _output(beam: Beam) -> Output:
    return beam.sequence.tokens[beam.sequence.prompt_length :]
