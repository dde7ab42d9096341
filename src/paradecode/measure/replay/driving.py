"""One request at a time through an idle engine."""

from __future__ import annotations

from collections.abc import Callable

from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence


def finish(
    engine: Engine,
    request: GenerationRequest,
    after_step: Callable[[LiveSequence], object] = lambda sequence: None,
) -> LiveSequence:
    """Decode a request to its end; raises what ended it early."""
    sequence = engine.add(request)
    try:
        while not sequence.finished:
            engine.step()
            after_step(sequence)
    finally:
        engine.cancel(sequence)
    if sequence.error is not None:
        raise sequence.error
    return sequence
