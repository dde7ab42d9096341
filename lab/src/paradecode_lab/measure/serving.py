"""Serves requests with an otherwise idle engine, and shows the replies of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paradecode.core.decoder import Forward, Reply, Steps, TokenSequence
from paradecode.core.tree import EMPTY
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.verifiers import coupled

AfterStep = Callable[[Sequence[LiveSequence]], object]
"""Called after each step of the engine with all sequences, which it may cancel."""


def serve(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    after_step: AfterStep = lambda sequences: None,
) -> list[LiveSequence]:
    """Run requests until all have ended, as many at a time as the engine's limits allow.

    If one request fails, its sequence holds the error. If this function raises, for example because
    of Ctrl-C, all requests are cancelled.

    Raises:
        InvalidInput, CapacityError: for a request that the engine refuses.
    """
    sequences: list[LiveSequence] = []
    try:
        for request in requests:
            sequences.append(engine.add(request))
        while engine.busy:
            engine.step()
            after_step(sequences)
    finally:
        for sequence in sequences:
            engine.cancel(sequence)
    return sequences


def finish(
    engine: Engine, request: GenerationRequest, after_step: AfterStep = lambda sequences: None
) -> LiveSequence:
    """Run one request until it ends. An error that ended it early is raised."""
    (sequence,) = serve(engine, [request], after_step)
    if sequence.error is not None:
        raise sequence.error
    return sequence


@dataclass
class WatchedPlain:
    """Plain decoding that passes each reply to ``see`` before the token is committed.

    Attributes:
        hidden: indices of the layers whose outputs the replies shall hold.
    """

    see: Callable[[TokenSequence, Reply], object]
    hidden: tuple[int, ...] = ()

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending, hidden=self.hidden)
            self.see(seq, reply)
            seq.commit(coupled(seq, EMPTY, reply))
