"""Scores of chunks that were drafted for other questions, which `atts` compares its chunks with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paradecode.methods.trained import TrainedPart


class ChunkScores(TrainedPart):
    """``scores``: float32 [count], one for each question, that of a first chunk of ``chunk``
    tokens.

    There is one score for each question, because chunks of the same question resemble each other:
    many scores of few questions would give p-values that do not hold.
    """

    kind = "chunk scores 1"
    field = "scores"
    sizes: ClassVar = {"chunk": 4096, "count": 1 << 20}

    @staticmethod
    def shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        return {"scores": (facts["count"],)}
