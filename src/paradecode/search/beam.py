"""Beam search: the likeliest output among those that a fixed number of partial outputs lead to."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from paradecode.methods.parts import declare, parameter
from paradecode.search.beams import MOST_BEAMS, BeamDecoder
from paradecode.search.branch import Asked, Searched, SearchTask


@declare("search", "beam", aliases=("beam-search",), paper="Lowerre 1976, as vLLM has it")
@dataclass
class BeamSearch:
    """Keeps the ``width`` most likely partial outputs and extends all of them at a time.

    Nothing is drawn: temperature and seed do not matter, nor does the method, because beams are
    not drafted. Penalties, bans and constraints hold. The result is what vLLM's
    ``use_beam_search`` is defined to give, see :class:`paradecode.search.beams.BeamDecoder`; a
    scorer chooses among the ``width`` best.

    When: the likeliest text is wanted, as in translation.
    """

    width: int = parameter(4, 1, MOST_BEAMS, "partial outputs that are kept")
    length_penalty: float = parameter(1.0, -10.0, 10.0, "power of the length that divides a sum")

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        beams = BeamDecoder(self.width, self.length_penalty)
        return (yield from beams.search(task))
