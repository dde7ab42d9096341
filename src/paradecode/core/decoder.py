"""What a method is: an object whose ``decode`` is a generator of requests."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, Protocol

from paradecode.core.request import Request
from paradecode.core.sequence import Sequence

Guarantee = Literal["exact", "distribution", "lossy"]
"""``exact``: the tokens of plain decoding; ``distribution``: the same law; ``lossy``: neither."""

GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "lossy")
"""From the strongest to the weakest."""


def weakest(*guarantees: Guarantee) -> Guarantee:
    """What remains when parts with these guarantees work together."""
    return max(guarantees, key=GUARANTEES.index)


Steps = Generator["Request | list[Request]", Any, None]
"""Yields a request (or a list, run together) and is resumed with the reply (or replies)."""


class Decoder(Protocol):
    """One method with its settings; the engine builds one for each request."""

    def decode(self, seq: Sequence) -> Steps:
        """Decode until ``seq.finished``."""
        ...
