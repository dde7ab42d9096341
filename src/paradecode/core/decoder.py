"""The interface of a method: an object whose ``decode`` is a generator of requests."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, Protocol

from paradecode.core.request import Request
from paradecode.core.sequence import TokenSequence

Guarantee = Literal["exact", "distribution", "lossy"]
"""``exact``: plain decoding's tokens; ``distribution``: its distribution; ``lossy``: neither."""

GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "lossy")
"""From the strongest to the weakest."""


def weakest(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of a method whose parts have these guarantees."""
    return max(guarantees, key=GUARANTEES.index)


Steps = Generator["Request | list[Request]", Any, None]
"""Yields a request (or a list, run together) and gets the reply (or the list of replies)."""


class Decoder(Protocol):
    """One method with its settings; the engine builds one for each request."""

    def decode(self, seq: TokenSequence) -> Steps:
        """Decode until ``seq.finished``."""
