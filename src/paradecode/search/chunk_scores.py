"""Scores of chunks that were drafted for other questions, which `atts` compares its chunks with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paradecode.methods.trained import TrainedPart


class ChunkScores(TrainedPart):
    """``scores``: float32 [count], one of each question, each of a first chunk of ``chunk`` tokens.

    One a question: chunks of the same question are alike, so that many of few questions would
    promise what they cannot keep.
    """

    kind = "chunk scores 1"
    field = "scores"
    sizes: ClassVar = {"chunk": 4096, "count": 1 << 20}

    @staticmethod
    def shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        return {"scores": (facts["count"],)}
