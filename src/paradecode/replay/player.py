"""Try a decoding method on a recording: the real engine and method, without the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.core.request import TARGET, Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.decoders.autoregressive.loop import DraftVerify
from paradecode.decoders.autoregressive.method import VERIFIER
from paradecode.decoders.autoregressive.verify import VERIFIERS, Verifier
from paradecode.decoders.registry import Spec, methods, parse
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.replay.backend import END, RecordingBackend
from paradecode.replay.driving import finish
from paradecode.replay.logits import Reading
from paradecode.replay.outcome import Drafted, Outcome, Played
from paradecode.replay.recording import HEAVY, Recording, Request, Timing

PLAIN = "greedy"
IN_ENGINE = "replay has no model, measure it in the engine"
WARM_UP = 128
"""Steps that show how fast Python is here and now."""


def play(
    recording: Recording,
    spec: str | Mapping[str, Any] | Spec,
    *,
    curve: CostCurve | None = None,
    prompts: Collection[str] | None = None,
) -> Outcome:
    """What ``spec`` would do on the recorded requests, one after the other as one tenant.

    Args:
        curve: what a forward costs, for the budget's decisions and the predicted time; by default
            the recording's.
        prompts: ids of the requests to play; None plays all.

    Raises:
        InvalidInput: for a method that runs forwards of its own, or whose verifier would have
            drawn other tokens than were recorded.
    """
    chosen = recording if prompts is None else recording.only(prompts)
    curve = curve or chosen.curve
    spec = parse(spec)
    exact = True
    python = _python_between_forwards(chosen, curve)
    played = []
    for request, (sequence, backend, mark) in zip(chosen.requests, replayed(chosen, spec, curve)):
        played.append(_played(request, sequence, mark, curve, recording.timing, python))
        exact = exact and backend.reading.exact
    return Outcome(str(spec), exact, tuple(played))


def replayable(recording: Recording) -> list[str]:
    """Names of the methods that need no training and no forwards of their own; plain is none."""
    names = []
    for name, method in sorted(methods().items()):
        try:
            _refuse(parse(name), recording)
        except InvalidInput:
            continue
        if method.training == "none" and name != PLAIN:
            names.append(name)
    return names


def replayed(
    recording: Recording, spec: Spec, curve: CostCurve | None
) -> Iterator[tuple[LiveSequence, RecordingBackend, Mark]]:
    """The finished sequences of the engine, with the backend as each has left it."""
    _refuse(spec, recording)
    backend = RecordingBackend(recording)
    longest = max(len(r.prompt) + r.max_tokens for r in recording.requests)
    room = min(longest, recording.model.context_length) + 256
    # A cached prefix would make the first forwards depend on the order of the requests.
    limits = Limits(kv_tokens=max(Limits().kv_tokens, room), prefix_cache=False)
    engine = Engine({TARGET: backend}, limits, backend.text, curve)
    for index, request in enumerate(recording.requests):
        backend.open(index)
        mark = Mark(backend)
        params = replace(recording.params, max_tokens=request.max_tokens, stop=(END,))
        asked = GenerationRequest(request.prompt, lambda: _watched(spec(), backend.reading), params)
        sequence = finish(engine, asked, mark)
        if sequence.output != request.output.tolist():
            raise InvalidInput("decoder", str(spec), "it commits tokens that were not recorded")
        yield sequence, backend, mark


class Mark:
    """What was spent after the first commit of a request, to which its prompt's forward belongs.

    Python is timed by the processor's clock of this thread: what else runs here does not count.
    """

    def __init__(self, backend: RecordingBackend) -> None:
        self._backend = backend
        self._first: tuple[int, float, float, Reading] | None = None
        self._now = 0.0

    def __call__(self, sequence: LiveSequence) -> None:
        """To be called after each step."""
        backend, self._now = self._backend, time.thread_time()
        if self._first is None and sequence.trace:
            reading = replace(backend.reading)
            self._first = len(backend.rows), backend.seconds, self._now, reading

    @property
    def forwards(self) -> list[tuple[int, int]]:
        """(rows, context) of each forward."""
        return self._backend.rows[self._first[0] :] if self._first else []

    @property
    def python(self) -> float:
        """Seconds of Python, without what only the recording backend spends."""
        if self._first is None:
            return 0.0
        _, seconds, since, _ = self._first
        return max(self._now - since - (self._backend.seconds - seconds), 0.0)

    def vocabulary_seconds(self, timing: Timing) -> float:
        """Predicted for the operations that were looked up here and are work elsewhere."""
        if self._first is None:
            return 0.0
        then, now = self._first[3], self._backend.reading
        top_k = (now.top_k_rows - then.top_k_rows) * timing.top_k
        return top_k + (now.sample_rows - then.sample_rows) * timing.sample


def _played(
    request: Request,
    sequence: LiveSequence,
    mark: Mark,
    curve: CostCurve,
    timing: Timing,
    python: Callable[[float, int], float],
) -> Played:
    stats = sequence.stats
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
        forward_seconds=max(sum(_forward(timing, curve, *f) for f in mark.forwards), 0.0),
        python_seconds=python(mark.python, len(mark.forwards)) + mark.vocabulary_seconds(timing),
        drafter_seconds=stats.decoder_seconds,
    )


def _forward(timing: Timing, curve: CostCurve, rows: int, context: int) -> float:
    return timing.forward + timing.row * (rows - 1) + curve.at(rows, context)


def _python_between_forwards(
    recording: Recording, curve: CostCurve
) -> Callable[[float, int], float]:
    """(seconds of Python here, steps) -> seconds of Python in the engine.

    A plain step takes there what was measured there; what a method does beyond it is slowed as the
    steps of ``HEAVY`` are.
    """
    timing, plain, heavy = recording.timing, *(_step(recording, curve, m) for m in (PLAIN, HEAVY))
    if not plain:
        return lambda seconds, steps: seconds
    slower = timing.python / plain
    if heavy > plain and timing.heavy > timing.python:
        slower = (timing.heavy - timing.python) / (heavy - plain)
    return lambda seconds, steps: steps * timing.python + slower * (seconds - steps * plain)


def _step(recording: Recording, curve: CostCurve, method: str) -> float:
    """Seconds of a step's Python when it is replayed; 0 where no request has two tokens."""
    times: list[float] = []
    steps = 0
    for _, _, mark in replayed(recording, parse(method), curve):
        if mark.forwards:
            times.append(mark.python / len(mark.forwards))
            steps += len(mark.forwards)
        if steps >= WARM_UP:
            break
    return float(np.median(times)) if times else 0.0


def _watched(decoder: Decoder, reading: Reading) -> Decoder:
    """The decoder, whose replies are told when its verifier reads them."""
    if isinstance(decoder, DraftVerify):
        decoder.verify = _telling(decoder.verify, reading)
    return decoder


def _telling(verify: Verifier, reading: Reading) -> Verifier:
    def told(seq: Sequence, tree: TokenTree, reply: Reply) -> Verdict:
        reading.verifying = True
        try:
            return verify(seq, tree, reply)
        finally:
            reading.verifying = False

    return told


def _refuse(spec: Spec, recording: Recording) -> None:
    """Raise InvalidInput for a method that cannot be replayed, as far as that can be told now."""
    method, decoder = spec.method, spec()
    if method.family != "autoregressive" or method.guarantee != "exact":
        raise InvalidInput("decoder", str(spec), "its output need not be the recorded one")
    if method.models:
        raise InvalidInput("decoder", str(spec), f"it runs a {method.models[0]} model: {IN_ENGINE}")
    if isinstance(decoder, DraftVerify):
        for part in getattr(decoder.drafter, "parts", [decoder.drafter]):
            if getattr(part, "runs", None) is not None:
                raise InvalidInput("decoder", str(spec), f"it runs layers to draft: {IN_ENGINE}")
    verifier = spec.settings.get("verifier", VERIFIER)
    if recording.params.temperature > 0.0 and VERIFIERS[verifier].guarantee != "exact":
        raise InvalidInput(
            "verifier", verifier,
            f"use {VERIFIER}: above temperature 0 others draw tokens that were not recorded",
        )  # fmt: skip
