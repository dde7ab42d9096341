"""Replays a decoding method on a recording, with the real engine and without the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from paradecode.core.decoder import TARGET, Decoder, Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.loop import VERIFIER, DraftVerify
from paradecode.methods.draft.verifiers import Verifier
from paradecode.methods.parts import read
from paradecode.methods.specs import Spec, methods, parse
from paradecode_lab.measure.replay.backend import END, RecordingBackend
from paradecode_lab.measure.replay.between import Gap, cold_seconds, slowdown
from paradecode_lab.measure.replay.logits import Reading
from paradecode_lab.measure.replay.outcome import Drafted, Played, ReplayOutcome
from paradecode_lab.measure.replay.recording import Identity, Recording, Request, Timing
from paradecode_lab.measure.serving import finish

PLAIN = "greedy"
IN_ENGINE = "replay has no model, measure it in the engine"
COLD_STEPS = 48
"""Approximate number of steps in a replay that begin with empty caches; more take longer."""


def play(
    recording: Recording,
    spec: str | Mapping[str, Any] | Spec,
    *,
    curve: CostCurve | None = None,
    prompts: Collection[str] | None = None,
    target: Engine | None = None,
) -> ReplayOutcome:
    """Replay ``spec`` on the recorded requests, one after the other, all of one tenant.

    Args:
        curve: cost of a forward, for the budget's decisions and the predicted time; None takes the
            recording's.
        prompts: ids of the requests to replay; None replays all.
        target: an idle engine of the recorded model, for methods that draft with a head; it runs
            each text once to get the hidden states.

    Raises:
        InvalidInput: the method runs forwards of its own; its verifier would draw other tokens than
            were recorded; or it needs a head, and ``target`` is None or another model.
    """
    chosen = recording if prompts is None else recording.only(prompts)
    curve = curve or chosen.curve
    spec = parse(spec)
    exact = True
    done = []
    every = max(1, sum(len(request.output) for request in chosen.requests) // COLD_STEPS)
    for sequence, backend, mark in replayed(chosen, spec, curve, every, target):
        done.append((sequence, mark.later()))
        exact = exact and backend.reading.exact
    slower = slowdown(gap for _, later in done for gap in later.gaps)
    engine = _engine_over_replay(recording, curve)
    played = [
        _played(request, sequence, later, curve, recording.timing, slower, engine)
        for request, (sequence, later) in zip(chosen.requests, done, strict=True)
    ]
    return ReplayOutcome(str(spec), exact, tuple(played))


def replayable(recording: Recording) -> list[str]:
    """Return the methods that need no training and run no forwards of their own.

    Plain decoding is left out.
    """
    names = []
    for name, method in sorted(methods().items()):
        try:
            _refuse(parse(name), recording, None)
        except InvalidInput:
            continue
        if method.training == "none" and name != PLAIN:
            names.append(name)
    return names


def replayed(
    recording: Recording,
    spec: Spec,
    curve: CostCurve | None,
    every: int = 0,
    target: Engine | None = None,
) -> Iterator[tuple[LiveSequence, RecordingBackend, Mark]]:
    """Replay each request, and yield its sequence, its backend as it is at the end, and its mark.

    Args:
        every: each ``every``-th step begins with empty caches; 0 never empties them.
        target: see :func:`play`.
    """
    _refuse(spec, recording, target)
    backend = RecordingBackend(recording, every, target)
    longest = max(len(r.prompt) + r.max_tokens for r in recording.requests)
    room = min(longest, recording.model.context_length) + 256
    # A cached prefix would make the first forwards depend on the order of the requests.
    limits = Limits(kv_tokens=max(Limits().kv_tokens, room), prefix_cache=False)
    weights = {} if target is None else target.weights
    engine = Engine({TARGET: backend}, limits, backend.text, curve, weights=weights)
    for index, request in enumerate(recording.requests):
        backend.open(index)
        mark = Mark(backend)
        params = replace(recording.params, max_tokens=request.max_tokens, stop=(END,))
        asked = GenerationRequest(request.prompt, lambda: _watched(spec(), backend.reading), params)
        sequence = finish(engine, asked, mark)
        if sequence.output != request.output.tolist():
            raise InvalidInput("decoder", str(spec), "it commits tokens that were not recorded")
        yield sequence, backend, mark


@dataclass(frozen=True)
class Later:
    """The events of a request after its first commit. The prompt's forward comes before it.

    Attributes:
        forwards: (number of rows, context length) of each forward.
        gaps: time of Python before each forward.
        top_k_rows, sample_rows: numbers of rows that a replay looks up, but for which a real engine
            would compute top-k and sampling.
        networks: seconds of the networks that ran.
    """

    forwards: Sequence[tuple[int, int]] = ()
    gaps: Sequence[Gap] = ()
    top_k_rows: int = 0
    sample_rows: int = 0
    networks: float = 0.0


class Mark:
    """Remembers how much was done at the first commit of a request."""

    def __init__(self, backend: RecordingBackend) -> None:
        self._backend = backend
        self._first: tuple[int, Reading] | None = None

    def __call__(self, sequences: Sequence[LiveSequence]) -> None:
        """Note the state if the first commit was made; the engine calls this after each step."""
        if self._first is None and sequences[0].trace:
            self._first = len(self._backend.rows), replace(self._backend.reading)

    def later(self) -> Later:
        """Return what happened after the first commit; call it when the request is done."""
        if self._first is None:
            return Later()
        (first, then), now = self._first, self._backend.reading
        return Later(
            self._backend.rows[first:],
            self._backend.between.gaps[first - 1 :],
            now.top_k_rows - then.top_k_rows,
            now.sample_rows - then.sample_rows,
            sum(self._backend.between.apart[first - 1 :]),
        )


def _played(
    request: Request,
    sequence: LiveSequence,
    later: Later,
    curve: CostCurve,
    timing: Timing,
    slower: float,
    engine: float,
) -> Played:
    stats = sequence.stats
    vocabulary = later.top_k_rows * timing.top_k + later.sample_rows * timing.sample
    return Played(
        id=request.id,
        group=request.group,
        generated=stats.generated,
        later=stats.generated - stats.first_tokens,
        forwards=stats.forwards,
        steps=tuple(
            Drafted(len(step.tree), int(step.tree.depths.max(initial=0)), step.accepted)
            for step in sequence.trace
        ),
        forward_seconds=later.networks
        + max(sum(_forward(timing, curve, *f) for f in later.forwards), 0.0),
        python_seconds=engine * cold_seconds(later.gaps, slower) + vocabulary,
        drafter_seconds=stats.decoder_seconds,
    )


def _forward(timing: Timing, curve: CostCurve, rows: int, context: int) -> float:
    return timing.forward + timing.row * (rows - 1) + curve.at(rows, context)


@lru_cache(maxsize=1)
def _engine_over_replay(recording: Recording, curve: CostCurve) -> float:
    """Return how many times longer Python takes in the real engine than in a cold replayed step.

    It is measured with plain decoding.
    """
    gaps: list[Gap] = []
    for _, _, mark in replayed(recording, parse(PLAIN), curve, every=1):
        gaps += mark.later().gaps
        if len(gaps) >= COLD_STEPS:
            break
    here = cold_seconds(gaps, 1.0)
    return recording.timing.python * len(gaps) / here if here > 0 else 1.0


def _watched(decoder: Decoder, reading: Reading) -> Decoder:
    """Wrap the decoder's verifier, so that ``reading`` knows when it reads replies."""
    if isinstance(decoder, DraftVerify):
        decoder.verify = WatchedVerifier(decoder.verify, reading)
    return decoder


@dataclass
class WatchedVerifier(Verifier):
    """A verifier that sets ``reading.verifying`` while it reads replies."""

    inner: Verifier
    reading: Reading

    def __call__(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        self.reading.verifying = True
        try:
            return self.inner(seq, tree, reply)
        finally:
            self.reading.verifying = False


def reads_states(spec: Spec) -> bool:
    """Decide whether a method drafts with a head, which reads the target's hidden states."""
    decoder = spec()
    return isinstance(decoder, DraftVerify) and decoder.drafter.needs.heads


def _refuse(spec: Spec, recording: Recording, target: Engine | None) -> None:
    """Check that a method can be replayed, as far as this is known before it runs.

    Raises:
        InvalidInput: the method cannot be replayed.
    """
    method, decoder = spec.method, spec()
    if method.family != "autoregressive" or method.guarantee != "exact":
        raise InvalidInput("decoder", str(spec), "its output need not be the recorded one")
    if method.models:
        raise InvalidInput("decoder", str(spec), f"it runs a {method.models[0]} model: {IN_ENGINE}")
    if isinstance(decoder, DraftVerify) and decoder.drafter.needs.runs:
        raise InvalidInput("decoder", str(spec), f"it runs layers to draft: {IN_ENGINE}")
    if reads_states(spec) and target is None:
        raise InvalidInput("decoder", str(spec), "it reads hidden states: give the model as well")
    if target is not None:
        recording.model.check(Identity.of(target))
    verifier = spec.settings.get("verifier", VERIFIER)
    promised = read("verifier", "verifier", verifier)[0].guarantee
    if recording.params.temperature > 0.0 and promised != "exact":
        raise InvalidInput(
            "verifier", verifier,
            f"use {VERIFIER}: above temperature 0 others draw tokens that were not recorded",
        )  # fmt: skip
