"""Decodes a workload once, then tries methods on the recording without running the model."""

from __future__ import annotations

from paradecode_lab.measure.replay.outcome import Played, ReplayOutcome
from paradecode_lab.measure.replay.player import play, replayable
from paradecode_lab.measure.replay.recorder import record, recorded
from paradecode_lab.measure.replay.recording import Identity, Recording, Request

__all__ = [
    "Identity",
    "Played",
    "Recording",
    "ReplayOutcome",
    "Request",
    "play",
    "record",
    "recorded",
    "replayable",
]  # fmt: skip
