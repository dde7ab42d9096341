"""Serves requests with an engine that does nothing else, and shows plain decoding's rows."""

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
"""Called after each step of the engine with all sequences; it may cancel them."""


def serve(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    after_step: AfterStep = lambda sequences: None,
) -> list[LiveSequence]:
    """Run requests to their ends, as many at a time as the engine's limits allow.

    Errors of single requests stay in their sequences. If something is raised, such as by Ctrl-C, no
    request stays in the engine.

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
    """Run one request to its end; raises what ended it early."""
    (sequence,) = serve(engine, [request], after_step)
    if sequence.error is not None:
        raise sequence.error
    return sequence


@dataclass
class WatchedPlain:
    """Plain decoding that shows each reply before it is committed.

    Attributes:
        hidden: layers whose outputs the replies hold.
    """

    see: Callable[[TokenSequence, Reply], object]
    hidden: tuple[int, ...] = ()

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending, hidden=self.hidden)
            self.see(seq, reply)
            seq.commit(coupled(seq, EMPTY, reply))
