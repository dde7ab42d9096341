"""Decode a workload once, then try decoding methods on the recording without the model."""

from __future__ import annotations

from paradecode.measure.replay.outcome import Played, ReplayOutcome
from paradecode.measure.replay.player import play, replayable
from paradecode.measure.replay.recorder import record, recorded
from paradecode.measure.replay.recording import Identity, Recording, Request

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
