"""Engines that make one step a call and several steps a call, with the same requests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from driving import finish

from paradecode.backends.interface import Backend, Span, SpanResult
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.models.config import ModelConfig
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Weights

CONFIG, WEIGHTS = tiny_checkpoint("llama", sharpness=2.0)


class OneByOne:
    """A native backend that makes one step a call."""

    name = "native"

    def __init__(self, inner: NativeBackend) -> None:
        self.inner, self.config = inner, inner.config
        self.reserve, self.copy, self.apply = inner.reserve, inner.copy, inner.apply
        self.close, self.run_head, self.pack = inner.close, inner.run_head, inner.pack

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        return self.inner.forward(spans)


def engine_of(
    wrap: Callable[[NativeBackend], Backend],
    config: ModelConfig = CONFIG,
    weights: Weights = WEIGHTS,
    curve: CostCurve | None = None,
    dtype: str = "f32",
    draft: tuple[ModelConfig, Weights] | None = None,
    **limits: Any,
) -> Engine:
    models = {TARGET: wrap(NativeBackend(config, weights, dtype=dtype, threads=1))}
    if draft is not None:
        models[DRAFT] = NativeBackend(*draft, dtype=dtype, threads=1)
    sizes = Limits(**{"kv_tokens": 4096, **limits})
    return Engine(models, sizes, None, curve, weights=weights)


def both(**settings: Any) -> tuple[Engine, Engine]:
    """Return an engine that makes one step a call, and one that makes several."""
    return engine_of(OneByOne, **settings), engine_of(lambda one: one, **settings)


def prompt(seed: int) -> list[int]:
    """Return a text with many repetitions."""
    random = np.random.default_rng(seed)
    words = random.integers(1, CONFIG.vocab_size, (3, 4))
    return words[random.integers(0, 3, int(random.integers(1, 9)))].ravel().tolist()


def add(engine: Engine, spec: str, tokens: Sequence[int], **params: Any) -> LiveSequence:
    salt, owner = params.pop("salt", ""), params.pop("owner", "one")
    sampling = SamplingParams(**params)
    return engine.add(
        GenerationRequest(np.array(tokens, np.int32), parse(spec), sampling, salt=salt, owner=owner)
    )


def facts(sequence: LiveSequence) -> dict[str, Any]:
    """Return everything that a sequence reports, except times."""
    counts = sequence.stats.counts()
    steps = [
        (step.forward, step.tokens, step.accepted, step.drafted, step.tree.tokens.tolist(),
         step.tree.estimates.tolist(), step.tree.parents.tolist())
        for step in sequence.trace
    ]  # fmt: skip
    error = None if sequence.error is None else (type(sequence.error), str(sequence.error))
    return {"output": sequence.output, "steps": steps, "counts": counts, "error": error,
            "end": sequence.finish_reason, "cached": sequence.cached_tokens,
            "logprobs": sequence.logprobs}  # fmt: skip


def alike(engines: Sequence[Engine], *asked: tuple[str, int, dict[str, Any]]) -> list[LiveSequence]:
    """Give each engine the same requests, run them to their end, and compare all reports.

    Each request is (method, prompt seed, settings). Returns the last engine's sequences.
    """
    ways = []
    for engine in engines:
        made = [add(engine, spec, prompt(seed), **params) for spec, seed, params in asked]
        finish(engine)
        ways.append([facts(one) for one in made])
    for number, (spec, seed, _) in enumerate(asked):
        for way in ways[1:]:
            assert way[number] == ways[0][number], (spec, seed)
    return made
