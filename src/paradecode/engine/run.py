"""Steps the engine until requests have ended."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.engine.signals import delayed_signals


def run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[LiveSequence]:
    """Run requests to their end; returns their sequences. Raises InvalidInput for a refused
    request."""
    sequences: list[LiveSequence] = []
    try:
        for request in requests:
            sequences.append(engine.add(request))
        while any(not sequence.finished for sequence in sequences):
            engine.step()
    finally:  # Ctrl-C, or a prompt that was refused, leaves nothing behind.
        with delayed_signals():
            for sequence in sequences:
                engine.cancel(sequence)
    return sequences
