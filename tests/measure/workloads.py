"""Small workloads: models that take microseconds, and prompts with repetitions."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.replay.recorder import recorded
from paradecode_lab.measure.replay.recording import Identity, Recording, Timing
from paradecode_lab.measure.serving import finish

CURVE = CostCurve((1, 4, 16), (64,), ((1e-3, 1.2e-3, 2.5e-3),))


def toy() -> Mapping[str, Backend]:
    return {TARGET: ToyBackend(toy_config(vocab_size=60, context_length=400))}


def items(count: int = 6, vocabulary: int = 60, length: int = 24, tokens: int = 40) -> list[Item]:
    random = np.random.default_rng(3)
    found = []
    for number in range(count):
        text = random.integers(4, vocabulary, length)
        ids = tuple(int(token) for token in np.tile(text, 2))
        found.append(Item(f"p{number}", f"p{number}", "ab"[number % 2], ids, tokens))
    return found


def recording_of(
    models: Mapping[str, Backend], prompts: list[Item], params: SamplingParams, k: int = 16
) -> Recording:
    engine = Engine(models, curve=CURVE)
    requests = tuple(recorded(engine, prompts, params, k))
    seeded = replace(params, seed=params.seed or 0)
    return Recording(Identity.of(engine), seeded, CURVE, Timing(), requests)


def engine_runs(
    models: Mapping[str, Backend], prompts: list[Item], params: SamplingParams, spec: str
) -> list[LiveSequence]:
    """Decode the same requests with ``spec`` in a real engine."""
    engine = Engine(models, Limits(prefix_cache=False), curve=CURVE)
    own = [replace(params, max_tokens=item.max_tokens, seed=params.seed or 0) for item in prompts]
    return [
        finish(engine, GenerationRequest(np.array(item.token_ids, np.int32), parse(spec), each))
        for item, each in zip(prompts, own, strict=True)
    ]


def drafts(sequence: LiveSequence) -> list[tuple[list[int], list[int], int]]:
    """Return for each step its draft (tokens and parents) and the number of accepted tokens."""
    return [
        (step.tree.tokens.tolist(), step.tree.parents.tolist(), step.accepted)
        for step in sequence.trace
    ]
